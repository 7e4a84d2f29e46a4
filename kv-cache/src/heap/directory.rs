//! The directory: what this node's segment and chunks hold, in the host's own DRAM, for the
//! processes that publish.
//!
//! ```text
//! word 0       format, geometry      1 changing      2 incarnation it was built for
//! word 3       blocks                4 chunk where payload was taken last
//! word 5       chunk that is being given back, and by which process: 1 + chunk u32 | process u32
//! word 6       1 + this node's first reader word that may say held though nobody holds; 0 is none
//! word 7       the slot from which on tombstones are looked at next
//! word 8 ..    a word per descriptor: generation u32 | state u8 | tag u24
//! ..           a word per chunk of the region: pages of its slots u32 | free slots u32
//! ..           a bit per page of the region: the payload slot is taken
//! ..           holds ([`super::hold_table`]), quotas ([`super::quota`]): not cleared with the rest
//! ```
//!
//! It says nothing that the descriptors do not say: it saves the owner a read of slow memory for
//! every slot that an insert passes, and it is built anew from the descriptors whenever it may be
//! wrong. Read and written under the heap lock only.

use cxl_shm::fabric::HostMemory;
use cxl_shm::host::ProcessSlot;
use cxl_shm::layout::Layout;
use cxl_shm::units::{ChunkId, Incarnation, PAGE_BYTES};

use super::hold_table::{self, HoldTable};
use super::quota::{QUOTA_WORDS, QuotaTable};
use crate::format::{CacheGeometry, halves, holds_max, probe_sequence};
use crate::identity::BlockKey;

/// Version of the directory, so that processes of two versions do not share one.
const FORMAT: u64 = 5;

const WORD_FORMAT: usize = 0;
const WORD_CHANGING: usize = 1;
const WORD_INCARNATION: usize = 2;
const WORD_BLOCKS: usize = 3;
const WORD_CURSOR: usize = 4;
const WORD_CLOSING: usize = 5;
const WORD_UNCHECKED: usize = 6;
const WORD_TOMBSTONES: usize = 7;
const HEADER_WORDS: usize = 8;

/// What the directory says of a descriptor slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotWord {
    /// Never used.
    Blank,
    /// A tombstone; searches end at some (INDEX-S2).
    Free { generation: u32, ends: bool },
    /// A block that is being written.
    Writing { generation: u32, tag: u32 },
    /// A complete block.
    Ready { generation: u32, tag: u32 },
}

impl SlotWord {
    fn word(self) -> u64 {
        let (generation, state, tag) = match self {
            Self::Blank => return 0,
            Self::Free { generation, ends: false } => (generation, 1, 0),
            Self::Free { generation, ends: true } => (generation, 4, 0),
            Self::Writing { generation, tag } => (generation, 2, tag),
            Self::Ready { generation, tag } => (generation, 3, tag),
        };
        u64::from(generation) << 32 | state << 24 | u64::from(tag)
    }

    fn from_word(word: u64) -> Self {
        let (low, generation) = halves(word);
        let tag = low & TAG_MASK;
        match low >> 24 {
            1 => Self::Free { generation, ends: false },
            4 => Self::Free { generation, ends: true },
            2 => Self::Writing { generation, tag },
            3 => Self::Ready { generation, tag },
            _ => Self::Blank,
        }
    }

    fn is_block(self) -> bool {
        matches!(self, Self::Writing { .. } | Self::Ready { .. })
    }

    /// Whether a search ends here (INDEX-S2).
    pub(crate) fn ends_search(self) -> bool {
        matches!(self, Self::Blank | Self::Free { ends: true, .. })
    }
}

const TAG_MASK: u32 = (1 << 24) - 1;

/// Tells most keys apart without a look at their descriptors.
pub(crate) fn tag(key: BlockKey) -> u32 {
    let (low, _) = halves(key.words()[1]);
    low & TAG_MASK
}

/// Where an insert of a key may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Insert {
    /// Into this slot, whose last block had this generation.
    Into { slot: u32, last: u32 },
    /// Nowhere: the segment is full enough (INDEX-S3).
    Full,
    /// Nowhere: every slot where it could be found is taken.
    Crowded,
}

