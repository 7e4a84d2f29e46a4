//! The heap's words in the host tier: heads of lists, and what a dying process leaves for the next.

use super::size::{CLASSES, SizeClass};
use cxl_shm::fabric::HostMemory;
use cxl_shm::host::{ApplicationWords, HostTier, OBJECT_WORDS};
use cxl_shm::units::{ChunkId, NODES_MAX, NodeId};

/// Lists of free runs: list *b* has those of 2^b to 2^(b+1) - 1 pages.
const RUN_LISTS: usize = 44;
/// Chunks that are remembered as built by this heap.
const KNOWN: usize = 64;

const REDO_OFFSET: usize = 0;
const REDO_ORIGIN: usize = 1;
const COLLECTED: usize = 2;
const REFUSED: usize = 3;
const SLOT_LISTS_AT: usize = 4;
const RUN_LISTS_AT: usize = SLOT_LISTS_AT + CLASSES;
const SENT_AT: usize = RUN_LISTS_AT + RUN_LISTS;
const RETIRED_AT: usize = SENT_AT + NODES_MAX as usize;
const KNOWN_AT: usize = RETIRED_AT + NODES_MAX as usize;

// The host tier keeps so many words for a heap, whatever the region.
const _: () = assert!((KNOWN_AT + KNOWN).next_multiple_of(8) == OBJECT_WORDS);

/// A list of pages, by the word of its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct List(usize);

impl List {
    /// Pages of a class that have a free slot.
    pub(super) fn slots(class: SizeClass) -> Self {
        Self(SLOT_LISTS_AT + class.index())
    }

    /// Free runs as long as one of `pages` pages, within a factor of two.
    pub(super) fn runs(pages: u64) -> Self {
        Self(RUN_LISTS_AT + (pages.max(1).ilog2() as usize).min(RUN_LISTS - 1))
    }

    /// The lists that may have a run of at least `pages` pages, shortest runs first.
    pub(super) fn runs_from(pages: u64) -> impl Iterator<Item = Self> {
        (Self::runs(pages).0..RUN_LISTS_AT + RUN_LISTS).map(Self)
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (SLOT_LISTS_AT..RUN_LISTS_AT + RUN_LISTS).map(Self)
    }
}

/// Where a free that is in progress came from: what is to be done besides freeing the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A free ring: its tail advances.
    Ring {
        /// Whose ring.
        sender: NodeId,
        /// Position in it.
        position: u64,
    },
    /// A root that was destroyed: its entry is to become free, once.
    Root {
        /// Which entry.
        entry: u16,
        /// Which of the roots that were there.
        sequence: u64,
    },
}

const LOW_BITS: u32 = 44;
const LOW: u64 = (1 << LOW_BITS) - 1;
const ROOT_BIT: u64 = 1 << 63;

impl Origin {
    /// The bits of a position that an origin remembers: more than a ring ever counts to while a
    /// free of it is in progress.
    pub(super) const POSITION_MASK: u64 = LOW;

    fn word(self) -> u64 {
        match self {
            Self::Ring { sender, position } => u64::from(sender.0) << LOW_BITS | position & LOW,
            Self::Root { entry, sequence } => {
                ROOT_BIT | u64::from(entry) << LOW_BITS | sequence & LOW
            }
        }
    }

    fn from_word(word: u64) -> Self {
        let high = u16::try_from((word & !ROOT_BIT) >> LOW_BITS & 0xffff).unwrap_or(0);
        if word & ROOT_BIT == 0 {
            Self::Ring { sender: NodeId(high), position: word & LOW }
        } else {
            Self::Root { entry: high, sequence: word & LOW }
        }
    }
}

/// The words.
#[derive(Debug)]
pub(crate) struct HeapWords<'t, H>(ApplicationWords<'t, H>);

impl<'t, H: HostMemory> HeapWords<'t, H> {
    /// Those of the host.
    pub(crate) fn of(tier: &'t HostTier<H>) -> Self {
        Self(tier.object_words())
    }

