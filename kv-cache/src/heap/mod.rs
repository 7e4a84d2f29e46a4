//! The heap: this node's descriptors and payload slots, shared by the processes of the host.
//!
//! - **E1** Everything a node writes of its own area, and its directory, is written under the heap
//!   lock of the host. It is never held while waiting for another host.
//! - **E2** The descriptors are the only truth. The directory says when a change begins and when
//!   it is complete; whoever takes the lock and finds a change that was never completed (its
//!   process died, or panicked) builds the directory anew from the descriptors: mark and sweep.
//!   What its caches alone hold of them is written back first.
//! - **E3** A block that was being written belongs to its process. When that is dead, or from an
//!   earlier life of the node, the block is freed. Complete blocks stay, whoever wrote them.

mod directory;
mod free;
mod payload;
mod sweep;
mod tombstones;

use std::sync::{Mutex, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::{ApplicationWords, Liveness, Member};
use cxl_shm::units::NodeId;

use crate::area::Areas;
use crate::evict::QuotaTable;
use crate::hold::HoldTable;
use crate::local::Local;
use crate::log::OwnLog;
use crate::segment::OwnSegment;
use crate::stamp::OwnStamps;
pub(crate) use directory::{Directory, Insert, SlotWord, tag, words_needed};
pub(crate) use payload::{ChunkUse, SlotSize};

/// This process's way to the heap of its node.
#[derive(Debug)]
pub(crate) struct Heap<'m, F, H: HostMemory, L> {
    member: &'m Member<F, H, L>,
    areas: Areas,
}

/// The heap, locked: no other process or thread of the host changes it.
#[derive(Debug)]
pub(crate) struct LockedHeap<'m, F, H: HostMemory, L> {
    pub(crate) member: &'m Member<F, H, L>,
    pub(crate) directory: Directory<ApplicationWords<'m, H>>,
    pub(crate) areas: Areas,
    pub(crate) segment: OwnSegment,
    pub(crate) log: OwnLog,
    pub(crate) stamps: OwnStamps,
    pub(crate) holds: HoldTable<ApplicationWords<'m, H>>,
    pub(crate) quotas: QuotaTable<ApplicationWords<'m, H>>,
    /// A change could not be completed: the next to take the lock sweeps.
    doubtful: bool,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> Heap<'m, F, H, L> {
    pub(crate) fn new(member: &'m Member<F, H, L>, areas: Areas) -> Self {
        Self { member, areas }
    }

    /// Carries out `change` under the heap lock, on a directory that is right.
    pub(crate) fn locked<T>(
        &self,
        local: &Local,
        clock: &impl Clock,
        change: impl FnOnce(&mut LockedHeap<'m, F, H, L>) -> T,
    ) -> T {
        let guard = self.member.lock_heap(clock);
        let mut heap = self.unguarded();
        let doubtful = heap.directory.is_doubtful(self.member.incarnation());
        heap.directory.set_changing(true);
        if doubtful || guard.recovered() {
            let freed = heap.sweep();
            heap.settle_holds();
            tracing::info!(node = %heap.node(), freed, "built the heap's directory anew");
            local.count(|metrics| {
                metrics.sweeps += 1;
                metrics.reclaimed_blocks += freed;
            });
        }
        heap.settle_stamps();
        let abandoned = take(&local.abandoned);
        let freed = heap.free_writing(abandoned);
        let released = heap.release_holds(&take(&local.released));
        local.count(|metrics| {
            metrics.aborted_blocks += freed;
            metrics.released_blocks += released;
        });
        if local.has_many_touches() {
            heap.flush_touches(local);
        }
        let outcome = change(&mut heap);
        // After a panic this is not reached (E2).
        heap.directory.set_changing(heap.doubtful);
        drop(guard);
        outcome
    }

    /// Whether the host tier has the words and the format that the directory needs.
    pub(crate) fn claim_format(&self, clock: &impl Clock) -> bool {
        let _guard = self.member.lock_heap(clock);
        let needed = words_needed(self.areas.geometry(), self.areas.layout());
        let heap = self.unguarded();
        self.member.application().words() >= needed && heap.directory.claim_format()
    }

    pub(crate) fn member(&self) -> &'m Member<F, H, L> {
        self.member
    }

    /// Whether a process of this life of the node has built the directory.
    pub(crate) fn is_built(&self, clock: &impl Clock) -> bool {
        let _guard = self.member.lock_heap(clock);
        self.unguarded().directory.is_built_in(self.member.incarnation())
    }

    fn unguarded(&self) -> LockedHeap<'m, F, H, L> {
        let (member, areas) = (self.member, self.areas);
        let directory = Directory::new(member.application(), areas.geometry(), *areas.layout());
        LockedHeap {
            member,
            areas,
            directory,
            stamps: areas.own_stamps(member.area()),
            holds: directory.holds(areas.all_slots()),
            quotas: directory.quotas(areas.all_slots()),
            segment: areas.own_segment(member.node(), member.area()),
            log: areas.own_log(member.area()),
            doubtful: false,
        }
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    pub(crate) fn fabric(&self) -> &F {
        self.member.fabric()
    }

    pub(crate) fn node(&self) -> NodeId {
        self.segment.node()
    }
}

/// What threads of the process have put on a list since it was last carried out.
fn take<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
}