/// The directory of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory<W> {
    pub(super) words: W,
    pub(super) layout: Layout,
    slots: u32,
}

impl CacheGeometry {
    /// Words that a host's tier needs for a region laid out as `layout`
    /// ([`cxl_shm::layout::Geometry::host_words`], which does not change the layout otherwise).
    #[must_use]
    pub fn host_words(&self, layout: &Layout) -> usize {
        let slots = self.descriptor_slots() as usize;
        let holds = hold_table::words_needed(holds_max(*self, layout));
        bitmap_end(slots, layout) + holds + QUOTA_WORDS
    }
}

fn bitmap_end(slots: usize, layout: &Layout) -> usize {
    bitmap_at(slots, layout) + layout.chunks() as usize * bitmap_words(layout)
}

fn bitmap_at(slots: usize, layout: &Layout) -> usize {
    HEADER_WORDS + slots + layout.chunks() as usize
}

/// Words of the bitmap of one chunk.
pub(super) fn bitmap_words(layout: &Layout) -> usize {
    let pages = layout.geometry().chunk_bytes / PAGE_BYTES;
    usize::try_from(pages.div_ceil(64)).expect("a chunk's bitmap fits the address space")
}

impl<W: HostMemory> Directory<W> {
    pub(crate) fn new(words: W, geometry: CacheGeometry, layout: Layout) -> Self {
        Self { words, layout, slots: geometry.descriptor_slots() }
    }

    /// Whether the host tier is one for this version and these sizes; an unused one becomes so.
    pub(crate) fn claim_format(&self) -> bool {
        let format = FORMAT << 56 ^ u64::from(self.layout.chunks()) << 28 ^ u64::from(self.slots);
        match self.words.load(WORD_FORMAT) {
            0 => {
                self.words.store(WORD_FORMAT, format);
                true
            }
            found => found == format,
        }
    }

    /// Whether a process stopped in the middle of a change, or none built it in this life of the
    /// node.
    pub(crate) fn is_doubtful(&self, incarnation: Incarnation) -> bool {
        self.words.load(WORD_CHANGING) != 0 || !self.is_built_in(incarnation)
    }

    /// Whether it was built in this life of the node: then what it says of a slot was so.
    pub(crate) fn is_built_in(&self, incarnation: Incarnation) -> bool {
        self.words.load(WORD_INCARNATION) == u64::from(incarnation.0)
    }

    /// Says that a change begins or is complete.
    pub(crate) fn set_changing(&self, changing: bool) {
        self.words.store(WORD_CHANGING, u64::from(changing));
    }

    /// Forgets everything but which chunk is being given back: who does that continues. The caller
    /// builds it anew.
    pub(crate) fn clear(&self) {
        for index in (WORD_BLOCKS..self.end()).filter(|index| *index != WORD_CLOSING) {
            self.words.store(index, 0);
        }
    }

    /// The chunk that is being given back: no payload is taken in it.
    pub(crate) fn closing(&self) -> Option<ChunkId> {
        let (chunk, _) = halves(self.words.load(WORD_CLOSING));
        chunk.checked_sub(1).map(ChunkId)
    }

    /// The process that is giving a chunk back.
    pub(crate) fn closing_process(&self) -> Option<ProcessSlot> {
        let (chunk, process) = halves(self.words.load(WORD_CLOSING));
        u16::try_from(process).ok().filter(|_| chunk != 0).map(ProcessSlot)
    }

    /// Says which chunk is being given back, and by whom.
    pub(crate) fn set_closing(&self, closing: Option<(ChunkId, ProcessSlot)>) {
        let word = closing
            .map_or(0, |(chunk, process)| u64::from(chunk.0 + 1) | u64::from(process.0) << 32);
        self.words.store(WORD_CLOSING, word);
    }

    /// The first reader word that is not checked, of those of all nodes' slots in turn
    /// ([`super::holds`]).
    pub(crate) fn unchecked(&self) -> Option<u64> {
        self.words.load(WORD_UNCHECKED).checked_sub(1)
    }

    /// Says which reader word is the first that is not checked.
    pub(crate) fn set_unchecked(&self, first: Option<u64>) {
        self.words.store(WORD_UNCHECKED, first.map_or(0, |first| first.saturating_add(1)));
    }

