//! A member: this process as one of a node.

use std::cell::RefCell;

use super::agent::{Agent, OfficeWatch};
use super::backend::Backend;
use super::handle::NodeHandle;
use crate::clock::Clock;
use crate::fabric::{Fabric, OwnedArea, PeerArea};
use crate::fork::ProcessMark;
use crate::host::{
    ApplicationWords, Behind, HolderToken, HostAcquire, HostGuard, HostLock, HostLockName,
    HostQueue, Liveness, Living, LockFigures, LockKind, LossCause, MembershipLost, ProcessIdentity,
    ProcessSlot, wait_for_host_lock, wait_for_host_lock_until,
};
use crate::layout::{Layout, Superblock};
use crate::units::{ChunkId, Extent, Incarnation, NodeId};

/// This process as a member of a node: what it may write, and its way to the locks.
///
/// Not `Sync`: each thread that works on the pool has its own, made by [`Member::join`] again or
/// by a process of its own.
///
/// # Example
/// ```
/// use cxl_shm::clock::SystemClock;
/// use cxl_shm::fabric::{Fabric, HostMemory};
/// use cxl_shm::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
/// use cxl_shm::layout::{Geometry, Superblock, format_superblock};
/// use cxl_shm::node::Member;
/// use cxl_shm::verify::SimulatedBackend;
/// use cxl_shm::verify::simulated::SimulatedRack;
///
/// let geometry = Geometry {
///     region_bytes: 16 << 20, nodes: 2, locks: 16, chunk_bytes: 1 << 20, area_lines: 64,
///     host_words: 128,
/// };
/// let rack = SimulatedRack::sticky(2, geometry.region_bytes);
/// let superblock = Superblock::new([1, 2], geometry, [0; 6]);
/// format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
///
/// let memory = rack.host_memory(0, HostTier::words_of(&geometry));
/// let identity = HostIdentity::simulated(0);
/// let me = ProcessIdentity::current().unwrap();
/// let clock = SystemClock::start();
/// let member: Member<SimulatedBackend> =
///     Member::join(rack.host(0), memory, 0, &identity, me, ProcLiveness, &clock).unwrap();
/// assert_eq!(member.incarnation().0, 1);
/// member.leave();
/// ```
#[derive(Debug)]
pub struct Member<B: Backend> {
    pub(crate) fabric: B::Fabric,
    pub(crate) superblock: Superblock,
    pub(crate) handle: NodeHandle<B>,
    pub(crate) incarnation: Incarnation,
    pub(crate) process: ProcessSlot,
    pub(crate) identity: ProcessIdentity,
    pub(crate) token: HolderToken,
    pub(crate) liveness: B::Liveness,
    pub(crate) agent: RefCell<Agent>,
    pub(crate) office: RefCell<OfficeWatch>,
    /// In which process it is in the host's registry; `None` when it is not there.
    pub(crate) registered: Option<ProcessMark>,
}

impl<B: Backend> Member<B> {
    /// The memory of the region.
    #[must_use]
    pub fn fabric(&self) -> &B::Fabric {
        &self.fabric
    }

