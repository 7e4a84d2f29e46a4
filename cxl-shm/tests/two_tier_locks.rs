//! Locks between threads of several hosts, step by step on a simulated rack without a schedule: the
//! order of grants, what is passed on, and the state after a withdrawal or an unwinding.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::{HostIdentity, HostTier, ProcessIdentity};
use cxl_shm::layout::{Geometry, LockProtocol, Superblock, format_superblock};
use cxl_shm::lock::Manage;
use cxl_shm::lock::{Contention, LockError, PASSES_MAX, PASSING_US_MAX, PendingLock, SharedGuard};
use cxl_shm::node::Member;
use cxl_shm::units::{LineRange, LockId, NodeId};
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::fixture::{EvenLive, HandClock};
use cxl_shm::verify::simulated::SimulatedRack;

const LOCK: LockId = LockId(9);
const GEOMETRY: Geometry = Geometry {
    region_bytes: 16 << 20,
    nodes: 3,
    locks: 16,
    chunk_bytes: 1 << 20,
    area_lines: 64,
    host_words: 0,
};
const PROTOCOLS: [LockProtocol; 2] = [LockProtocol::Arbitrated, LockProtocol::Bakery];

type Thread = Member<SimulatedBackend<EvenLive>>;
type Guard<'m> = SharedGuard<'m, SimulatedBackend<EvenLive>>;
type Pending<'m> = PendingLock<'m, SimulatedBackend<EvenLive>>;

struct Rack {
    rack: SimulatedRack,
    clock: HandClock,
}

impl Rack {
    fn new(lock_protocol: LockProtocol) -> Self {
        let rack = SimulatedRack::sticky(3, GEOMETRY.region_bytes);
        let superblock = Superblock { lock_protocol, ..Superblock::new([1, 2], GEOMETRY, [0; 6]) };
        format_superblock(&rack.host(0), &superblock, |_, _| ()).expect("the geometry fits");
        Self { rack, clock: HandClock::new(1) }
    }

    /// A thread that lives.
    fn thread(&self, host: usize) -> Thread {
        self.thread_of(host, 2)
    }

    fn thread_of(&self, host: usize, pid: u32) -> Thread {
        let memory = self.rack.host_memory(host, HostTier::words_of(&GEOMETRY));
        let (node, process) =
            (u16::try_from(host).expect("few hosts"), ProcessIdentity::new(pid, 1));
        let identity = HostIdentity::simulated(host as u64);
        let (fabric, clock) = (self.rack.host(host), &self.clock);
        Member::join(fabric, memory, node, &identity, process, EvenLive, clock)
            .expect("the slot is ours")
    }
}

/// The lock manager and the agents, under either protocol.
struct Staff<'m> {
    manage: Manage<'m, SimulatedBackend<EvenLive>>,
    agents: Vec<&'m Thread>,
}

impl<'m> Staff<'m> {
    fn start(agents: &[&'m Thread]) -> Self {
        let mut manage = agents[0].manage().expect("the only manager");
        manage.claim().expect("a new region has terms");
        let mut staff = Self { manage, agents: agents.to_vec() };
        staff.work();
        staff
    }

    fn work(&mut self) {
        for agent in &self.agents {
            agent.beat();
        }
        self.grant();
    }

    fn grant(&mut self) {
        for _ in 0..3 {
            self.manage.poll();
        }
    }

    /// Polls until nothing changes any more.
    fn poll<'p>(&mut self, pending: &mut Pending<'p>) -> Option<Guard<'p>> {
        for _ in 0..8 {
            if let Some(guard) = pending.poll().expect("the manager serves") {
                return Some(guard);
            }
            self.grant();
        }
        None
    }
}