    /// The slot from which on tombstones are looked at next.
    pub(super) fn next_tombstone(&self) -> u32 {
        let (slot, _) = halves(self.words.load(WORD_TOMBSTONES));
        slot % self.slots
    }

    pub(super) fn set_next_tombstone(&self, slot: u32) {
        self.words.store(WORD_TOMBSTONES, u64::from(slot));
    }

    /// Says that it was built in this life of the node.
    pub(crate) fn set_built(&self, incarnation: Incarnation) {
        self.words.store(WORD_INCARNATION, u64::from(incarnation.0));
    }

    /// Number of descriptor slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Number of slots that hold blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.words.load(WORD_BLOCKS)
    }

    /// Most blocks that a segment holds (INDEX-S3).
    pub(crate) fn blocks_max(&self) -> u64 {
        u64::from(self.slots) * 3 / 4
    }

    pub(crate) fn slot(&self, slot: u32) -> SlotWord {
        SlotWord::from_word(self.words.load(HEADER_WORDS + slot as usize))
    }

    pub(crate) fn set_slot(&self, slot: u32, value: SlotWord) {
        let before = self.slot(slot).is_block();
        self.words.store(HEADER_WORDS + slot as usize, value.word());
        let blocks = self.blocks();
        match (before, value.is_block()) {
            (false, true) => self.words.store(WORD_BLOCKS, blocks + 1),
            (true, false) => self.words.store(WORD_BLOCKS, blocks.saturating_sub(1)),
            (true, true) | (false, false) => {}
        }
    }

    /// Slots of blocks that may have `key`, judged by its tag.
    pub(crate) fn candidates(&self, key: BlockKey) -> impl Iterator<Item = u32> {
        let wanted = tag(key);
        probe_sequence(key, self.slots)
            .map(|slot| (slot, self.slot(slot)))
            .take_while(|(_, word)| !word.ends_search())
            .filter_map(move |(slot, word)| match word {
                SlotWord::Writing { tag, .. } | SlotWord::Ready { tag, .. } if tag == wanted => {
                    Some(slot)
                }
                _ => None,
            })
    }

    /// Where a new block with `key` goes.
    pub(crate) fn insert(&self, key: BlockKey) -> Insert {
        if self.blocks() >= self.blocks_max() {
            return Insert::Full;
        }
        let free = probe_sequence(key, self.slots).find_map(|slot| match self.slot(slot) {
            SlotWord::Blank => Some(Insert::Into { slot, last: 0 }),
            SlotWord::Free { generation, .. } => Some(Insert::Into { slot, last: generation }),
            SlotWord::Writing { .. } | SlotWord::Ready { .. } => None,
        });
        free.unwrap_or(Insert::Crowded)
    }

    pub(super) fn cursor(&self) -> u32 {
        let (cursor, _) = halves(self.words.load(WORD_CURSOR));
        cursor % self.layout.chunks()
    }

    pub(super) fn set_cursor(&self, chunk: u32) {
        self.words.store(WORD_CURSOR, u64::from(chunk));
    }

    /// Index of the word of chunk `chunk`.
    pub(super) fn chunk_at(&self, chunk: u32) -> usize {
        HEADER_WORDS + self.slots as usize + chunk as usize
    }

    /// Index of the first word of the bitmap of chunk `chunk`.
    pub(super) fn bitmap_at(&self, chunk: u32) -> usize {
        let first = bitmap_at(self.slots as usize, &self.layout);
        first + chunk as usize * bitmap_words(&self.layout)
    }

    fn end(&self) -> usize {
        self.bitmap_at(self.layout.chunks())
    }

    /// Who of this host holds what: at most `most` holds.
    pub(super) fn holds(&self, most: u64) -> HoldTable<W>
    where
        W: Copy,
    {
        HoldTable::new(self.words, self.end(), most)
    }

    /// The quotas of this host, behind a table of so many holds.
    pub(super) fn quotas(&self, holds: u64) -> QuotaTable<W>
    where
        W: Copy,
    {
        QuotaTable::new(self.words, self.end() + hold_table::words_needed(holds))
    }
}
