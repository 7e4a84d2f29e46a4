//! The cache as one thread of one process uses it.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::host::{MembershipLost, ProcessSlot};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::NodeId;

use super::figures::count_moved;
use super::{HostFigures, Latency, Metrics, ProcessState};
use crate::format::{Areas, CacheGeometry, PeerSegment};
use crate::heap::{ChunkUse, Heap, LockedHeap};

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

/// What the pool has of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    /// Blocks that can be read.
    pub ready_blocks: u64,
    /// Blocks that are being written.
    pub writing_blocks: u64,
    /// Most blocks that the node's descriptors allow.
    pub blocks_max: u64,
    /// Bytes of the payload slots that blocks take, in whole pages of 4 KiB.
    pub used_bytes: u64,
    /// Bytes of the payload slots that are free.
    pub free_bytes: u64,
    /// Chunks that the node owns for blocks.
    pub chunks: u64,
    /// Chunks of those in which no slot is taken.
    pub empty_chunks: u64,
    /// Chunks of those in which every slot is taken.
    pub full_chunks: u64,
    /// Holds of processes of this host that are in force: one for each process and block.
    pub holds: u64,
    /// Most holds that the host's table has room for.
    pub holds_max: u64,
}

/// What prefetches did: blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefetchCounts {
    /// They asked for, now or later.
    pub asked: u64,
    /// Of those: came into the pool.
    pub restored: u64,
    /// Of those: did not come before the deadline, or before a lookup asked itself.
    pub late: u64,
    /// Of those: the agent refused for another reason.
    pub refused: u64,
    /// Of those: were not wanted any more before they came.
    pub cancelled: u64,
    /// Of those that came: a lookup found since.
    pub used: u64,
    /// A lookup wanted while they were under way.
    pub joined: u64,
    /// Were not asked for, because too many others were under way.
    pub full: u64,
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

    /// As [`check_member`](Self::check_member), after reads: whether they read the region at all
    /// (FAULT-F7).
    ///
    /// # Errors
    /// [`MembershipLost`]: nothing that was read counts.
    pub(crate) fn check_reads(&self) -> Result<(), MembershipLost> {
        self.member.check_reads().inspect_err(|lost| self.process_state.note_loss(*lost))
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

    /// What the processes of this host have done together.
    #[must_use]
    pub fn host_figures(&self) -> HostFigures<'m, B> {
        HostFigures::of(self.member)
    }

    /// Counts a call of this kind that began at `began_us` of `clock`.
    pub fn took(&self, latency: Latency, began_us: u64, clock: &impl Clock) {
        self.host_figures().took(latency, clock.now_us().saturating_sub(began_us));
    }

    /// Counts for this process, and for its host: with the lines that this thread has moved.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Metrics)) {
        self.member.count_moved_lines();
        let mut counted = Metrics::default();
        count(&mut counted);
        self.host_figures().add(&mut counted);
        self.process_state.add(&mut counted);
    }

    /// Notes that blocks left because the node's descriptors are used up, while the pool may have
    /// room for their bytes: in the metrics, and the first time in the log.
    pub(crate) fn note_evicted_for_descriptors(&self, evicted: u64, most: u64) {
        let is_first = evicted > 0 && self.process_state.own_metrics().evicted_for_descriptors == 0;
        self.count(|metrics| metrics.evicted_for_descriptors += evicted);
        if is_first {
            tracing::warn!(
                most,
                "this node evicts blocks because it has no descriptors left, whatever room the \
                 pool has; format the region with a smaller `--block`, or publish larger blocks"
            );
        }
    }

    /// Counts fetches into memory of a GPU, which were counted as fetches: blocks, and their bytes.
    pub fn count_gpu_fetched(&self, blocks: u64, bytes: u64) {
        self.count(|metrics| {
            (metrics.gpu_fetched_blocks, metrics.gpu_fetched_bytes) = (blocks, bytes);
        });
    }

    /// Counts publishes out of memory of a GPU, which were counted as publishes: blocks, and their
    /// bytes.
    pub fn count_gpu_published(&self, blocks: u64, bytes: u64) {
        self.count(|metrics| {
            (metrics.gpu_published_blocks, metrics.gpu_published_bytes) = (blocks, bytes);
        });
    }

    /// Counts a lookup that waited for `on_drives` blocks on drives, of which it got `restored`.
    pub fn count_restores(&self, on_drives: usize, restored: usize) {
        self.count(|metrics| {
            metrics.drive_blocks += on_drives as u64;
            metrics.restored_blocks += restored as u64;
        });
    }

    /// Counts what prefetches did since the last call.
    pub fn count_prefetches(&self, counts: &PrefetchCounts) {
        if *counts == PrefetchCounts::default() {
            return;
        }
        self.count(|metrics| {
            metrics.prefetch_asked_blocks = counts.asked;
            metrics.prefetch_restored_blocks = counts.restored;
            metrics.prefetch_late_blocks = counts.late;
            metrics.prefetch_refused_blocks = counts.refused;
            metrics.prefetch_cancelled_blocks = counts.cancelled;
            metrics.prefetch_used_blocks = counts.used;
            metrics.prefetch_joined_blocks = counts.joined;
            metrics.prefetch_full_blocks = counts.full;
        });
    }

    /// Counts one layer of blocks that was read alone: of `right` blocks, `bytes` in all; of `lost` ones
    /// it could not be read.
    pub fn count_streamed(&self, right: usize, bytes: u64, lost: usize) {
        self.count(|metrics| {
            metrics.streamed_blocks = right as u64;
            metrics.streamed_bytes = bytes;
            metrics.stream_lost_blocks = lost as u64;
        });
    }

    /// Counts layers for which an engine had to wait, and for how long.
    pub fn count_stream_waits(&self, waits: u64, wait_us: u64) {
        self.count(|metrics| (metrics.stream_waits, metrics.stream_wait_us) = (waits, wait_us));
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

    /// What the pool has of this node. Takes the heap lock for a look at one word a chunk.
    #[must_use]
    pub fn occupancy(&self, clock: &impl Clock) -> Occupancy {
        self.locked(clock, |heap| occupancy_of(heap))
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
            let mut found = count_moved(heap);
            self.process_state.add(&mut found);
            self.process_state.catch_up(heap, swept);
            let outcome = change(heap);
            self.process_state.add(&mut count_moved(heap));
            outcome
        })
    }
}

/// What the pool has of this node, under the heap lock.
pub(crate) fn occupancy_of<B: Backend>(heap: &LockedHeap<'_, B>) -> Occupancy {
    let (writing_blocks, uses) = (heap.directory.writing_blocks(), heap.directory.chunk_uses());
    let bytes = |slots: fn(&ChunkUse) -> u32| {
        uses.iter().map(|chunk| chunk.size.bytes() * u64::from(slots(chunk))).sum()
    };
    let chunks = |is: fn(&ChunkUse) -> bool| uses.iter().filter(|chunk| is(chunk)).count() as u64;
    Occupancy {
        ready_blocks: heap.directory.blocks().saturating_sub(writing_blocks),
        writing_blocks,
        blocks_max: heap.directory.blocks_max(),
        used_bytes: bytes(|chunk| chunk.slots.saturating_sub(chunk.free)),
        free_bytes: bytes(|chunk| chunk.free),
        chunks: uses.len() as u64,
        empty_chunks: chunks(|chunk| chunk.taken() == 0),
        full_chunks: chunks(|chunk| chunk.free == 0),
        holds: heap.holds.counted(),
        holds_max: heap.holds.capacity() as u64,
    }
}
