//! Which block is where, in memory: at most 48 bytes a block.
//!
//! An entry has 40 bytes and lies in a chunk of entries, so that growing copies nothing. Its last use
//! takes 2 bytes more ([`LeafOrder`]). The hash table over the entries has many small parts, each of
//! which grows by itself by an eighth: at most 6 bytes a block.

mod encoded;
mod shard;

use std::collections::HashMap;

use kv_cache::{BlockKey, NamespaceTag};

use crate::format::Encoding;
use crate::io::PAGE_BYTES;
use crate::policy::{LeafOrder, Oldest};
pub use encoded::EncodedBlocks;
use encoded::Lengths;
use shard::Shard;

/// Parts of the hash table.
const SHARDS: usize = 1024;
/// Entries in a chunk.
const CHUNK: usize = 1024;
/// Says that there is no entry.
const NONE: u32 = u32::MAX;

/// Segments of a folder at once: their numbers here are reused.
pub(crate) const SEGMENTS_MAX: u32 = 1 << 17;
/// Pages of 4 KiB of a segment.
pub(crate) const SEGMENT_PAGES_MAX: u32 = 1 << 18;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES_MAX: u32 = (1 << 26) - 1;

/// Where a block is, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Located {
    /// The segment, as a number in memory.
    pub(crate) slot: u32,
    pub(crate) first_page: u32,
    /// Length of the payload.
    pub(crate) bytes: u32,
    pub(crate) encoding: Encoding,
    /// Pages of 4 KiB of the payload as it is written.
    pub(crate) stored_pages: u32,
    pub(crate) crc: u32,
    pub(crate) depth: u16,
    pub(crate) tag: NamespaceTag,
    /// Pages of 4 KiB of the directory behind the payload: 0 to 3.
    pub(crate) directory_pages: u32,
}

impl Located {
    /// Pages of 4 KiB of the whole extent.
    pub(crate) const fn extent_pages(&self) -> u32 {
        self.stored_pages + self.directory_pages
    }
}

/// Free when its place is 0: no block has no length.
#[derive(Clone, Copy)]
struct Entry {
    key: BlockKey,
    /// 17 bits segment, 18 bits page, 26 bits length, 2 bits directory, 1 bit for an encoded block.
    /// The length of such a block is 14 bits for the pages as they are written, less one, and 12 bits
    /// for the number of its encoding and length in [`Lengths`].
    place: u64,
    crc: u32,
    depth: u16,
    tag: NamespaceTag,
}

const _: () = assert!(size_of::<Entry>() == 40);

impl Entry {
    fn free() -> Self {
        let (key, tag) = (bytemuck::Zeroable::zeroed(), NamespaceTag::default());
        Self { key, place: 0, crc: 0, depth: 0, tag }
    }

    fn is_free(&self) -> bool {
        self.place & (u64::from(BLOCK_BYTES_MAX) << 3 | 1) == 0
    }

    /// One of a block whose length is `length` in the bits for it.
    fn new(key: BlockKey, at: &Located, length: u32) -> Self {
        let place = u64::from(at.slot) << 47
            | u64::from(at.first_page) << 29
            | u64::from(length) << 3
            | u64::from(at.directory_pages) << 1
            | u64::from(at.encoding != Encoding::Raw);
        Self { key, place, crc: at.crc, depth: at.depth, tag: at.tag }
    }

    fn located(&self, lengths: &Lengths) -> Located {
        let bits = |from: u32, mask: u32| {
            u32::try_from(self.place >> from & u64::from(mask)).unwrap_or(NONE)
        };
        let length = bits(3, BLOCK_BYTES_MAX);
        let (encoding, bytes, stored_pages) = match bits(0, 1) {
            0 => (Encoding::Raw, length, length.div_ceil(PAGE_BYTES)),
            _ => lengths.read(length),
        };
        Located {
            slot: bits(47, SEGMENTS_MAX - 1),
            first_page: bits(29, SEGMENT_PAGES_MAX - 1),
            bytes,
            encoding,
            stored_pages,
            crc: self.crc,
            depth: self.depth,
            tag: self.tag,
            directory_pages: bits(1, 3),
        }
    }
}

/// The blocks of a folder.
pub(crate) struct Index {
    shards: Box<[Shard]>,
    chunks: Vec<Box<[Entry]>>,
    /// The numbers of the entries, and when each was used.
    order: LeafOrder,
    /// Pages of the extents of each namespace that has some.
    namespace_pages: HashMap<NamespaceTag, u64>,
    lengths: Lengths,
    encoded: EncodedBlocks,
    /// Bytes of the payload of all blocks.
    payload_bytes: u64,
}

impl Default for Index {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        let (order, namespace_pages) = (LeafOrder::default(), HashMap::new());
        let (lengths, encoded) = (Lengths::default(), EncodedBlocks::default());
        let (chunks, payload_bytes) = (Vec::new(), 0);
        Self { shards, chunks, order, namespace_pages, lengths, encoded, payload_bytes }
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("blocks", &self.len()).finish_non_exhaustive()
    }
}

/// The first 8 bytes of a key, which are uniform.
fn hash(key: &BlockKey) -> u64 {
    bytemuck::pod_read_unaligned(&key.as_bytes()[..8])
}

fn shard_of(hash: u64) -> usize {
    usize::try_from(hash % SHARDS as u64).unwrap_or(0)
}

