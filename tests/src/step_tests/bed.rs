//! What the step tests stand on: a small rack moved by hand, and a clock that acts.

use std::cell::{Cell, RefCell};

use cxl_shm::clock::Clock;
use cxl_shm::layout::{Geometry, LockProtocol};
use cxl_shm::lock::Manage;
use cxl_shm::lock::arbitrated::ManagerState;
use cxl_shm::lock::{PendingLock, SharedGuard};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::LockId;
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::simulated::{Crash, Settings, SimulatedClock};

use crate::rack::{Cluster, Mutant, Processes, RackMember};

const NODES: u16 = 3;
/// A host that has joined nothing, and whose caches hold what nobody made them forget.
pub(super) const OBSERVER: usize = 3;
const CHUNK_BYTES: u64 = 64 << 10;

/// A region with room for a handful of chunks.
pub(super) fn geometry() -> Geometry {
    Geometry {
        region_bytes: 1 << 20,
        nodes: NODES,
        locks: 10,
        chunk_bytes: CHUNK_BYTES,
        area_lines: 1,
        host_words: 0,
    }
}

/// Caches that do nothing by themselves, writes that stay on their way until they are read back;
/// every other seed on busy caches, where a sound protocol has to come through too.
pub(super) fn settings(seed: u64) -> Settings {
    let hosts = OBSERVER + 1;
    let bytes = geometry().region_bytes;
    if seed.is_multiple_of(2) {
        Settings { seed, ..Settings::sticky(hosts, bytes) }
    } else {
        Settings::adversarial(hosts, bytes, seed)
    }
}

/// A formatted rack of three hosts that can join, and one that looks on, every cache full of what
/// the formatting left.
pub(super) fn cluster(lock_protocol: LockProtocol, mutant: Mutant, seed: u64) -> Cluster {
    let cluster = Cluster::format(settings(seed), geometry(), lock_protocol, [0; 6], mutant);
    cluster.warm();
    cluster
}

/// A clock whose time advances only in pauses, each of which first lets somebody act. The act is
/// told how many pauses there were before, and so can say: by now it should have been seen.
pub(super) struct Scripted<A> {
    now_ms: Cell<u64>,
    pause_ms: u64,
    pauses: Cell<u32>,
    act: RefCell<A>,
}

impl<A: FnMut(u32)> Scripted<A> {
    /// Pauses take a millisecond.
    pub(super) fn new(act: A) -> Self {
        Self::with_pauses_of(1, act)
    }

    pub(super) fn with_pauses_of(pause_ms: u64, act: A) -> Self {
        Self { now_ms: Cell::new(0), pause_ms, pauses: Cell::new(0), act: RefCell::new(act) }
    }
}

impl<A: FnMut(u32)> Clock for Scripted<A> {
    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn pause(&self, _: u32) {
        (self.act.borrow_mut())(self.pauses.get());
        self.pauses.set(self.pauses.get() + 1);
        self.now_ms.set(self.now_ms.get() + self.pause_ms);
    }
}

/// One round of the manager, which has to serve and to grant `granted` locks.
pub(super) fn poll_grants<B: Backend>(manage: &mut Manage<'_, B>, granted: u32) {
    match manage.poll() {
        Some(ManagerState::Serving { granted: given, .. }) => assert_eq!(given, granted),
        state => panic!("{state:?}"),
    }
}

/// A clock on which the manager makes one round in each of the first pauses, granting as many locks
/// as `grants` says; by then the lock must be held.
pub(super) fn manager_polls<'a, B: Backend>(
    cluster: &'a Cluster,
    manage: &'a RefCell<Manage<'_, B>>,
    grants: &'a [u32],
) -> Scripted<impl FnMut(u32) + 'a> {
    Scripted::new(move |pause| {
        let granted = grants.get(pause as usize).expect("a grant was not seen at once");
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), *granted);
    })
}

/// The lock, after one round of the manager, in one look.
pub(super) fn acquire<'m, B: Backend>(
    cluster: &Cluster,
    member: &'m RackMember,
    clock: &'m SimulatedClock,
    lock: LockId,
    manage: &RefCell<Manage<'_, B>>,
) -> SharedGuard<'m, SimulatedBackend<Processes>> {
    cluster.warm();
    let mut pending = request(member, clock, lock);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 1);
    let held = pending.poll().unwrap_or_else(|error| panic!("{error}"));
    held.expect("a grant was not seen at once")
}

/// A request that was published and not answered.
pub(super) fn request<'m>(
    member: &'m RackMember,
    clock: &'m SimulatedClock,
    lock: LockId,
) -> PendingLock<'m, SimulatedBackend<Processes>> {
    let mut pending = member.begin_shared(lock, clock);
    let answer = pending.poll().unwrap_or_else(|error| panic!("{error}"));
    assert!(answer.is_none(), "nobody can have answered yet");
    pending
}

/// Each member sends its heartbeat once, and so follows the newest manager.
pub(super) fn beat_all<B: Backend>(members: &[&Member<B>]) {
    assert!(members.iter().all(|member| member.beat()), "each is the agent of its host");
}

/// A host loses power.
pub(super) fn crash(cluster: &Cluster, host: usize) {
    cluster.rack.crash(host);
    cluster.processes.crashed(&Crash::Host { host });
}