#[test]
fn a_host_passes_a_lock_on_so_often_and_no_more() {
    for protocol in PROTOCOLS {
        let rack = Rack::new(protocol);
        let locals: Vec<Thread> = (0..=PASSES_MAX + 2).map(|_| rack.thread(0)).collect();
        let remote = rack.thread(1);
        let mut staff = Staff::start(&[&locals[0], &remote]);
        let pending = locals.iter().map(|local| local.begin_shared(LOCK, &rack.clock));
        let mut pending: Vec<_> = pending.collect();
        let mut guard = staff.poll(&mut pending[0]).expect("free");
        let mut other = remote.begin_shared(LOCK, &rack.clock);
        assert!(staff.poll(&mut other).is_none(), "held elsewhere");
        for (number, next) in (1..=PASSES_MAX).zip(&mut pending[1..]) {
            drop(guard);
            guard = next.poll().unwrap().expect("passed on: had at the first look");
            assert!(staff.poll(&mut other).is_none(), "{protocol}: passed {number} times");
        }
        drop(guard);
        let last = usize::from(PASSES_MAX) + 1;
        assert!(staff.poll(&mut pending[last]).is_none(), "{protocol}: the other host is first");
        let guard = staff.poll(&mut other).expect("the other host's turn");
        assert!(staff.poll(&mut pending[last]).is_none());
        drop(guard);
        let guard = staff.poll(&mut pending[last]).expect("the end of the queue has come");
        assert!(staff.poll(&mut pending[last + 1]).is_none(), "its own host's next waits");
        drop(guard);
        assert!(staff.poll(&mut pending[last + 1]).is_some());
        assert_eq!(rack.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
    }
}

#[test]
fn a_host_that_used_a_lock_for_long_does_not_pass_it_on() {
    for protocol in PROTOCOLS {
        for (held_us, passes) in [(PASSING_US_MAX, 0), (PASSING_US_MAX / 2 + 1, 1)] {
            let rack = Rack::new(protocol);
            let locals: Vec<Thread> = (0..4).map(|_| rack.thread(0)).collect();
            let remote = rack.thread(1);
            let mut staff = Staff::start(&[&locals[0], &remote]);
            let pending = locals.iter().map(|local| local.begin_shared(LOCK, &rack.clock));
            let mut pending: Vec<_> = pending.collect();
            let mut other = remote.begin_shared(LOCK, &rack.clock);
            let mut guard = staff.poll(&mut pending[0]);
            assert!(staff.poll(&mut other).is_none());
            for next in &mut pending[1..=passes] {
                rack.clock.add_us(held_us);
                drop(guard);
                guard = next.poll().unwrap();
                assert!(guard.is_some(), "{protocol}: passed on");
            }
            rack.clock.add_us(held_us);
            drop(guard);
            assert!(staff.poll(&mut other).is_some(), "{protocol}: {held_us} us twice");
        }
    }
}

#[test]
fn what_was_passed_to_one_who_withdraws_is_released() {
    for protocol in PROTOCOLS {
        let rack = Rack::new(protocol);
        let (first, second, remote) = (rack.thread(0), rack.thread(0), rack.thread(1));
        let mut staff = Staff::start(&[&first, &remote]);
        let mut a = first.begin_shared(LOCK, &rack.clock);
        let guard = staff.poll(&mut a).unwrap();
        let b = second.begin_shared(LOCK, &rack.clock);
        let mut other = remote.begin_shared(LOCK, &rack.clock);
        drop(guard);
        assert!(staff.poll(&mut other).is_none(), "{protocol}: passed on");
        drop(b);
        assert!(staff.poll(&mut other).is_some(), "{protocol}: stranded");
    }
}

#[test]
fn what_was_passed_to_the_dead_is_released_by_the_agent() {
    for protocol in PROTOCOLS {
        let rack = Rack::new(protocol);
        let (first, remote) = (rack.thread(0), rack.thread(1));
        let dead = rack.thread_of(0, 3);
        let mut staff = Staff::start(&[&first, &remote]);
        let mut a = first.begin_shared(LOCK, &rack.clock);
        let guard = staff.poll(&mut a).unwrap();
        std::mem::forget(dead.begin_shared(LOCK, &rack.clock));
        drop(guard);
        let mut other = remote.begin_shared(LOCK, &rack.clock);
        assert!(staff.poll(&mut other).is_none(), "{protocol}: passed on");
        staff.work();
        drop(staff.poll(&mut other).expect("the agent released it"));
        // And nothing is passed to the dead again.
        let mut a = first.begin_shared(LOCK, &rack.clock);
        drop(staff.poll(&mut a).unwrap());
        let mut other = remote.begin_shared(LOCK, &rack.clock);
        assert!(staff.poll(&mut other).is_some(), "{protocol}: passed to the dead again");
    }
}

#[test]
fn a_dead_holder_and_a_dead_waiter_keep_nothing_from_anybody() {
    for protocol in PROTOCOLS {
        let rack = Rack::new(protocol);
        let (living, remote) = (rack.thread(0), rack.thread(1));
        let (holder, waiter) = (rack.thread_of(0, 3), rack.thread_of(0, 5));
        let mut staff = Staff::start(&[&living, &remote]);
        let mut pending = holder.begin_shared(LOCK, &rack.clock);
        std::mem::forget(staff.poll(&mut pending).unwrap());
        std::mem::forget(waiter.begin_shared(LOCK, &rack.clock));
        let mut next = living.begin_shared(LOCK, &rack.clock);
        // Without an agent's beat: it looks for itself.
        let guard = (0..8).find_map(|_| staff.poll(&mut next));
        assert!(guard.is_some(), "{protocol}");
    }
}

#[test]
fn a_guard_releases_on_unwind_and_so_does_a_wait() {
    for protocol in PROTOCOLS {
        let rack = Rack::new(protocol);
        let (local, remote) = (rack.thread(0), rack.thread(1));
        let mut staff = Staff::start(&[&local, &remote]);
        let mut pending = local.begin_shared(LOCK, &rack.clock);
        let guard = staff.poll(&mut pending).unwrap();
        let mut other = remote.begin_shared(LOCK, &rack.clock);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard;
            panic!("inside");
        }));
        assert!(unwound.is_err());
        staff.work();
        let guard = staff.poll(&mut other).expect("the agent released it after the unwinding");
        assert!(guard.previous_holder_died(), "{protocol}: what it guards may be half done");
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let mut pending = local.begin_shared(LOCK, &rack.clock);
            assert!(pending.poll().unwrap().is_some(), "it is held elsewhere: this panics");
        }));
        assert!(unwound.is_err());
        drop(guard);
        let mut other = remote.begin_shared(LOCK, &rack.clock);
        assert!(staff.poll(&mut other).is_some(), "{protocol}: the wait left something behind");
    }
}

