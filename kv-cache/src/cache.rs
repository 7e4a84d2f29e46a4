//! The cache as one thread of one process uses it.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::{Liveness, Member, MembershipLost};
use cxl_shm::units::NodeId;

use crate::area::Areas;
use crate::geometry::{CacheGeometry, GeometryError};
use crate::heap::{Heap, LockedHeap};
use crate::local::Local;
use crate::reclaim::reclaim_dead_processes;
use crate::segment::PeerSegment;
use crate::ward::{BeingEmptied, settle_ward};

/// Why a member cannot use the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachError {
    /// The region is not a cache, or one of another version.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Another host is at what this node published in an earlier life.
    #[error(transparent)]
    BeingEmptied(#[from] BeingEmptied),
    /// The host tier is too small, or another version's.
    #[error(
        "the host tier has {words} words for the cache, which needs {needed_words}, or was made \
         by another version; stop all processes of this host that use the region, and start again"
    )]
    HostTier {
        /// Words that it has.
        words: usize,
        /// Words that are needed.
        needed_words: usize,
    },
}

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
/// and share what the process knows ([`attach_beside`](Self::attach_beside)). A member has at most
/// one cache at a time: a new one frees what an earlier one was writing, and drops what it held.
#[derive(Debug)]
pub struct Cache<'m, F, H: HostMemory, L> {
    member: &'m Member<F, H, L>,
    areas: Areas,
    heap: Heap<'m, F, H, L>,
    local: Arc<Local>,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> Cache<'m, F, H, L> {
    /// The cache through `member`, with a replica of its own.
    ///
    /// The first one in a life of the node takes over what the node published in earlier lives.
    /// Reads the segments of all nodes, to know what is in the pool.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is changed then.
    pub fn attach(member: &'m Member<F, H, L>, clock: &impl Clock) -> Result<Self, AttachError> {
        let layout = *member.layout();
        let region = layout.geometry();
        let application = member.superblock().application;
        let geometry = CacheGeometry::decode(application, region.nodes, region.area_lines)?;
        let local = Arc::new(Local::new(Areas::new(layout, geometry)));
        Self::attach_beside(member, clock, local)
    }

    /// As [`attach`](Self::attach), for a further thread of the process that made `local`: of the
    /// same region.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is changed then.
    pub fn attach_beside(
        member: &'m Member<F, H, L>,
        clock: &impl Clock,
        local: Arc<Local>,
    ) -> Result<Self, AttachError> {
        let areas = local.areas;
        let heap = Heap::new(member, areas);
        if !heap.claim_format(clock) {
            let words = member.application().words();
            let needed_words = areas.geometry().host_words(areas.layout());
            return Err(AttachError::HostTier { words, needed_words });
        }
        heap.come_home(clock)?;
        let cache = Self { member, areas, heap, local };
        // N1: from here on holds, descriptors and a chunk that is given back name our place.
        member.name_place();
        // Another cache of this member, which is gone.
        settle_ward(member, clock);
        let me = member.process();
        let freed = cache.locked(clock, |heap| {
            heap.drop_holds_of(|process| process == me);
            heap.free_writing_of(|process| process == me)
        });
        cache.local.count(|metrics| metrics.reclaimed_blocks += freed);
        // Whoever left before us, where nobody stays who does so now and then.
        let freed = reclaim_dead_processes(member, clock);
        cache.local.count(|metrics| metrics.reclaimed_blocks += freed);
        cache.sync();
        Ok(cache)
    }

    /// The cache through a member of a model, with nothing read and nothing written.
    #[cfg(any(test, feature = "proof"))]
    pub(crate) fn carried(member: &'m Member<F, H, L>, areas: Areas) -> Self {
        Self { member, areas, heap: Heap::new(member, areas), local: Arc::new(Local::new(areas)) }
    }

    /// The member it works through.
    #[must_use]
    pub fn member(&self) -> &'m Member<F, H, L> {
        self.member
    }

    /// Whether this process still takes part. When it does not, that is noted in its metrics, and
    /// told once in the log. Asked before every operation.
    ///
    /// # Errors
    /// [`MembershipLost`]: for good. The processes of the host end, or leave, and attach anew.
    pub fn check_member(&self) -> Result<(), MembershipLost> {
        self.member.check_member().inspect_err(|lost| self.local.note_loss(*lost))
    }

    /// Sizes of the cache's metadata.
    #[must_use]
    pub fn geometry(&self) -> CacheGeometry {
        self.areas.geometry()
    }

    /// What the process knows, to be shared with its other threads, and its counters.
    #[must_use]
    pub fn local(&self) -> &Arc<Local> {
        &self.local
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

    /// Frees what processes of this host were writing that died or left, drops what they held, and takes
    /// in chunks that they had allocated and not yet used. To be called before such a process is struck
    /// off the registry ([`Member::forget_process`]);
    /// [`reclaim_dead_processes`](crate::reclaim_dead_processes) does both. Returns how many blocks were freed.
    pub fn reap(&self, clock: &impl Clock) -> u64 {
        settle_ward(self.member, clock);
        let (freed, released) = self.locked(clock, |heap| heap.reap());
        self.local.count(|metrics| {
            metrics.reclaimed_blocks += freed;
            metrics.released_blocks += released;
        });
        freed
    }

    pub(crate) fn areas(&self) -> &Areas {
        &self.areas
    }

    pub(crate) fn locked<T>(
        &self,
        clock: &impl Clock,
        change: impl FnOnce(&mut LockedHeap<'m, F, H, L>) -> T,
    ) -> T {
        self.heap.locked(&self.local, clock, change)
    }
}