    fn get(&self, index: usize) -> u64 {
        self.0.load(index)
    }

    fn set(&self, index: usize, value: u64) {
        self.0.store(index, value);
    }

    /// First page of a list, plus one; 0 when it is empty.
    pub(super) fn head(&self, list: List) -> u64 {
        self.get(list.0)
    }

    pub(super) fn set_head(&self, list: List, page: u64) {
        self.set(list.0, page);
    }

    /// Whether `chunk` is remembered as one of this heap's.
    pub(super) fn knows(&self, chunk: ChunkId) -> bool {
        self.get(known_at(chunk)) == u64::from(chunk.0) + 1
    }

    pub(super) fn learn(&self, chunk: ChunkId) {
        self.set(known_at(chunk), u64::from(chunk.0) + 1);
    }

    pub(super) fn forget(&self, chunk: ChunkId) {
        self.set(known_at(chunk), 0);
    }

    /// How many frees this host has sent to `receiver`; `None` when no process of it knows yet.
    pub(super) fn sent(&self, receiver: NodeId) -> Option<u64> {
        self.get(SENT_AT + receiver.index()).checked_sub(1)
    }

    pub(super) fn set_sent(&self, receiver: NodeId, sent: Option<u64>) {
        self.set(SENT_AT + receiver.index(), sent.map_or(0, |sent| sent.wrapping_add(1)));
    }

    /// How many roots of ours `sender` said it had destroyed when we last looked.
    pub(crate) fn retired_seen(&self, sender: NodeId) -> u64 {
        self.get(RETIRED_AT + sender.index())
    }

    pub(crate) fn set_retired_seen(&self, sender: NodeId, retired: u64) {
        self.set(RETIRED_AT + sender.index(), retired);
    }

    /// Says what is being freed and why, before it is done. Offset last: it makes it count.
    pub(super) fn begin_redo(&self, offset: u64, origin: Origin) {
        self.set(REDO_ORIGIN, origin.word());
        self.set(REDO_OFFSET, offset);
    }

    pub(super) fn end_redo(&self) {
        self.set(REDO_OFFSET, 0);
    }

    /// What a process that died in the heap was freeing.
    pub(super) fn redo(&self) -> Option<(u64, Origin)> {
        let offset = self.get(REDO_OFFSET);
        (offset != 0).then(|| (offset, Origin::from_word(self.get(REDO_ORIGIN))))
    }

    /// Whether `origin` is the root whose object is freed and whose entry may not say so yet.
    pub(super) fn is_collected(&self, origin: Origin) -> bool {
        self.get(COLLECTED) == origin.word()
    }

    /// Whether there is such a root, of a process that died since it freed the object.
    pub(crate) fn has_collected(&self) -> bool {
        self.get(COLLECTED) != 0
    }

    pub(super) fn set_collected(&self, origin: Option<Origin>) {
        self.set(COLLECTED, origin.map_or(0, Origin::word));
    }

    /// Frees of other hosts that named nothing that could be freed.
    pub(super) fn refused(&self) -> u64 {
        self.get(REFUSED)
    }

    pub(super) fn count_refused(&self) {
        self.set(REFUSED, self.refused().wrapping_add(1));
    }
}

fn known_at(chunk: ChunkId) -> usize {
    KNOWN_AT + chunk.0 as usize % KNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_survive_their_word() {
        let ring = Origin::Ring { sender: NodeId(31), position: 12_345 };
        let root = Origin::Root { entry: 255, sequence: 9 };
        for origin in [ring, root] {
            assert_eq!(Origin::from_word(origin.word()), origin);
        }
    }

    #[test]
    fn runs_of_any_length_have_a_list() {
        for pages in [1, 2, 3, 4, 1 << 36, u64::MAX] {
            assert!(List::runs_from(pages).count() >= 1);
            assert!(List::all().any(|list| list == List::runs(pages)));
        }
    }
}
