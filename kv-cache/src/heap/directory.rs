//! The directory: what this node's segment and chunks hold, in the host's own DRAM, for the
//! processes that publish.
//!
//! ```text
//! word 0       format, geometry      1 changing      2 incarnation it was built for
//! word 3       tables in use         4 chunk where payload was taken last
//! word 5       chunk that is being given back, and by which process: 1 + chunk u32 | process u32
//! word 6       1 + this node's first reader word that may say held though nobody holds; 0 is none
//! word 7       the slot from which on tombstones are looked at next
//! word 8       1 + the incarnation in which is known whether the node is drained << 1 | drained
//!              (CLEAR-D10)
//! word 9 ..    a word per table: its blocks
//! ..           a word per 4,096 descriptors: how many of these are being written
//! ..           a word per descriptor: generation u32 | state u8 | tag u24
//! ..           a word per chunk of the region: pages of its slots u32 | free slots u32
//! ..           a bit per page of the region: the payload slot is taken
//! ..           holds ([`super::hold_table`]), quotas ([`super::quota`]), blocks on drives: not cleared
//!              with the rest
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
use crate::format::{CacheGeometry, TABLES_MAX, Tables, halves, holds_max};
use crate::identity::BlockKey;

/// Version of the directory, so that processes of two versions do not share one.
const FORMAT: u64 = 8;

const WORD_FORMAT: usize = 0;
const WORD_CHANGING: usize = 1;
const WORD_INCARNATION: usize = 2;
const WORD_TABLES: usize = 3;
const WORD_CURSOR: usize = 4;
const WORD_CLOSING: usize = 5;
const WORD_UNCHECKED: usize = 6;
const WORD_TOMBSTONES: usize = 7;
const WORD_DRAINED: usize = 8;
const BLOCKS_WORDS: usize = 9;
const WRITING_WORDS: usize = BLOCKS_WORDS + TABLES_MAX;
/// Descriptors of which one word counts those that are being written.
const GROUP_SLOTS: u32 = 4096;

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
    tables: Tables,
    share_slots: u32,
}

impl CacheGeometry {
    /// Words that a host's tier needs for a region laid out as `layout`
    /// ([`cxl_shm::layout::Geometry::host_words`], which does not change the layout otherwise).
    #[must_use]
    pub fn host_words(&self, layout: &Layout) -> usize {
        let nodes = layout.geometry().nodes;
        let drives = self.drives().map_or(0, |drives| drives.host_words(nodes));
        drive_table_at(*self, layout) + drives
    }
}

/// Index of the first word of the host's table of blocks on drives.
pub(crate) fn drive_table_at(geometry: CacheGeometry, layout: &Layout) -> usize {
    let slots = geometry.descriptor_slots() as usize;
    let holds = hold_table::words_needed(holds_max(geometry, layout));
    bitmap_end(slots, layout) + holds + QUOTA_WORDS
}

fn bitmap_end(slots: usize, layout: &Layout) -> usize {
    bitmap_at(slots, layout) + layout.chunks() as usize * bitmap_words(layout)
}

fn bitmap_at(slots: usize, layout: &Layout) -> usize {
    slots_at(slots) + slots + layout.chunks() as usize
}

fn slots_at(slots: usize) -> usize {
    WRITING_WORDS + slots.div_ceil(GROUP_SLOTS as usize)
}

/// Words of the bitmap of one chunk.
pub(super) fn bitmap_words(layout: &Layout) -> usize {
    let pages = layout.geometry().chunk_bytes / PAGE_BYTES;
    usize::try_from(pages.div_ceil(64)).expect("a chunk's bitmap fits the address space")
}

impl<W: HostMemory> Directory<W> {
    pub(crate) fn new(words: W, geometry: CacheGeometry, layout: Layout) -> Self {
        let (tables, share_slots) = (geometry.tables(), geometry.share_slots());
        Self { words, layout, tables, share_slots }
    }