impl Index {
    /// How many blocks it has.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Bytes of the payload of all blocks.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub(crate) fn find(&self, key: &BlockKey) -> Option<Located> {
        self.entry(self.number(key)?).map(|entry| entry.located(&self.lengths))
    }

    /// Those of these blocks that are here are used in one moment, after all that was used before.
    pub(crate) fn used(&mut self, keys: &[BlockKey]) {
        self.order.tick();
        for key in keys {
            if let Some(number) = self.number(key) {
                self.order.used(number);
            }
        }
    }

    /// Whether a block of this encoding and length can be kept: always, unless the folder has
    /// encoded blocks of 4,096 other lengths.
    pub(crate) fn takes(&mut self, encoding: Encoding, bytes: u32) -> bool {
        encoding == Encoding::Raw || self.lengths.number(encoding, bytes).is_some()
    }

    /// Adds a block, which counts as used now if `is_new`; or moves one. `false` when the block cannot
    /// be kept ([`takes`](Self::takes)).
    pub(crate) fn insert(&mut self, key: BlockKey, at: &Located, is_new: bool) -> bool {
        let length = match at.encoding {
            Encoding::Raw => at.bytes,
            _ => match self.lengths.write(at) {
                Some(length) => length,
                None => return false,
            },
        };
        *self.namespace_pages.entry(at.tag).or_default() += u64::from(at.extent_pages());
        self.encoded.add(at);
        self.payload_bytes += u64::from(at.bytes);
        if let Some(number) = self.number(&key) {
            let before = std::mem::replace(self.place_mut(number), Entry::new(key, at, length));
            self.forget_pages(&before.located(&self.lengths));
            return true;
        }
        let number = if is_new { self.order.enter() } else { self.order.enter_unused() };
        if number as usize == self.chunks.len() * CHUNK {
            self.chunks.push(vec![Entry::free(); CHUNK].into());
        }
        *self.place_mut(number) = Entry::new(key, at, length);
        let hash = hash(&key);
        let Self { shards, chunks, .. } = self;
        shards[shard_of(hash)].insert(hash, number, |number| hash_at(chunks, number));
        true
    }

    pub(crate) fn remove(&mut self, key: &BlockKey) -> Option<Located> {
        let number = self.number(key)?;
        let hash = hash(key);
        let Self { shards, chunks, .. } = self;
        shards[shard_of(hash)].remove(hash, number, |number| hash_at(chunks, number));
        self.order.leave(number);
        let entry = std::mem::replace(self.place_mut(number), Entry::free());
        let at = entry.located(&self.lengths);
        self.forget_pages(&at);
        Some(at)
    }

    fn forget_pages(&mut self, at: &Located) {
        self.encoded.remove(at);
        self.payload_bytes -= u64::from(at.bytes);
        if let Some(pages) = self.namespace_pages.get_mut(&at.tag) {
            *pages -= u64::from(at.extent_pages());
            if *pages == 0 {
                self.namespace_pages.remove(&at.tag);
            }
        }
    }

    /// Pages of the extents of a namespace.
    pub(crate) fn pages_of(&self, namespace: NamespaceTag) -> u64 {
        self.namespace_pages.get(&namespace).copied().unwrap_or(0)
    }

    /// Counts part `part` for a search of the blocks that leave next. `false` behind the last part.
    pub(crate) fn count(
        &self,
        oldest: &mut Oldest,
        part: usize,
        mut may_leave: impl FnMut(&BlockKey, NamespaceTag) -> bool,
    ) -> bool {
        oldest.count(&self.order, part, |number| {
            self.entry(number).is_some_and(|it| may_leave(&it.key, it.tag))
        })
    }

    /// Collects part `part` of that search. `false` behind the last part.
    pub(crate) fn collect(
        &self,
        oldest: &mut Oldest,
        part: usize,
        mut may_leave: impl FnMut(&BlockKey, NamespaceTag) -> bool,
    ) -> bool {
        let may_leave =
            |number| self.entry(number).is_some_and(|it: &Entry| may_leave(&it.key, it.tag));
        let depth_of = |number| self.entry(number).map_or(0, |it| it.depth);
        oldest.collect(&self.order, part, may_leave, depth_of)
    }

    /// The block of a number that a search found, unless it has left since.
    pub(crate) fn numbered(&self, number: u32) -> Option<(BlockKey, Located)> {
        let entry = self.entry(number).filter(|entry| !entry.is_free())?;
        Some((entry.key, entry.located(&self.lengths)))
    }

    /// All blocks, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockKey, Located)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let of = |entry: &Entry| (entry.key, entry.located(&self.lengths));
        entries.filter(|entry| !entry.is_free()).map(of)
    }

    /// The keys of the blocks in chunk `part` whose namespaces are wanted. `None` behind the last.
    pub(crate) fn keys(
        &self,
        part: usize,
        is_wanted: impl Fn(NamespaceTag) -> bool,
    ) -> Option<Vec<BlockKey>> {
        let entries = self.chunks.get(part)?.iter();
        let wanted = entries.filter(|entry| !entry.is_free() && is_wanted(entry.tag));
        Some(wanted.map(|entry| entry.key).collect())
    }

    /// What encoded blocks take.
    pub(crate) const fn encoded(&self) -> EncodedBlocks {
        self.encoded
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let entries = self.chunks.len() * CHUNK * size_of::<Entry>();
        let tables: usize = self.shards.iter().map(Shard::memory_bytes).sum();
        entries + tables + self.order.memory_bytes()
    }

    fn number(&self, key: &BlockKey) -> Option<u32> {
        let hash = hash(key);
        let is_it =
            |number| self.entry(number).is_some_and(|entry| entry.key == *key && !entry.is_free());
        self.shards[shard_of(hash)].find(hash, is_it)
    }

    fn entry(&self, number: u32) -> Option<&Entry> {
        self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)
    }

    fn place_mut(&mut self, number: u32) -> &mut Entry {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }
}

fn hash_at(chunks: &[Box<[Entry]>], number: u32) -> u64 {
    hash(&chunks[number as usize / CHUNK][number as usize % CHUNK].key)
}

#[cfg(test)]
mod tests;