#[test]
fn a_try_waits_for_nobody() {
    let rack = Rack::new(LockProtocol::Bakery);
    let (a, b, remote) = (rack.thread(0), rack.thread(0), rack.thread(1));
    let guard = a.try_lock_shared(LOCK, &rack.clock).unwrap().expect("nobody wants it");
    let before_us = rack.clock.now_us();
    assert!(b.try_lock_shared(LOCK, &rack.clock).unwrap().is_none(), "held in its host");
    assert!(remote.try_lock_shared(LOCK, &rack.clock).unwrap().is_none(), "held elsewhere");
    let refused = remote.lock_shared(LOCK, &rack.clock, 0).unwrap_err();
    let timed_out = |others| LockError::TimedOut { lock: LOCK, timeout_ms: 0, others };
    assert_eq!(refused, timed_out(Contention::WantedBy { node: a.node() }));
    let refused = b.lock_shared(LOCK, &rack.clock, 0).unwrap_err();
    let identity = |(_, identity): (_, ProcessIdentity)| identity.pid();
    let pid = a.processes().into_iter().find(|it| it.0 == a.process()).map(identity);
    assert!(pid.is_some());
    assert_eq!(refused, timed_out(Contention::ThisHost { pid }));
    assert_eq!(rack.clock.now_us(), before_us, "no time was spent waiting");
    drop(guard);
    assert!(remote.try_lock_shared(LOCK, &rack.clock).unwrap().is_some());
}

#[test]
fn without_a_manager_arbitrated_says_so_and_bakery_needs_none() {
    let rack = Rack::new(LockProtocol::Arbitrated);
    let member = rack.thread(0);
    let refused = member.lock_shared(LOCK, &rack.clock, 60_000).unwrap_err();
    assert_eq!(refused, LockError::NoManager);
    assert_eq!(member.try_lock_shared(LOCK, &rack.clock).unwrap_err(), LockError::NoManager);

    let rack = Rack::new(LockProtocol::Bakery);
    let member = rack.thread(0);
    assert!(member.lock_shared(LOCK, &rack.clock, 60_000).is_ok());
}

#[test]
fn a_time_out_leaves_nothing_behind() {
    for protocol in PROTOCOLS {
        let rack = Rack::new(protocol);
        let (local, remote) = (rack.thread(0), rack.thread(1));
        let mut staff = Staff::start(&[&local, &remote]);
        let mut pending = local.begin_shared(LOCK, &rack.clock);
        let guard = staff.poll(&mut pending).unwrap();
        let refused = remote.lock_shared(LOCK, &rack.clock, 50).unwrap_err();
        let timed_out = |others| LockError::TimedOut { lock: LOCK, timeout_ms: 50, others };
        let node = local.node();
        let held = match protocol {
            LockProtocol::Arbitrated => Contention::HeldBy { node },
            LockProtocol::Bakery => Contention::WantedBy { node },
        };
        assert_eq!(refused, timed_out(held));
        drop(guard);
        if protocol == LockProtocol::Arbitrated {
            // It is free, and nobody is at work who would grant it.
            let refused = remote.lock_shared(LOCK, &rack.clock, 50).unwrap_err();
            assert_eq!(refused, timed_out(Contention::Nobody));
        }
        let mut pending = local.begin_shared(LOCK, &rack.clock);
        assert!(staff.poll(&mut pending).is_some(), "{protocol}");
    }
}

