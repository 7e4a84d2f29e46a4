//! Membership: hosts take node slots, processes share a host.
//!
//! The first process of a host joins its node slot under a new incarnation; further processes
//! register in the host tier. The last one to go leaves the slot. One process of each host, the
//! *agent*, beats the host's heart and follows the lock managers (G1 to G3 in `beat.rs`).

mod attach;
mod beat;
#[cfg(any(test, feature = "proof"))]
mod carried;
pub(crate) mod consensus;
mod deaths;
mod door;
pub(crate) mod estate;
mod fence;
mod hearts;
mod host_tier;
mod host_tier_file;
mod join;
mod life_lock;
mod loss;
mod manage;
mod node_death;
mod numbers;
mod places;
mod process;
mod recovery;
mod seat;
mod settle;
mod slot;
mod slot_watch;
mod stillness;
mod suspicion;
mod twin;

pub use attach::{AttachError, Attachment, LocalMember};
pub use beat::STALLED_BEATS;
pub use consensus::{
    Decision, Progress, Proposal, decided_about, is_declared_dead, membership_epoch,
};
pub use deaths::{DeathNews, Deaths};
#[cfg(any(test, feature = "proof"))]
pub(crate) use deaths::{Need, need_of};
#[cfg(any(test, feature = "proof"))]
pub(crate) use door::Visitor;
pub use estate::{Guardian, is_vacant};
pub use fence::{CommandFence, Fence, FenceOrder, FenceState, NoFence, ProcessFence};
pub use hearts::{NodeHeart, watch_hearts};
pub use host_tier::{ApplicationWords, HostLockName, HostTier};
pub use host_tier_file::{HOST_TIER_FOLDER, HostTierError, HostTierFile};
#[cfg(any(test, feature = "proof"))]
pub(crate) use join::{Attempt, Passed, attempt, move_in};
pub use join::{HostIdentity, JoinError, LeaveOutcome};
pub use loss::{LossCause, MembershipLost};
pub use manage::{Manage, ManageError, ManagerSeen};
pub use node_death::{NodeDeath, confirm_off_here};
pub use numbers::{EndingNumber, NumberUse};
pub use places::GoneProcess;
pub use process::{Liveness, PROCESSES_MAX, ProcLiveness, ProcessIdentity, ProcessSlot};
pub use recovery::RecoveryNews;
#[cfg(any(test, feature = "proof"))]
pub(crate) use recovery::{Recovery, Remembered, resign};
pub(crate) use seat::Seat;
pub(crate) use settle::{PART_LINES, Settling};
#[cfg(any(test, feature = "proof"))]
pub(crate) use settle::{settle_killed, settle_recovery};
#[cfg(any(test, feature = "proof"))]
pub(crate) use slot::Slot;
pub(crate) use slot::{is_freed, is_taken};
pub use stillness::{LOOK_GAP_MAX_MS, Stillness};
#[cfg(any(test, feature = "proof"))]
pub(crate) use twin::{OwnedTwin, PeerTwin};

use std::cell::RefCell;

use crate::alloc::{AllocateError, ChunkError};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory, OwnedArea, PeerArea};
use crate::layout::{Layout, Superblock};
use crate::lock::arbitrated::Agent;
use crate::lock::{
    Contention, HolderToken, HostAcquire, HostLock, Living, LockError, PendingLock, SharedGuard,
    wait_for_host_lock, wait_for_host_lock_until,
};
use crate::units::{ChunkId, Extent, Incarnation, LockId, NodeId};
use beat::OfficeWatch;

/// How long a heart may stand still, on the watcher's own clock, before its owner is suspected.
pub const SUSPECT_MS: u64 = 1500;
/// For how many beats of its host's heart no lock manager lives on a host before the host gives up
/// the recoveries that it was appointed to: ten seconds, time enough to start one again.
pub const RESIGN_BEATS: u64 = 1024;
/// How often an agent beats the heart.
pub const HEARTBEAT_MS: u64 = 10;

