//! What the threads of a process share: the replica, the counters, the order in which blocks
//! leave, and what they have yet to tell the host: blocks that were dropped before they were
//! complete, holds that were dropped, blocks that were used. All in the process's own memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crossbeam_utils::CachePadded;
use cxl_shm::fabric::Fabric;
use cxl_shm::fork::ProcessMark;
use cxl_shm::host::MembershipLost;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, NodeId};

use super::failures::Failures;
use super::summary_turn::SummaryTurn;
use super::{DriveWatch, HostFigures, Metrics, OrphanWatch};
use crate::evict::Order;
use crate::format::{Areas, DIRECTIVES, Directive, Handle};
use crate::heap::{Claim, HOLDS_AT_ONCE, LockedHeap, PinEnds, Release};
use crate::replica::Replica;

/// This process's own knowledge of the pool. Shared by its threads, each of which works through a
/// [`Cache`](crate::Cache) of its own.
///
/// What threads lock apart lies in lines of caches apart: a copy that notes its uses, a lookup in the
/// replica and an eviction would else take the same line from one another.
#[derive(Debug)]
pub struct ProcessState {
    pub(crate) areas: Areas,
    /// Whose it is. A child made by `fork` has a copy of it, with the locks as the fork found them.
    process: ProcessMark,
    replica: CachePadded<Mutex<Replica>>,
    metrics: CachePadded<Mutex<Metrics>>,
    pub(crate) abandoned: CachePadded<Mutex<Vec<Claim>>>,
    pub(crate) released: CachePadded<Mutex<VecDeque<Release>>>,
    pub(crate) touched: CachePadded<Mutex<Vec<Handle>>>,
    order: CachePadded<Mutex<Order>>,
    pin_ends: Mutex<PinEnds>,
    /// The last directives that this process issued, by number.
    issued: Mutex<BTreeMap<u64, Directive>>,
    /// Nodes that nobody has the slot of, as this process sees them.
    pub(crate) orphans: Mutex<BTreeMap<NodeId, OrphanWatch>>,
    drive_watch: Mutex<DriveWatch>,
    summary_turn: Mutex<SummaryTurn>,
    failures: Failures,
}

impl ProcessState {
    pub(crate) fn new(areas: Areas) -> Self {
        let replica = CachePadded::new(Mutex::new(Replica::new(areas)));
        Self {
            areas,
            process: ProcessMark::of_this(),
            replica,
            metrics: CachePadded::default(),
            abandoned: CachePadded::default(),
            released: CachePadded::default(),
            touched: CachePadded::default(),
            order: CachePadded::default(),
            pin_ends: Mutex::default(),
            issued: Mutex::default(),
            orphans: Mutex::default(),
            drive_watch: Mutex::default(),
            summary_turn: Mutex::default(),
            failures: Failures::default(),
        }
    }

    /// Takes note that `release` is to be carried out. Does nothing in a child made by `fork`.
    pub(crate) fn put_off_release(&self, release: Release) {
        if self.process.is_of_this() {
            self.released.lock().unwrap_or_else(PoisonError::into_inner).push_back(release);
        }
    }

    /// Takes note that the block of `claim` is to be freed. Does nothing in a child made by `fork`.
    pub(crate) fn put_off_free(&self, claim: Claim) {
        if self.process.is_of_this() {
            self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
        }
    }

    /// Does under the heap lock what the threads of the process have put off until one has it, and
    /// counts what taking it has `swept`.
    pub(super) fn catch_up<B: Backend>(&self, heap: &mut LockedHeap<'_, B>, swept: Option<u64>) {
        let freed = heap.free_writing(take(&self.abandoned));
        let released = heap.release_holds(&self.next_releases());
        self.count(heap, |metrics| {
            metrics.sweeps += u64::from(swept.is_some());
            metrics.reclaimed_blocks += swept.unwrap_or(0);
            metrics.aborted_blocks += freed;
            metrics.released_blocks += released;
        });
        if self.has_many_touches() {
            self.flush_touches(heap);
        }
    }

    /// How often the heap lock is to be taken until all that was dropped so far is released.
    pub(crate) fn release_turns(&self) -> usize {
        let released = self.released.lock().unwrap_or_else(PoisonError::into_inner).len();
        released.div_ceil(HOLDS_AT_ONCE)
    }

