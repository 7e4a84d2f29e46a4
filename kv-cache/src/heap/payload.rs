//! Payload slots: each chunk of this node is divided in slots of one size.
//!
//! - **BLOCK-P1** A slot is a whole number of pages, so payload and metadata never share one
//!   (MEM-M6), and the chunk table's purpose word says how many: a chunk's slots can be found
//!   without DRAM.
//! - **BLOCK-P2** A slot is taken exactly when a descriptor that is not FREE names it; the bitmap
//!   only remembers that.

use cxl_shm::fabric::HostMemory;
use cxl_shm::units::{ChunkId, Extent, PAGE_BYTES};

use super::directory::{Directory, bitmap_words};
use crate::format::halves;

/// "KV" in the upper half of a chunk's purpose word.
const PURPOSE: u32 = u32::from_le_bytes(*b"KV\0\0");

/// Size of a payload slot: as many pages as a block needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SlotSize {
    pages: u32,
}

impl SlotSize {
    /// The slots for blocks of `block_bytes`; `None` when no block or no chunk is so large.
    pub(crate) fn for_block(block_bytes: u64, chunk_bytes: u64) -> Option<Self> {
        // Descriptors have 32 bits for the length.
        if block_bytes == 0 || block_bytes > chunk_bytes || u32::try_from(block_bytes).is_err() {
            return None;
        }
        // BLOCK-P1.
        u32::try_from(block_bytes.div_ceil(PAGE_BYTES)).ok().map(|pages| Self { pages })
    }

    /// The purpose word of a chunk of such slots.
    pub(crate) fn purpose(self) -> u64 {
        u64::from(PURPOSE) << 32 | u64::from(self.pages)
    }

    /// The slots of a chunk with this purpose; `None` when it is not payload.
    pub(crate) fn from_purpose(purpose: u64, chunk_bytes: u64) -> Option<Self> {
        let (pages, kind) = halves(purpose);
        let size = Self { pages };
        (kind == PURPOSE && pages > 0 && size.bytes() <= chunk_bytes).then_some(size)
    }

    /// Bytes of a slot.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES
    }

    /// Slots in a chunk.
    fn in_chunk(self, chunk_bytes: u64) -> u32 {
        u32::try_from(chunk_bytes / self.bytes()).unwrap_or(u32::MAX)
    }
}

/// What a chunk of this node is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkUse {
    pub(crate) chunk: ChunkId,
    pub(crate) size: SlotSize,
    /// Slots that are free.
    pub(crate) free: u32,
    /// Slots in all.
    pub(crate) slots: u32,
}

impl ChunkUse {
    /// Slots that are taken.
    pub(crate) fn taken(&self) -> u32 {
        self.slots.saturating_sub(self.free)
    }
}

impl<W: HostMemory> Directory<W> {
    /// Adds a chunk of this node, all of it free. Does nothing when it is there already.
    pub(super) fn add_chunk(&self, chunk: ChunkId, size: SlotSize) {
        let at = self.chunk_at(chunk.0);
        if self.words.load(at) == 0 {
            let free = size.in_chunk(self.layout.geometry().chunk_bytes);
            self.words.store(at, u64::from(size.pages) | u64::from(free) << 32);
        }
    }

    /// Takes a free slot of `size` for a block of `block_bytes`, in a chunk that is not `failed`
    /// (FAULT-C3); `None` when the chunks of this node have none.
    pub(crate) fn take_payload(
        &self,
        size: SlotSize,
        block_bytes: u64,
        failed: impl Fn(ChunkId) -> bool,
    ) -> Option<Extent> {
        let chunks = self.layout.chunks();
        let cursor = self.cursor();
        for chunk in (cursor..chunks).chain(0..cursor) {
            let Some((of_chunk, free)) = self.chunk_word(chunk) else { continue };
            if of_chunk != size || free == 0 || self.closing() == Some(ChunkId(chunk)) {
                continue;
            }
            if failed(ChunkId(chunk)) {
                continue;
            }
            if let Some(index) = self.take_bit(chunk, size) {
                self.set_free(chunk, size, free - 1);
                self.set_cursor(chunk);
                let offset = u64::from(index) * size.bytes();
                return self.layout.chunk(ChunkId(chunk)).part(offset, block_bytes);
            }
        }
        None
    }

    /// Takes exactly `payload`, as a descriptor names it. False when it is not a free slot of a
    /// chunk of this node.
    pub(crate) fn mark_payload(&self, payload: Extent) -> bool {
        let Some((chunk, size, free, index)) = self.locate(payload) else {
            return false;
        };
        let (at, bit) = self.bit(chunk, index);
        let word = self.words.load(at);
        if word & bit != 0 || free == 0 {
            return false;
        }
        self.words.store(at, word | bit);
        self.set_free(chunk, size, free - 1);
        true
    }

    /// Gives the slot of `payload` back. Every descriptor that named it is FREE, published
    /// (BLOCK-D2).
    pub(crate) fn free_payload(&self, payload: Extent) {
        let Some((chunk, size, free, index)) = self.locate(payload) else {
            return;
        };
        let (at, bit) = self.bit(chunk, index);
        let word = self.words.load(at);
        if word & bit != 0 {
            self.words.store(at, word & !bit);
            self.set_free(chunk, size, free.saturating_add(1));
        }
    }