    /// Where everything is.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.handle.layout()
    }

    /// What the region is.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.handle.node()
    }

    /// Its incarnation.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// This process in the host's registry.
    #[must_use]
    pub fn process(&self) -> ProcessSlot {
        self.process
    }

    /// Whether the process in `slot` of this host's registry lives.
    #[must_use]
    pub fn is_process_alive(&self, slot: ProcessSlot) -> bool {
        self.handle.tier().process(slot).is_some_and(|identity| self.liveness.is_alive(identity))
    }

    /// Whether the thread that `token` names is in this host's registry, and its process lives.
    #[must_use]
    pub fn is_token_alive(&self, token: HolderToken) -> bool {
        self.handle.tier().is_holder_alive(token, &self.liveness)
    }

    /// The processes of this host.
    #[must_use]
    pub fn processes(&self) -> Vec<(ProcessSlot, ProcessIdentity)> {
        self.handle.tier().processes().collect()
    }

    /// This node's own area of the region, for the layer above. The processes of the host agree
    /// on who writes by [`Self::lock_heap`].
    #[must_use]
    pub fn area(&self) -> OwnedArea {
        self.handle.area()
    }

    /// The area of any node, to be read.
    ///
    /// # Panics
    /// When the region has no such node.
    #[must_use]
    pub fn peer_area(&self, node: NodeId) -> PeerArea {
        self.layout().area(node)
    }

    /// The words of the host tier in which the layer above counts what the processes of this host
    /// do, beginning at a pair of cache lines. They are zero when the host joins.
    #[must_use]
    pub fn figures(&self) -> ApplicationWords<'_, B::HostMemory> {
        self.handle.tier().figures()
    }

    /// How the processes of this host came to locks of this kind, since the host joined.
    #[must_use]
    pub fn lock_figures(&self, kind: LockKind) -> LockFigures {
        self.handle.tier().lock_counters(kind).figures()
    }

    /// The layer above's words in the host tier.
    #[must_use]
    pub fn application(&self) -> ApplicationWords<'_, B::HostMemory> {
        self.handle.tier().application()
    }

    /// The host lock of this node's area and chunks. Waits for other threads and processes of
    /// this host only; a dead holder is recovered from, not waited for.
    pub fn lock_heap(&self, clock: &impl Clock) -> HostGuard<'_, B::HostMemory> {
        self.lock_host(HostLockName::Heap, clock)
    }

    #[doc(hidden)]
    /// A host lock. Waits for other threads and processes of this host only, first come, first
    /// served (rule LOCK-Q5); a dead holder is recovered from, not waited for.
    pub fn lock_host(
        &self,
        name: HostLockName,
        clock: &impl Clock,
    ) -> HostGuard<'_, B::HostMemory> {
        let recovered = self.wait_counted(name, clock, |queue| {
            Some(wait_for_host_lock(queue, self.token, self, clock))
        });
        let recovered = recovered.expect("a wait without an end ends with the lock");
        HostGuard::new(self.handle.tier().host_lock(name), self.token, recovered)
    }

    #[doc(hidden)]
    /// As [`Self::lock_host`], and gives up with `None` at `until_ms` of `clock`.
    pub fn lock_host_until(
        &self,
        name: HostLockName,
        clock: &impl Clock,
        until_ms: u64,
    ) -> Option<HostGuard<'_, B::HostMemory>> {
        let recovered = self.wait_counted(name, clock, |queue| {
            wait_for_host_lock_until(queue, self.token, self, clock, until_ms)
        })?;
        Some(HostGuard::new(self.handle.tier().host_lock(name), self.token, recovered))
    }

    /// Takes a host lock, by `wait` where it is not free or others wait for it. Counts that.
    fn wait_counted(
        &self,
        name: HostLockName,
        clock: &impl Clock,
        wait: impl FnOnce(&HostQueue<'_, B::HostMemory>) -> Option<bool>,
    ) -> Option<bool> {
        let tier = self.handle.tier();
        let (queue, kind) = (tier.host_queue(name), LockKind::of_host(name));
        let counters = kind.map(|kind| tier.lock_counters(kind));
        if queue.take_unwaited(self.token) {
            counters.inspect(|counters| counters.acquired(0, None));
            return Some(false);
        }
        let began_us = clock.figure_us();
        let recovered = wait(&queue);
        if let Some(counters) = counters {
            match recovered {
                Some(_) => {
                    let took_us = clock.figure_us().saturating_sub(began_us);
                    counters.acquired(took_us, Some(Behind::Host));
                }
                None => counters.timed_out(),
            }
        }
        recovered
    }

    #[doc(hidden)]
    /// A host lock, if no living process has it. Does not look for waiters: to be called now and
    /// then, not again and again.
    pub fn try_lock_host(&self, name: HostLockName) -> Option<HostGuard<'_, B::HostMemory>> {
        let lock = self.handle.tier().host_lock(name);
        let recovered = match self.try_host_lock(&lock) {
            HostAcquire::Busy => return None,
            HostAcquire::Acquired => false,
            HostAcquire::Recovered => true,
        };
        Some(HostGuard::new(lock, self.token, recovered))
    }

    /// Takes note that programs of this host may write in `extent` from now on, under a program's
    /// lock say, until the host leaves. Allocating an object and taking one over do this; the call
    /// is for a program that works with addresses. After a death inside a lock all of it is moved
    /// to the device (LOCK-L5 in [`crate::lock`]). What lies outside the chunks is ignored.
    pub fn may_write(&self, extent: Extent) {
        let layout = self.layout();
        let at = |offset| Extent::new(offset, 1).and_then(|byte| layout.chunk_of(byte));
        let last = extent.end().saturating_sub(1);
        let (Some(first), Some(last)) = (at(extent.offset()), at(last)) else { return };
        for chunk in (first.0..=last.0).map(ChunkId) {
            self.handle.tier().note_written(chunk, layout.chunks());
        }
    }

    /// Whether this node still takes part, and this process as one of it: cheap, a word of the host's
    /// DRAM and one of the process. Asked before every operation that writes to the region.
    ///
    /// # Errors
    /// [`MembershipLost`]: for good; the processes of the host end, and join again.
    pub fn check_member(&self) -> Result<(), MembershipLost> {
        if self.fabric.is_cut_off() {
            return Err(MembershipLost { node: self.node(), cause: LossCause::MemoryFailed });
        }
        match self.handle.tier().loss() {
            Some(cause) => Err(MembershipLost { node: self.node(), cause }),
            None => Ok(()),
        }
    }

    /// As [`Self::check_member`], after reads: whether they read the region at all (FAULT-F7). A word of
    /// the process. What else ends a membership is found before the next operation.
    ///
    /// # Errors
    /// [`MembershipLost`]: nothing that was read counts.
    pub fn check_reads(&self) -> Result<(), MembershipLost> {
        if self.fabric.is_cut_off() { self.check_member() } else { Ok(()) }
    }

    /// Whether an operator has confirmed that life `incarnation` of `node` is over.
    pub(crate) fn is_confirmed_off(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.handle.tier().is_confirmed_off(node, incarnation)
    }

    #[doc(hidden)]
    pub fn node_handle(&self) -> &NodeHandle<B> {
        &self.handle
    }

    /// Names this process in its host's registry. No other process ever has the same token.
    #[must_use]
    pub fn token(&self) -> HolderToken {
        self.token
    }

    pub(crate) fn try_host_lock(&self, lock: &HostLock<'_, B::HostMemory>) -> HostAcquire {
        lock.try_acquire(self.token, |holder| self.holds(holder))
    }
}

impl<B: Backend> Living for Member<B> {
    fn holds(&self, token: HolderToken) -> bool {
        self.handle.tier().is_holder_alive(token, &self.liveness)
    }

    fn waits(&self, slot: ProcessSlot) -> bool {
        self.is_process_alive(slot)
    }
}

impl<B: Backend> Drop for Member<B> {
    /// One that is dropped without having left no longer counts as a process of the host; the node
    /// stays joined. Dropped by a child made by `fork`, it stays its parent's.
    fn drop(&mut self) {
        self.unregister();
    }
}

impl<B: Backend> Member<B> {
    /// Whether this is a child, made by `fork`, of the process that became a member: what it has of
    /// the member is its parent's.
    pub(crate) fn is_forked(&self) -> bool {
        self.registered.is_some_and(|process| !process.is_of_this())
    }

    pub(crate) fn unregister(&mut self) {
        // In a child made by `fork` it is the parent's.
        if self.registered.take().is_some_and(ProcessMark::is_of_this) {
            self.handle.tier().host_lock(HostLockName::Agent).release(self.token);
            self.handle.tier().unregister(self.process, self.identity);
        }
    }
}