    /// Whether the host tier is one for this version and these sizes; an unused one becomes so.
    pub(crate) fn claim_format(&self) -> bool {
        let format = FORMAT << 56
            ^ u64::from(self.layout.chunks()) << 28
            ^ u64::from(self.slots())
            ^ u64::from(self.share_slots) << 20;
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

    /// Whether this life of the node publishes no new blocks (CLEAR-D10). `None` when no process of
    /// this life has looked yet.
    pub(crate) fn drained(&self, incarnation: Incarnation) -> Option<bool> {
        let word = self.words.load(WORD_DRAINED);
        (word >> 1 == u64::from(incarnation.0) + 1).then_some(word & 1 == 1)
    }

    pub(crate) fn set_drained(&self, incarnation: Incarnation, drained: bool) {
        let life = u64::from(incarnation.0) + 1;
        self.words.store(WORD_DRAINED, life << 1 | u64::from(drained));
    }

    /// Says that a change begins or is complete.
    pub(crate) fn set_changing(&self, changing: bool) {
        self.words.store(WORD_CHANGING, u64::from(changing));
    }

    /// Forgets everything but which chunk is being given back, because who does that continues, and
    /// which tables were in use. The caller builds it anew.
    pub(crate) fn clear(&self) {
        let header = [WORD_CURSOR, WORD_UNCHECKED, WORD_TOMBSTONES].into_iter();
        let slots = self.slot_at(0)..self.slot_at(self.slots_in_use());
        let chunks = self.chunk_at(0)..self.end();
        let counts = BLOCKS_WORDS..self.slot_at(0);
        for index in header.chain(counts).chain(slots).chain(chunks) {
            self.words.store(index, 0);
        }
    }

    /// How many tables of the segment are in use: all others are blank.
    pub(crate) fn tables_in_use(&self) -> usize {
        let (used, _) = halves(self.words.load(WORD_TABLES));
        (used as usize).clamp(1, self.tables.count())
    }

    /// Says that so many tables are in use, or more.
    pub(crate) fn use_tables(&self, used: usize) {
        if used > self.tables_in_use() {
            self.words.store(WORD_TABLES, used as u64);
        }
    }

    /// Slots of the tables that are in use.
    pub(crate) fn slots_in_use(&self) -> u32 {
        self.tables.slots_of(self.tables_in_use())
    }

    pub(crate) fn tables(&self) -> Tables {
        self.tables
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
        slot % self.slots_in_use()
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
        self.tables.slots()
    }

    /// Number of slots that hold blocks.
    pub(crate) fn blocks(&self) -> u64 {
        (0..self.tables_in_use()).map(|table| self.words.load(BLOCKS_WORDS + table)).sum()
    }

    /// Most blocks that a segment holds (INDEX-S3).
    pub(crate) fn blocks_max(&self) -> u64 {
        u64::from(self.slots()) * 3 / 4
    }

    pub(crate) fn slot(&self, slot: u32) -> SlotWord {
        SlotWord::from_word(self.words.load(self.slot_at(slot)))
    }

    pub(crate) fn set_slot(&self, slot: u32, value: SlotWord) {
        let before = self.slot(slot);
        self.words.store(self.slot_at(slot), value.word());
        let is_writing = |word: SlotWord| matches!(word, SlotWord::Writing { .. });
        let blocks = BLOCKS_WORDS + self.tables.index_of(slot);
        self.count(blocks, before.is_block(), value.is_block());
        let writing = WRITING_WORDS + (slot / GROUP_SLOTS) as usize;
        self.count(writing, is_writing(before), is_writing(value));
    }

    fn count(&self, word: usize, before: bool, after: bool) {
        let count = self.words.load(word);
        match (before, after) {
            (false, true) => self.words.store(word, count + 1),
            (true, false) => self.words.store(word, count.saturating_sub(1)),
            (true, true) | (false, false) => {}
        }
    }

    /// Number of slots whose blocks are being written.
    pub(crate) fn writing_blocks(&self) -> u64 {
        let groups = (self.slots_in_use() as usize).div_ceil(GROUP_SLOTS as usize);
        (WRITING_WORDS..WRITING_WORDS + groups).map(|word| self.words.load(word)).sum()
    }

    /// Slots of blocks that are being written, and their generations.
    pub(crate) fn writing(&self) -> Vec<(u32, u32)> {
        let slots = self.slots_in_use();
        let groups = (0..slots).step_by(GROUP_SLOTS as usize).zip(WRITING_WORDS..);
        let busy = groups.filter(|(_, word)| self.words.load(*word) > 0);
        let end = |first: u32| slots.min(first.saturating_add(GROUP_SLOTS));
        let writing = |slot| match self.slot(slot) {
            SlotWord::Writing { generation, .. } => Some((slot, generation)),
            SlotWord::Blank | SlotWord::Free { .. } | SlotWord::Ready { .. } => None,
        };
        busy.flat_map(|(first, _)| first..end(first)).filter_map(writing).collect()
    }

    /// Slots of blocks that may have `key`, judged by its tag.
    pub(crate) fn candidates(&self, key: BlockKey) -> impl Iterator<Item = u32> {
        let wanted = tag(key);
        let tables = self.tables.all().take(self.tables_in_use());
        let searched = tables.flat_map(move |table| {
            let slots = table.probe(key).map(|slot| (slot, self.slot(slot)));
            slots.take_while(|(_, word)| !word.ends_search())
        });
        searched.filter_map(move |(slot, word)| match word {
            SlotWord::Writing { tag, .. } | SlotWord::Ready { tag, .. } if tag == wanted => {
                Some(slot)
            }
            _ => None,
        })
    }

    /// Where a new block with `key` goes.
    pub(crate) fn insert(&self, key: BlockKey) -> Insert {
        let mut outcome = Insert::Full;
        for (table, blocks) in self.tables.all().zip(BLOCKS_WORDS..) {
            if self.words.load(blocks) >= table.blocks_max() {
                continue;
            }
            let free = table.probe(key).find_map(|slot| match self.slot(slot) {
                SlotWord::Blank => Some(Insert::Into { slot, last: 0 }),
                SlotWord::Free { generation, .. } => Some(Insert::Into { slot, last: generation }),
                SlotWord::Writing { .. } | SlotWord::Ready { .. } => None,
            });
            if let Some(free) = free {
                return free;
            }
            outcome = Insert::Crowded;
        }
        outcome
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
        self.slot_at(self.slots()) + chunk as usize
    }

    /// Index of the first word of the bitmap of chunk `chunk`.
    pub(super) fn bitmap_at(&self, chunk: u32) -> usize {
        let first = bitmap_at(self.slots() as usize, &self.layout);
        first + chunk as usize * bitmap_words(&self.layout)
    }

    /// Index of the word of a descriptor.
    fn slot_at(&self, slot: u32) -> usize {
        slots_at(self.slots() as usize) + slot as usize
    }

    fn end(&self) -> usize {
        self.bitmap_at(self.layout.chunks())
    }

    /// Who of this host holds what: at most `most` holds.
    pub(super) fn holds(&self, most: u64) -> HoldTable<W>
    where
        W: Copy,
    {
        HoldTable::new(self.words, self.end(), most, self.share_slots)
    }

    /// The quotas of this host, behind a table of so many holds.
    pub(super) fn quotas(&self, holds: u64) -> QuotaTable<W>
    where
        W: Copy,
    {
        QuotaTable::new(self.words, self.end() + hold_table::words_needed(holds))
    }
}
