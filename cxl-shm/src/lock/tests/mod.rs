//! Locks between hosts on a simulated rack whose clock drives the lock manager and the agents: what
//! deaths and a silent manager mean for those who come next.

mod dead_holders;
mod dead_waiters;
mod failed_memory;
mod figures;
mod lost_while_flushing;
mod silence;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::SharedGuard;
use crate::clock::Clock;
use crate::host::{HostIdentity, HostLockName, HostTier, ProcessIdentity};
use crate::layout::{Geometry, LockProtocol};
use crate::node::Member;
use crate::units::LockId;
use crate::verify::SimulatedBackend;
use crate::verify::fixture::{Died, HandClock, SmallRegion};
use crate::verify::simulated::SimulatedRack;

/// The number of the agent of host 0.
const AGENT: u32 = 100;
const LOCK: LockId = LockId(9);
const PROTOCOLS: [LockProtocol; 2] = [LockProtocol::Arbitrated, LockProtocol::Bakery];
const HOSTS: usize = 3;
const TIMEOUT_MS: u64 = 200;

const GEOMETRY: Geometry = Geometry {
    region_bytes: 4 << 20,
    nodes: 3,
    locks: 16,
    chunk_bytes: 64 << 10,
    area_lines: 1,
    host_words: 0,
};

type Process = Member<SimulatedBackend<Died>>;
type Guard<'m> = SharedGuard<'m, SimulatedBackend<Died>>;

/// A clock that advances only while somebody waits, and then lets others do their work.
#[derive(Default)]
struct PumpClock {
    us: Cell<u64>,
    others: RefCell<Vec<Box<dyn FnMut()>>>,
}

impl PumpClock {
    fn let_others_work(&self) {
        // Nobody is at work twice at a time.
        if let Ok(mut others) = self.others.try_borrow_mut() {
            others.iter_mut().for_each(|work| work());
        }
    }
}

impl Clock for PumpClock {
    fn now_ms(&self) -> u64 {
        self.us.get() / 1000
    }

    fn now_us(&self) -> u64 {
        self.us.get()
    }

    fn pause(&self, _: u32) {
        self.us.set(self.us.get() + 1000);
        self.let_others_work();
    }
}

struct Bed {
    rack: SimulatedRack,
    geometry: Geometry,
    clock: PumpClock,
    dead: Died,
}

impl Bed {
    /// A rack with a process on each host that beats, and a lock manager on the last.
    fn new(lock_protocol: LockProtocol) -> Self {
        let bed = Self::without_manager(lock_protocol);
        bed.start_manager();
        bed
    }

    fn without_manager(lock_protocol: LockProtocol) -> Self {
        Self::with(lock_protocol, GEOMETRY)
    }

    fn with(lock_protocol: LockProtocol, geometry: Geometry) -> Self {
        let rack = SimulatedRack::sticky(HOSTS, geometry.region_bytes);
        let SmallRegion { rack, .. } = SmallRegion::on(rack, geometry, lock_protocol);
        let bed = Self { rack, geometry, clock: PumpClock::default(), dead: Died::default() };
        for host in 0..HOSTS {
            bed.start_agent(host);
        }
        bed
    }

    fn start_agent(&self, host: usize) {
        let agent = self.process(host, AGENT + 10 * u32::try_from(host).unwrap());
        self.clock.others.borrow_mut().push(Box::new(move || {
            agent.beat();
        }));
    }

    fn start_manager(&self) {
        // Borrowed as long as the test runs.
        let member: &'static Process = Box::leak(Box::new(self.process(HOSTS - 1, 2)));
        let mut manage = member.manage().unwrap();
        manage.claim().unwrap();
        self.clock.others.borrow_mut().push(Box::new(move || {
            manage.poll();
        }));
        self.clock.let_others_work();
    }

    /// The lock manager, started last, works no more.
    fn stop_manager(&self) -> Box<dyn FnMut()> {
        self.clock.others.borrow_mut().pop().unwrap()
    }

    /// A process of `host`.
    fn process(&self, host: usize, pid: u32) -> Process {
        let memory = self.rack.host_memory(host, HostTier::words_of(&self.geometry));
        let identity = HostIdentity::simulated(host as u64);
        let (node, me) = (u16::try_from(host).unwrap(), ProcessIdentity::new(pid, 1));
        Member::join(
            self.rack.host(host),
            memory,
            node,
            &identity,
            me,
            self.dead.clone(),
            &self.clock,
        )
        .unwrap()
    }

    /// Process `pid` of any host dies, whatever it holds.
    fn kill(&self, pid: u32) {
        self.dead.add(pid);
    }

    /// All processes of host 0 die, its agent among them.
    fn kill_first_host(&self, pids: &[u32]) {
        std::mem::forget(self.clock.others.borrow_mut().remove(0));
        self.kill(AGENT);
        pids.iter().for_each(|pid| self.kill(*pid));
    }

    fn acquire<'m>(&'m self, process: &'m Process) -> Guard<'m> {
        process.lock_shared(LOCK, &self.clock, TIMEOUT_MS).unwrap()
    }
}