#[test]
fn a_damaged_request_of_the_bakery_is_an_error_until_it_is_written_anew() {
    for word in [u64::MAX, 1 << 62, 1 << 63 | 1, (1 << 62) - 1] {
        let rack = Rack::new(LockProtocol::Bakery);
        let (local, remote) = (rack.thread(0), rack.thread(2));
        let request = remote.layout().request(remote.node(), LOCK).range();
        let at = request.start().word(1).expect("lock 9 is the second word of its line");
        remote.fabric().store(at, word);
        remote.fabric().publish(request);
        let damaged = LockError::DamagedRequest { node: NodeId(2), lock: LOCK };
        let refused = local.lock_shared(LOCK, &rack.clock, 100).unwrap_err();
        assert_eq!(refused, damaged, "{word:#x}");
        // Its own node writes it anew.
        drop(remote.lock_shared(LOCK, &rack.clock, 100).unwrap());
        assert!(local.lock_shared(LOCK, &rack.clock, 100).is_ok());
    }
}

#[test]
fn who_has_used_up_its_tickets_is_refused_and_keeps_nobody_from_the_lock() {
    let rack = Rack::new(LockProtocol::Arbitrated);
    let request = |member: &Thread| {
        let line = member.layout().request(member.node(), LOCK).range();
        line.start().word(1).expect("lock 9 is the second word of its line")
    };
    let remote = rack.thread(1);
    {
        // A life of node 0 that has asked very often. The next life begins two tickets later
        // (LOCK-A2), which leaves it one.
        let first = rack.thread(0);
        let at = request(&first);
        first.fabric().store(at, (1 << 38) - 6);
        first.fabric().publish(LineRange::one(at.line()));
        first.leave();
    }
    let local = rack.thread(0);
    let mut staff = Staff::start(&[&local, &remote]);
    let mut last = local.begin_shared(LOCK, &rack.clock);
    drop(staff.poll(&mut last).expect("there is one ticket left"));
    drop(last);
    let refusal = LockError::TicketsUsedUp { node: local.node(), lock: LOCK };
    let mut refused = local.begin_shared(LOCK, &rack.clock);
    assert_eq!(refused.poll().unwrap_err(), refusal);
    assert_eq!(refused.poll().unwrap_err(), refusal, "polled again, it is refused again");
    drop(refused);
    assert_eq!(local.try_lock_shared(LOCK, &rack.clock).unwrap_err(), refusal);
    assert_eq!(local.lock_shared(LOCK, &rack.clock, 1000).unwrap_err(), refusal);
    // Others, and other locks, are none the worse.
    let mut elsewhere = remote.begin_shared(LOCK, &rack.clock);
    drop(staff.poll(&mut elsewhere).expect("nobody holds it"));
    let mut another = local.begin_shared(LockId(10), &rack.clock);
    drop(staff.poll(&mut another).expect("it has tickets of its own"));
    local.fabric().refresh(LineRange::one(request(&local).line()));
    assert_eq!(local.fabric().load(request(&local)), (1 << 38) - 2, "the ticket did not go on");
}

#[test]
#[should_panic(expected = "waits for one lock at a time")]
fn a_member_does_not_wait_for_two_locks() {
    let rack = Rack::new(LockProtocol::Bakery);
    let member = rack.thread(0);
    let _first = member.begin_shared(LOCK, &rack.clock);
    let _second = member.begin_shared(LockId(10), &rack.clock);
}

#[test]
fn a_place_in_the_registry_does_not_inherit_what_its_dead_waited_for() {
    let rack = Rack::new(LockProtocol::Bakery);
    let (stays, dead) = (rack.thread(0), rack.thread_of(0, 3));
    let place = dead.process();
    std::mem::forget(dead.begin_shared(LOCK, &rack.clock));
    drop(dead);
    let successor = rack.thread(0);
    assert_eq!(successor.process(), place);
    assert!(stays.try_lock_shared(LOCK, &rack.clock).unwrap().is_some());
}
