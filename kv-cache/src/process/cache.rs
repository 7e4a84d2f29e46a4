//! The cache as one thread of one process uses it.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::host::{MembershipLost, ProcessSlot};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::NodeId;

use super::ProcessState;
use crate::format::{Areas, CacheGeometry, PeerSegment};
use crate::heap::{Heap, LockedHeap};

/// What the heap of a node holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapUse {
    /// Descriptors in use.
    pub blocks: u64,
    /// Descriptors in all.
    pub slots: u32,
    /// Bytes of payload slots that are free.
    pub free_bytes: u64,
}

/// The cache, through one member: publish, lookup, fetch.
///
/// Like the member it is not shared between threads. Threads of a process each have their own,
/// and share what the process knows ([`attach_beside`](Self::attach_beside)). A member attaches
/// at most one cache at a time: attaching another frees what the first was writing, and drops what
/// it held. Clones are the same cache.
#[derive(Debug)]
pub struct Cache<'m, B: Backend> {
    member: &'m Member<B>,
    areas: Areas,
    heap: Heap<'m, B>,
    process_state: Arc<ProcessState>,
}

/// A cache that a member has attached, apart from the member: for an owner of both.
#[derive(Clone, Debug)]
pub struct AttachedCache {
    process: ProcessSlot,
    process_state: Arc<ProcessState>,
}

impl AttachedCache {
    /// The cache itself. Reads and writes nothing.
    ///
    /// # Panics
    /// When another member attached it.
    #[must_use]
    pub fn through<'m, B: Backend>(&self, member: &'m Member<B>) -> Cache<'m, B> {
        assert_eq!(self.process, member.process(), "the cache of another member");
        Cache::new(member, Arc::clone(&self.process_state))
    }

    /// What the process knows, as [`Cache::process_state`].
    #[must_use]
    pub fn process_state(&self) -> &Arc<ProcessState> {
        &self.process_state
    }
}

impl<B: Backend> Clone for Cache<'_, B> {
    fn clone(&self) -> Self {
        Self::new(self.member, Arc::clone(&self.process_state))
    }
}

impl<'m, B: Backend> Cache<'m, B> {
    /// The cache through `member`, beside what `process_state` knows, with nothing read and nothing
    /// written.
    pub(crate) fn new(member: &'m Member<B>, process_state: Arc<ProcessState>) -> Self {
        Self {
            member,
            areas: process_state.areas,
            heap: Heap::new(member, process_state.areas),
            process_state,
        }
    }

    /// The cache through a member of a model, with nothing read and nothing written.
    #[cfg(feature = "verify")]
    pub(crate) fn carried(member: &'m Member<B>, areas: Areas) -> Self {
        Self::new(member, Arc::new(ProcessState::new(areas)))
    }

    /// The cache apart from its member, which has it again by [`AttachedCache::through`].
    #[must_use]
    pub fn attached(&self) -> AttachedCache {
        AttachedCache {
            process: self.member.process(),
            process_state: Arc::clone(&self.process_state),
        }
    }

    /// The member it works through.
    #[must_use]
    pub fn member(&self) -> &'m Member<B> {
        self.member
    }

    /// Whether this process still takes part. When it does not, that is noted in its metrics, and
    /// told once in the log. Asked before every operation.
    ///
    /// # Errors
    /// [`MembershipLost`]: for good. The processes of the host end, or leave, and attach anew.
    pub fn check_member(&self) -> Result<(), MembershipLost> {
        self.member.check_member().inspect_err(|lost| self.process_state.note_loss(*lost))
    }

    /// Sizes of the cache's metadata.
    #[must_use]
    pub fn geometry(&self) -> CacheGeometry {
        self.areas.geometry()
    }

    /// What the process knows, to be shared with its other threads, and its counters.
    #[must_use]
    pub fn process_state(&self) -> &Arc<ProcessState> {
        &self.process_state
    }

    /// The descriptor segment of a node, for tools. `None` when the region has no such node.
    #[must_use]
    pub fn segment(&self, node: NodeId) -> Option<PeerSegment> {
        self.areas.layout().node(node.0).map(|node| self.areas.segment(node))
    }

    /// What this node's heap holds.
    #[must_use]
    pub fn heap_use(&self, clock: &impl Clock) -> HeapUse {
        self.locked(clock, |heap| HeapUse {
            blocks: heap.directory.blocks(),
            slots: heap.directory.slots(),
            free_bytes: heap.directory.free_payload_bytes(),
        })
    }

    pub(crate) fn areas(&self) -> &Areas {
        &self.areas
    }

    pub(crate) fn heap(&self) -> &Heap<'m, B> {
        &self.heap
    }

    /// Carries out `change` under the heap lock (BLOCK-E1), after what this process had put off.
    pub(crate) fn locked<T>(
        &self,
        clock: &impl Clock,
        change: impl FnOnce(&mut LockedHeap<'m, B>) -> T,
    ) -> T {
        self.heap.locked(clock, |heap, swept| {
            self.process_state.catch_up(heap, swept);
            change(heap)
        })
    }
}
