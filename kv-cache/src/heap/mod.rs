//! The heap: this node's descriptors and payload slots, shared by the processes of the host.
//!
//! - **BLOCK-E1** A node writes its own area, and its directory, only under the heap lock of the
//!   host. No thread holds this lock while it waits for another host.
//! - **BLOCK-E2** The descriptors are the only truth. The directory says when a change begins and
//!   when it is complete. A thread that takes the lock and finds a change that was never completed
//!   (its process died, or panicked) rebuilds the directory from the descriptors: mark and sweep.
//!   It first writes back what only its caches hold of them.
//! - **BLOCK-E3** A block that was being written belongs to its process. When that process is dead,
//!   or belongs to an earlier life of the node, the block is freed. Complete blocks stay, whichever
//!   process wrote them.

mod closing;
mod directory;
mod free;
mod gone;
mod hold_table;
mod holds;
mod payload;
mod quota;
mod sweep;
mod tombstones;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{HostMemory, OwnedWord};
use cxl_shm::host::ApplicationWords;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::NodeId;

use crate::format::{Areas, OwnDirectives, OwnLog, OwnReaderWords, OwnSegment, OwnSummary};

pub(crate) use directory::{Directory, Insert, SlotWord, drive_table_at, tag};
pub(crate) use free::Claim;
pub(crate) use gone::once_each;
pub(crate) use hold_table::HoldTable;
pub(crate) use holds::{HOLDS_AT_ONCE, NotWritten, Release};
pub(crate) use payload::{ChunkUse, SlotSize};
pub(crate) use quota::{PIN_MS_MAX, PinEnds, QuotaTable, Share};
#[cfg(test)]
pub(crate) use tombstones::SearchedSlots;
pub(crate) use tombstones::{LinesOf, end_searches_at};

pub use quota::{PERCENT_MAX, QUOTAS_MAX, Quota, TooManyQuotas};

/// This process's way to the heap of its node.
#[derive(Debug)]
pub(crate) struct Heap<'m, B: Backend> {
    member: &'m Member<B>,
    areas: Areas,
}

/// The heap, locked: no other process or thread of the host changes it.
#[derive(Debug)]
pub(crate) struct LockedHeap<'m, B: Backend> {
    pub(crate) member: &'m Member<B>,
    pub(crate) directory: Directory<ApplicationWords<'m, B::HostMemory>>,
    pub(crate) areas: Areas,
    pub(crate) segment: OwnSegment,
    pub(crate) log: OwnLog,
    /// How many tables of the segment are in use (INDEX-S5).
    pub(crate) tables_used: OwnedWord,
    pub(crate) reader_words: OwnReaderWords,
    pub(crate) directives: OwnDirectives,
    pub(crate) summary: OwnSummary,
    pub(crate) holds: HoldTable<ApplicationWords<'m, B::HostMemory>>,
    pub(crate) quotas: QuotaTable<ApplicationWords<'m, B::HostMemory>>,
    /// A change could not be completed: the next to take the lock sweeps.
    doubtful: bool,
    /// Complete blocks that left under this lock, and were not taken yet.
    left: Moved,
    /// Complete blocks that a sweep under this lock has found.
    swept: Option<Moved>,
}

/// Complete blocks, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl<'m, B: Backend> Heap<'m, B> {
    pub(crate) fn new(member: &'m Member<B>, areas: Areas) -> Self {
        Self { member, areas }
    }

    /// Carries out `change` under the heap lock, on a directory that is right. `change` is told how
    /// many blocks were freed when the directory had to be built anew.
    pub(crate) fn locked<T>(
        &self,
        clock: &impl Clock,
        change: impl FnOnce(&mut LockedHeap<'m, B>, Option<u64>) -> T,
    ) -> T {
        let guard = self.member.lock_heap(clock);
        let mut heap = self.unguarded();
        let doubtful = heap.directory.is_doubtful(self.member.incarnation());
        heap.directory.set_changing(true);
        let swept = (doubtful || guard.recovered()).then(|| {
            let freed = heap.sweep();
            heap.recount_holds();
            tracing::info!(node = %heap.node(), freed, "rebuilt the heap's directory");
            freed
        });
        heap.release_unheld();
        let outcome = change(&mut heap, swept);
        // After a panic this is not reached (BLOCK-E2).
        heap.directory.set_changing(heap.doubtful);
        drop(guard);
        outcome
    }

    /// Whether the host tier has the words and the format that the directory needs.
    pub(crate) fn claim_format(&self, clock: &impl Clock) -> bool {
        let _guard = self.member.lock_heap(clock);
        let needed = self.areas.geometry().host_words(self.areas.layout());
        let heap = self.unguarded();
        self.member.application().words() >= needed && heap.directory.claim_format()
    }

    pub(crate) fn member(&self) -> &'m Member<B> {
        self.member
    }

    /// Whether a process of this life of the node has built the directory.
    pub(crate) fn is_built(&self, clock: &impl Clock) -> bool {
        let _guard = self.member.lock_heap(clock);
        self.unguarded().directory.is_built_in(self.member.incarnation())
    }

    fn unguarded(&self) -> LockedHeap<'m, B> {
        let (member, areas) = (self.member, self.areas);
        let directory = Directory::new(member.application(), areas.geometry(), *areas.layout());
        LockedHeap {
            member,
            areas,
            directory,
            reader_words: areas.own_reader_words(member.area()),
            directives: areas.own_directives(member.area()),
            summary: areas.own_summary(member.area()),
            holds: directory.holds(areas.holds_max()),
            quotas: directory.quotas(areas.holds_max()),
            segment: areas.own_segment(member.node(), member.area()),
            log: areas.own_log(member.area()),
            tables_used: areas.own_tables_word(member.area()),
            doubtful: false,
            left: Moved::default(),
            swept: None,
        }
    }
}

impl<B: Backend> LockedHeap<'_, B> {
    pub(crate) fn fabric(&self) -> &B::Fabric {
        self.member.fabric()
    }

    pub(crate) fn node(&self) -> NodeId {
        self.segment.node()
    }

    /// The complete blocks that have left since the last call.
    pub(crate) fn take_left(&mut self) -> Moved {
        std::mem::take(&mut self.left)
    }

    /// The complete blocks that a sweep has found; `None` when there was none since the last call.
    pub(crate) fn take_swept(&mut self) -> Option<Moved> {
        self.swept.take()
    }
}