/// This process as a member of a node: what it may write, and its way to the locks.
///
/// Not `Sync`: each thread that works on the pool has its own, made by [`Member::join`] again or
/// by a process of its own.
///
/// # Example
/// ```
/// use cxl_shm::clock::SystemClock;
/// use cxl_shm::fabric::{Fabric, HostMemory, simulated::SimulatedRack};
/// use cxl_shm::layout::{Geometry, Superblock, format_superblock};
/// use cxl_shm::member::{HostIdentity, HostTier, Member, ProcLiveness, ProcessIdentity};
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
/// let member =
///     Member::join(rack.host(0), memory, 0, &identity, me, ProcLiveness, &clock).unwrap();
/// assert_eq!(member.incarnation().0, 1);
/// member.leave();
/// ```
#[derive(Debug)]
pub struct Member<F, H: HostMemory, L = ProcLiveness> {
    fabric: F,
    superblock: Superblock,
    seat: Seat<H>,
    incarnation: Incarnation,
    process: ProcessSlot,
    identity: ProcessIdentity,
    token: HolderToken,
    liveness: L,
    agent: RefCell<Agent>,
    office: RefCell<OfficeWatch>,
    registered: bool,
}

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// The memory of the region.
    #[must_use]
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Where everything is.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.seat.layout()
    }

    /// What the region is.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.seat.node()
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
        self.seat.tier().process(slot).is_some_and(|identity| self.liveness.is_alive(identity))
    }

    /// The processes of this host.
    #[must_use]
    pub fn processes(&self) -> Vec<(ProcessSlot, ProcessIdentity)> {
        self.seat.tier().processes().collect()
    }

    /// This node's own area of the region, for the layer above. The processes of the host agree
    /// on who writes by [`Self::lock_heap`].
    #[must_use]
    pub fn area(&self) -> OwnedArea {
        self.seat.area()
    }

    /// The area of any node, to be read.
    ///
    /// # Panics
    /// When the region has no such node.
    #[must_use]
    pub fn peer_area(&self, node: NodeId) -> PeerArea {
        self.layout().area(node)
    }

    /// The layer above's words in the host tier.
    #[must_use]
    pub fn application(&self) -> ApplicationWords<'_, H> {
        self.seat.tier().application()
    }

    /// The host lock of this node's area and chunks. Waits for other threads and processes of
    /// this host only; a dead holder is recovered from, not waited for.
    pub fn lock_heap(&self, clock: &impl Clock) -> HostGuard<'_, H> {
        self.lock_host(HostLockName::Heap, clock)
    }

    /// A host lock. Waits for other threads and processes of this host only, first come, first served
    /// (rule Q5); a dead holder is recovered from, not waited for.
    pub(crate) fn lock_host(&self, name: HostLockName, clock: &impl Clock) -> HostGuard<'_, H> {
        let queue = self.seat.tier().host_queue(name);
        let recovered =
            !queue.take_unwaited(self.token) && wait_for_host_lock(&queue, self.token, self, clock);
        HostGuard::new(self.seat.tier().host_lock(name), self.token, recovered)
    }

    /// As [`Self::lock_host`], and gives up with `None` at `until_ms` of `clock`.
    pub(crate) fn lock_host_until(
        &self,
        name: HostLockName,
        clock: &impl Clock,
        until_ms: u64,
    ) -> Option<HostGuard<'_, H>> {
        let queue = self.seat.tier().host_queue(name);
        let recovered = !queue.take_unwaited(self.token)
            && wait_for_host_lock_until(&queue, self.token, self, clock, until_ms)?;
        Some(HostGuard::new(self.seat.tier().host_lock(name), self.token, recovered))
    }

    /// A host lock, if no living process has it. Does not ask who waits for it: to be called now and
    /// then, not again and again.
    pub(crate) fn try_lock_host(&self, name: HostLockName) -> Option<HostGuard<'_, H>> {
        let lock = self.seat.tier().host_lock(name);
        let recovered = match self.try_host_lock(&lock) {
            HostAcquire::Busy => return None,
            HostAcquire::Acquired => false,
            HostAcquire::Recovered => true,
        };
        Some(HostGuard::new(lock, self.token, recovered))
    }

    /// Takes a lock between hosts, waiting at most `timeout_ms`; zero is [`Self::try_lock_shared`].
    ///
    /// First come, first served among the threads of the host, and among the hosts. A holder passes
    /// the lock on within its host a bounded number of times
    /// ([`PASSES_MAX`](crate::lock::PASSES_MAX)) before others have it.
    ///
    /// # Errors
    /// [`LockError`]; nothing is held then.
    ///
    /// # Panics
    /// When the region has no such lock.
    pub fn lock_shared<'m>(
        &'m self,
        lock: LockId,
        clock: &'m impl Clock,
        timeout_ms: u64,
    ) -> Result<SharedGuard<'m, F, H, L>, LockError> {
        if timeout_ms == 0 {
            let guard = self.try_lock_shared(lock, clock)?;
            let others = || Contention::look(self, lock, false);
            return guard.ok_or_else(|| LockError::TimedOut { lock, timeout_ms, others: others() });
        }
        self.begin_shared(lock, clock).wait(timeout_ms)
    }

    /// As [`Self::lock_shared`], and gives up when `goes_on`, asked between two looks, says no: `None`
    /// then. For whom others wait, however long the time-out.
    ///
    /// # Errors
    /// [`LockError`]; nothing is held then.
    ///
    /// # Panics
    /// When the region has no such lock.
    pub fn lock_shared_while<'m>(
        &'m self,
        lock: LockId,
        clock: &'m impl Clock,
        timeout_ms: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<SharedGuard<'m, F, H, L>>, LockError> {
        if timeout_ms == 0 {
            return self.lock_shared(lock, clock, 0).map(Some);
        }
        self.begin_shared(lock, clock).wait_while(timeout_ms, goes_on)
    }

    /// Takes a lock between hosts if nobody else wants or holds it: waits for no other holder. It
    /// may also say no when two try at the same moment.
    ///
    /// Under the protocol `arbitrated` even a free lock is granted by the lock manager, which is
    /// waited for, but no longer than [`TRY_MS`](crate::lock::TRY_MS).
    ///
    /// # Errors
    /// [`LockError`]; nothing is held then.
    ///
    /// # Panics
    /// When the region has no such lock.
    pub fn try_lock_shared<'m>(
        &'m self,
        lock: LockId,
        clock: &'m impl Clock,
    ) -> Result<Option<SharedGuard<'m, F, H, L>>, LockError> {
        self.begin_shared(lock, clock).try_once()
    }

    /// Begins to take a lock between hosts, for callers that wait for several things: it is polled,
    /// and withdrawn when dropped. Who polls it less often than every 500 ms does not learn that the lock
    /// manager is silent: a longer time between two looks counts as a pause of the caller (G0). One that is
    /// not polled for 20 ms while it could have the lock may be overtaken by other threads of its host (Q6
    /// in `lock/queue.rs`).
    ///
    /// # Panics
    /// When the region has no such lock, or this member waits in its host for another one already.
    pub fn begin_shared<'m>(
        &'m self,
        lock: LockId,
        clock: &'m impl Clock,
    ) -> PendingLock<'m, F, H, L> {
        PendingLock::begin(self, lock, clock)
    }

    /// Takes note that programs of this host may write in `extent` from now on, under a program's lock say,
    /// until the host leaves. Allocating an object and taking one over do so; this is for whoever works
    /// with addresses. After a death inside a lock all of it is moved to the device (L5 in
    /// [`crate::lock`]). What lies outside the chunks is ignored.
    pub fn may_write(&self, extent: Extent) {
        let layout = self.layout();
        let at = |offset| Extent::new(offset, 1).and_then(|byte| layout.chunk_of(byte));
        let last = extent.end().saturating_sub(1);
        let (Some(first), Some(last)) = (at(extent.offset()), at(last)) else { return };
        for chunk in (first.0..=last.0).map(ChunkId) {
            self.seat.tier().note_written(chunk, layout.chunks());
        }
    }

    /// Takes a free chunk of the region for this node.
    ///
    /// After return every host sees whose it is. `purpose` belongs to the layer above.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing is changed then.
    pub fn allocate_chunk(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        purpose: u64,
    ) -> Result<ChunkId, AllocateError> {
        crate::alloc::allocate(self, clock, timeout_ms, purpose)
    }

    /// Gives a chunk of this node back to the region. Nothing in it may be in use.
    ///
    /// # Errors
    /// [`ChunkError`]; nothing is changed then.
    pub fn free_chunk(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        chunk: ChunkId,
    ) -> Result<(), ChunkError> {
        crate::alloc::free(self, clock, timeout_ms, chunk)
    }

    /// The chunks of this node and what it uses them for, freshly read from the chunk table.
    #[must_use]
    pub fn owned_chunks(&self) -> Vec<(ChunkId, u64)> {
        self.chunks_of(self.node())
    }

    /// Whether this node still takes part: cheap, one word of the host's DRAM. Asked before every
    /// operation that writes to the region.
    ///
    /// # Errors
    /// [`MembershipLost`]: for good; the processes of the host end, and join again.
    pub fn check_member(&self) -> Result<(), MembershipLost> {
        match self.seat.tier().loss() {
            Some(cause) => Err(MembershipLost { node: self.node(), cause }),
            None => Ok(()),
        }
    }

    /// Whether an operator has confirmed that life `incarnation` of `node` is over.
    pub(crate) fn is_confirmed_off(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.seat.tier().is_confirmed_off(node, incarnation)
    }

    /// Ends what dead processes of this host left of the region's locks, without waiting for
    /// anybody: updates are redone, locks released. Programs' locks are left to the host's agent, which moves
    /// much to the device before it releases them (L5). False when an update of this node is still
    /// open, under way or on the way to be redone: what the dead own is not known yet, and they
    /// are not to be struck off ([`Self::forget_process`]).
    #[must_use]
    pub fn recover_locks(&self) -> bool {
        crate::lock::end_abandoned(self, None);
        !crate::intent::is_any_open(&self.seat, &self.fabric)
    }

    pub(crate) fn seat(&self) -> &Seat<H> {
        &self.seat
    }

    /// Names this process in its host's registry. No other process ever has the same token.
    #[must_use]
    pub fn token(&self) -> HolderToken {
        self.token
    }

    pub(crate) fn try_host_lock(&self, lock: &HostLock<'_, H>) -> HostAcquire {
        lock.try_acquire(self.token, |holder| self.holds(holder))
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> Living for Member<F, H, L> {
    fn holds(&self, token: HolderToken) -> bool {
        self.seat.tier().is_holder_alive(token, &self.liveness)
    }

    fn waits(&self, slot: ProcessSlot) -> bool {
        self.is_process_alive(slot)
    }
}

impl<F, H: HostMemory, L> Drop for Member<F, H, L> {
    /// One that is dropped without having left no longer counts as a process of the host; the node
    /// stays joined.
    fn drop(&mut self) {
        self.unregister();
    }
}

impl<F, H: HostMemory, L> Member<F, H, L> {
    fn unregister(&mut self) {
        if std::mem::take(&mut self.registered) {
            self.seat.tier().host_lock(HostLockName::Agent).release(self.token);
            self.seat.tier().unregister(self.process, self.identity);
        }
    }
}

/// A host lock, held until this is dropped. When it is dropped by a panic the next holder is told so,
/// as after a death.
#[derive(Debug)]
pub struct HostGuard<'m, H: HostMemory> {
    lock: HostLock<'m, H>,
    token: HolderToken,
    recovered: bool,
    /// The thread was unwinding when it took the lock: then that is no sign of anything left undone.
    unwinds: bool,
}

impl<'m, H: HostMemory> HostGuard<'m, H> {
    fn new(lock: HostLock<'m, H>, token: HolderToken, recovered: bool) -> Self {
        Self { lock, token, recovered, unwinds: std::thread::panicking() }
    }

    /// Whether the holder before died or panicked inside: what the lock guards may be half done.
    #[must_use]
    pub fn recovered(&self) -> bool {
        self.recovered
    }
}

impl<H: HostMemory> Drop for HostGuard<'_, H> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinds {
            self.lock.abandon(self.token);
        } else {
            self.lock.release(self.token);
        }
    }
}