    /// The holds that are released next: not more than keep the heap lock for a short time.
    fn next_releases(&self) -> Vec<Release> {
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        let part = released.len().min(HOLDS_AT_ONCE);
        let part = released.drain(..part).collect();
        if released.is_empty() {
            // A prompt may have been long.
            released.shrink_to(HOLDS_AT_ONCE);
        }
        part
    }

    /// What was counted so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let replica = self.replica();
        let (replica_blocks, replica_bytes) = (replica.blocks() as u64, replica.bytes() as u64);
        drop(replica);
        let mut metrics = *self.own_metrics();
        (metrics.replica_blocks, metrics.replica_bytes) = (replica_blocks, replica_bytes);
        metrics
    }

    /// The replica. A thread that panicked left it no worse than stale (INDEX-R1).
    pub(crate) fn replica(&self) -> MutexGuard<'_, Replica> {
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replica, unless another thread uses it: for the holder of the heap lock, for which the
    /// whole host waits, while a thread with the replica may be scanning segments.
    pub(crate) fn try_replica(&self) -> Option<MutexGuard<'_, Replica>> {
        match self.replica.try_lock() {
            Ok(replica) => Some(replica),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The order in which this node's blocks leave. Locked by the holder of the heap lock. A thread
    /// that panicked left it no worse than stale: what it proposes is checked.
    pub(crate) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When pins end, by the clock of this process.
    pub(crate) fn pin_ends(&self) -> MutexGuard<'_, PinEnds> {
        self.pin_ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the agent of this host lives, whose beat in the host's words is `beat` now.
    pub(crate) fn is_agent_alive(&self, beat: u64, now_ms: u64) -> bool {
        let mut watch = self.drive_watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.is_alive(beat, now_ms)
    }

    /// When this process tells the summary of its node.
    pub(crate) fn summary_turn(&self) -> MutexGuard<'_, SummaryTurn> {
        self.summary_turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a directive that this process issued, which may have to be written again.
    pub(crate) fn note_issued(&self, number: u64, directive: Directive) {
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        issued.insert(number, directive);
        issued.retain(|earlier, _| earlier.saturating_add(DIRECTIVES) > number);
    }

    /// Directive `number`, if this process issued it, and its line still says so.
    pub(crate) fn issued(&self, number: u64) -> Option<Directive> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied()
    }

    /// Notes that this process does not take part in the region any more: for its metrics, and with
    /// one line in the log. The first cause stays.
    pub(crate) fn note_loss(&self, lost: MembershipLost) {
        if self.own_metrics().lose(lost) {
            let (node, cause) = (lost.node, lost.cause.name());
            tracing::warn!(
                %node, cause,
                "this process lost its membership of the pool, and every call fails: {lost}"
            );
        }
    }

    /// Takes note of the chunks in which this process has lost payload, if there are new ones. Mostly
    /// there is none, which costs one word.
    pub(crate) fn note_lost<F: Fabric>(&self, fabric: &F) {
        self.failures.look(fabric, &self.areas);
    }

    /// Whether no payload is taken in `chunk` (FAULT-C3).
    pub(crate) fn is_failed(&self, chunk: ChunkId) -> bool {
        self.failures.has(chunk)
    }

    /// What this process knows of failed memory.
    pub(crate) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Counts under the heap lock, for this process and for its host.
    pub(crate) fn count<B: Backend>(
        &self,
        heap: &LockedHeap<'_, B>,
        count: impl FnOnce(&mut Metrics),
    ) {
        let mut counted = Metrics::default();
        count(&mut counted);
        HostFigures::of(heap.member).add(&mut counted);
        self.add(&mut counted);
    }

    /// Adds what was counted for the host already.
    pub(super) fn add(&self, counted: &mut Metrics) {
        self.own_metrics().add(counted);
    }

    pub(crate) fn own_metrics(&self) -> MutexGuard<'_, Metrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl ProcessState {
    /// As a child made by `fork` has it.
    pub(crate) fn in_child(areas: Areas) -> Self {
        Self { process: ProcessMark::default(), ..Self::new(areas) }
    }
}

/// What threads of the process have put on a list since it was last carried out.
fn take<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
}
