//! Which block is where, in memory: at most 48 bytes a block.
//!
//! An entry has 40 bytes and lies in a chunk of entries, so that growing copies nothing. The hash
//! table over the entries has many small parts, each of which grows by itself by an eighth: at most
//! 6 bytes a block.

mod shard;

use kv_cache::{BlockKey, NamespaceTag};

use shard::Shard;

/// Parts of the hash table.
const SHARDS: usize = 1024;
/// Entries in a chunk.
const CHUNK: usize = 4096;
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
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
    pub(crate) depth: u16,
    pub(crate) tag: NamespaceTag,
    /// Pages of 4 KiB of the directory behind the payload: 0 to 3.
    pub(crate) directory_pages: u32,
}

impl Located {
    /// Pages of 4 KiB of the whole extent.
    pub(crate) const fn extent_pages(&self) -> u32 {
        self.bytes.div_ceil(crate::io::PAGE_BYTES) + self.directory_pages
    }
}

/// Free when its length is 0: no block has that.
#[derive(Clone, Copy)]
struct Entry {
    key: BlockKey,
    /// 17 bits segment, 18 bits page, 26 bits length, 2 bits directory, 1 bit used.
    place: u64,
    crc: u32,
    depth: u16,
    tag: NamespaceTag,
}

const _: () = assert!(size_of::<Entry>() == 40);

const USED: u64 = 1;

impl Entry {
    fn free() -> Self {
        let (key, tag) = (bytemuck::Zeroable::zeroed(), NamespaceTag::default());
        Self { key, place: 0, crc: 0, depth: 0, tag }
    }

    fn is_free(&self) -> bool {
        self.located().bytes == 0
    }

    fn new(key: BlockKey, at: &Located) -> Self {
        let place = u64::from(at.slot) << 47
            | u64::from(at.first_page) << 29
            | u64::from(at.bytes) << 3
            | u64::from(at.directory_pages) << 1;
        Self { key, place, crc: at.crc, depth: at.depth, tag: at.tag }
    }

    fn located(&self) -> Located {
        let bits = |from: u32, mask: u32| {
            u32::try_from(self.place >> from & u64::from(mask)).unwrap_or(NONE)
        };
        Located {
            slot: bits(47, SEGMENTS_MAX - 1),
            first_page: bits(29, SEGMENT_PAGES_MAX - 1),
            bytes: bits(3, BLOCK_BYTES_MAX),
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
    /// Entries that are free, of those that were used.
    free: Vec<u32>,
    /// Entries that were ever used.
    end: u32,
    /// Where the search for an unused block goes on.
    hand: u32,
}

impl Default for Index {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, chunks: Vec::new(), free: Vec::new(), end: 0, hand: 0 }
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
        self.end as usize - self.free.len()
    }

    pub(crate) fn find(&self, key: &BlockKey) -> Option<Located> {
        self.entry(self.number(key)?).map(Entry::located)
    }

    /// As [`find`](Self::find), and remembers that the block was used.
    pub(crate) fn touch(&mut self, key: &BlockKey) -> Option<Located> {
        let number = self.number(key)?;
        let entry = self.place_mut(number);
        entry.place |= USED;
        Some(entry.located())
    }

    /// Adds a block, or moves one.
    pub(crate) fn insert(&mut self, key: BlockKey, at: &Located) {
        if let Some(number) = self.number(&key) {
            *self.place_mut(number) = Entry::new(key, at);
            return;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            if self.end as usize == self.chunks.len() * CHUNK {
                self.chunks.push(vec![Entry::free(); CHUNK].into());
            }
            self.end += 1;
            self.end - 1
        });
        *self.place_mut(number) = Entry::new(key, at);
        let hash = hash(&key);
        let Self { shards, chunks, .. } = self;
        shards[shard_of(hash)].insert(hash, number, |number| hash_at(chunks, number));
    }

    pub(crate) fn remove(&mut self, key: &BlockKey) -> Option<Located> {
        let number = self.number(key)?;
        let hash = hash(key);
        let Self { shards, chunks, .. } = self;
        shards[shard_of(hash)].remove(hash, number, |number| hash_at(chunks, number));
        self.free.push(number);
        Some(std::mem::replace(self.place_mut(number), Entry::free()).located())
    }

    /// The next block in turn that was not used since its last turn. `None` when two rounds find
    /// none.
    pub(crate) fn next_unused(&mut self) -> Option<(BlockKey, Located)> {
        for _ in 0..u64::from(self.end) * 2 {
            let number = self.hand;
            self.hand = (self.hand + 1) % self.end;
            let entry = self.place_mut(number);
            if !entry.is_free() {
                if entry.place & USED == 0 {
                    return Some((entry.key, entry.located()));
                }
                entry.place &= !USED;
            }
        }
        None
    }

    /// All blocks, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockKey, Located)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        entries.filter(|entry| !entry.is_free()).map(|entry| (entry.key, entry.located()))
    }

    /// The keys of the blocks in chunk `part`. `None` behind the last.
    pub(crate) fn keys(&self, part: usize) -> Option<Vec<BlockKey>> {
        let entries = self.chunks.get(part)?.iter();
        Some(entries.filter(|entry| !entry.is_free()).map(|entry| entry.key).collect())
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let entries = self.chunks.len() * CHUNK * size_of::<Entry>();
        let tables: usize = self.shards.iter().map(Shard::memory_bytes).sum();
        entries + tables + self.free.capacity() * 4
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