    /// Payload slots that are free, of all sizes, in bytes.
    pub(crate) fn free_payload_bytes(&self) -> u64 {
        self.chunk_uses().iter().map(|chunk| chunk.size.bytes() * u64::from(chunk.free)).sum()
    }

    /// The chunks of this node.
    pub(crate) fn chunk_uses(&self) -> Vec<ChunkUse> {
        let chunk_bytes = self.layout.geometry().chunk_bytes;
        let chunks = (0..self.layout.chunks()).map(ChunkId);
        let uses = chunks.filter_map(|chunk| {
            let (size, free) = self.chunk_word(chunk.0)?;
            Some(ChunkUse { chunk, size, free, slots: size.in_chunk(chunk_bytes) })
        });
        uses.collect()
    }

    /// Forgets a chunk that is no longer this node's.
    pub(crate) fn forget_chunk(&self, chunk: ChunkId) {
        self.words.store(self.chunk_at(chunk.0), 0);
    }

    /// The size of a chunk's slots, and how many are free; `None` of a chunk that is not this node's.
    /// Another program may have written the word: slots longer than a chunk are none, and no more are
    /// free than there are.
    fn chunk_word(&self, chunk: u32) -> Option<(SlotSize, u32)> {
        let chunk_bytes = self.layout.geometry().chunk_bytes;
        let (pages, free) = halves(self.words.load(self.chunk_at(chunk)));
        let size = SlotSize { pages };
        let is_size = pages > 0 && size.bytes() <= chunk_bytes;
        is_size.then(|| (size, free.min(size.in_chunk(chunk_bytes))))
    }

    fn take_bit(&self, chunk: u32, size: SlotSize) -> Option<u32> {
        let slots = size.in_chunk(self.layout.geometry().chunk_bytes);
        let first = self.bitmap_at(chunk);
        for (base, at) in (0..slots).step_by(64).zip(first..) {
            let word = self.words.load(at);
            let index = base + (!word).trailing_zeros();
            if word != u64::MAX && index < slots {
                self.words.store(at, word | 1 << (index % 64));
                return Some(index);
            }
        }
        None
    }

    /// The slot that starts where `payload` does and holds all of it: chunk, size, free slots of
    /// the chunk, index.
    fn locate(&self, payload: Extent) -> Option<(u32, SlotSize, u32, u32)> {
        let chunk = self.layout.chunk_of(payload)?;
        let (size, free) = self.chunk_word(chunk.0)?;
        let offset = payload.offset() - self.layout.chunk(chunk).offset();
        let fits = offset.is_multiple_of(size.bytes()) && payload.bytes() <= size.bytes();
        let index = u32::try_from(offset / size.bytes()).ok()?;
        let slots = size.in_chunk(self.layout.geometry().chunk_bytes);
        (fits && index < slots).then_some((chunk.0, size, free, index))
    }

    fn bit(&self, chunk: u32, index: u32) -> (usize, u64) {
        debug_assert!(((index / 64) as usize) < bitmap_words(&self.layout));
        (self.bitmap_at(chunk) + (index / 64) as usize, 1 << (index % 64))
    }

    fn set_free(&self, chunk: u32, size: SlotSize, free: u32) {
        let word = u64::from(size.pages) | u64::from(free) << 32;
        self.words.store(self.chunk_at(chunk), word);
    }
}

#[cfg(test)]
mod tests {
    use cxl_shm::layout::{Geometry, Layout};
    use cxl_shm::verify::simulated::{SimulatedHostMemory, SimulatedRack};

    use super::*;
    use crate::format::CacheGeometry;

    fn directory() -> Directory<SimulatedHostMemory> {
        let cache = CacheGeometry::new(32, 16).unwrap();
        let geometry = Geometry {
            region_bytes: 1 << 20,
            nodes: 2,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines: cache.area_lines(2),
            host_words: 0,
        };
        let layout = Layout::new(geometry).unwrap();
        let words = cache.host_words(&layout);
        let memory = SimulatedRack::sticky(1, 4096).host_memory(0, words);
        Directory::new(memory, cache, layout)
    }

    /// Words of the host's memory that another program wrote.
    #[test]
    fn words_that_no_chunk_has_overflow_nothing() {
        let directory = directory();
        let chunk = ChunkId(1);
        let size = SlotSize::for_block(PAGE_BYTES, 64 << 10).unwrap();
        let whole = directory.layout.chunk(chunk);
        let payload = whole.part(0, PAGE_BYTES).unwrap();
        for (word, uses) in [
            (u64::MAX, 0),
            (u64::from(u32::MAX), 0),
            (17 | 1 << 32, 0),
            (1 | u64::from(u32::MAX) << 32, 1),
            (16 | u64::from(u32::MAX) << 32, 1),
        ] {
            directory.words.store(directory.chunk_at(chunk.0), word);
            assert_eq!(directory.chunk_uses().len(), uses, "{word:#x}");
            assert!(directory.free_payload_bytes() <= 64 << 10, "{word:#x}");
            directory.mark_payload(payload);
            directory.free_payload(payload);
            let _ = directory.take_payload(size, PAGE_BYTES, |_| false);
            assert!(directory.free_payload_bytes() <= 64 << 10, "{word:#x}");
        }
    }
}
