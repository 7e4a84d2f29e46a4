//! The recovery of a host by another whose caches know everything from before its death.

use std::cell::RefCell;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::{Arrival, LockProtocol, RecoveryStep};
use cxl_shm::lifecycle::{
    DeathEvent, Deaths, Fence, FenceOrder, FenceState, NoFence, NodeDeath, RecoveryEvent,
};
use cxl_shm::lock::PendingLock;
use cxl_shm::node::{RESIGN_BEATS, SUSPECT_MS};
use cxl_shm::units::{Incarnation, LockId, NodeId};
use cxl_shm::verify::simulated::Crash;

use super::bed::{OBSERVER, Scripted, acquire, beat_all, cluster, crash, poll_grants, request};
use super::deaths::{Watch, until_suspected};
use crate::rack::{Cluster, Mutant, RackMember};

/// The first of its line of requests: a store to the line would complete a flush that is not
/// fenced.
const LOCK: LockId = LockId(8);
const VICTIM: NodeId = NodeId(1);

/// For a host that is off already; keeps what it was told.
#[derive(Debug, Default)]
struct IsOff(Vec<FenceOrder>);

impl Fence for IsOff {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        self.0.push(order.clone());
        FenceState::Fenced
    }
}

/// A host dies with a lock. One that is not the lock manager recovers it: as soon as it says that
/// the locks are free, the manager grants them.
///
/// # Panics
/// When it does not.
pub fn what_the_dead_held_is_granted(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [rescuer, victim, manager] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let manage = RefCell::new(manager.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    beat_all(&[&rescuer, &victim, &manager]);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    // What the caches hold of its tickets is more than one ticket old: LOCK-A2 ends it all the
    // same.
    drop(acquire(&cluster, &victim, &clocks[1], LOCK, &manage));
    let held = acquire(&cluster, &victim, &clocks[1], LOCK, &manage);
    crash(&cluster, 1);
    std::mem::forget(held);
    std::mem::forget(victim);
    let mut next = request(&manager, &clocks[2], LOCK);
    poll_grants(&mut manage.borrow_mut(), 0);

    let rescues = rescuer.manage().expect("nobody of its host manages");
    let mut deaths = Deaths::watch(&rescues, &clocks[0], SUSPECT_MS);
    let mut fence = IsOff::default();
    until_suspected(|now_ms| drop(deaths.step(now_ms, true, &mut fence)));
    let mut free = false;
    for step in 0..40 {
        cluster.warm();
        beat_all(&[&rescuer, &manager]);
        let events = deaths.step(SUSPECT_MS + step * 20, true, &mut fence);
        let freed = DeathEvent::Recovery(RecoveryEvent::Reached(RecoveryStep::Freed));
        if events.contains(&(VICTIM, freed)) {
            free = true;
            break;
        }
    }
    assert!(free, "the locks of the dead were not freed");
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 1);
    let next = next.poll().unwrap_or_else(|error| panic!("{error}"));
    let next = next.expect("a grant was not seen at once");
    assert!(next.previous_holder_died(), "the recoverer reads grants freshly (LOCK-L5)");
    drop(next);
    cluster.check_writers();
}

/// With locks of bakery: a host waits behind another, gets the lock and dies with it. The caches of
/// its recoverer are from the time at which it waited. The next holder is told of the death
/// (LOCK-L5).
///
/// # Panics
/// When it is not told.
pub fn a_holder_that_was_seen_waiting_is_told_of(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [recoverer, victim, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    beat_all(&[&recoverer, &victim, &other]);
    let before = other.lock_shared(LOCK, &clocks[2], 1000).unwrap_or_else(|e| panic!("{e}"));
    let mut pending = victim.begin_shared(LOCK, &clocks[1]);
    let in_vain = |pending: &mut PendingLock<'_, _>| {
        assert!((0..4).all(|_| matches!(pending.poll(), Ok(None))), "the other holds it");
    };
    in_vain(&mut pending);
    // From here on its caches hold the smaller number of the other.
    in_vain(&mut recoverer.begin_shared(LOCK, &clocks[0]));
    drop(before);
    let held = (0..4).find_map(|_| pending.poll().unwrap_or_else(|error| panic!("{error}")));
    let held = held.expect("a release was not seen at once");
    crash(&cluster, 1);
    std::mem::forget(held);
    std::mem::forget(pending);
    std::mem::forget(victim);
    let manage = recoverer.manage().expect("nobody else manages");
    let mut watch = Watch::begin(&cluster, &recoverer, &manage, &clocks[0]);
    let over = (0..40).any(|_| {
        beat_all(&[&other]);
        watch.go_on(true, &mut IsOff::default(), 1);
        seen(&cluster, &other).is_some_and(|death| death.over)
    });
    assert!(over, "{:?}", seen(&cluster, &other));
    let next = other.lock_shared(LOCK, &clocks[2], 1000).unwrap_or_else(|e| panic!("{e}"));
    assert!(next.previous_holder_died());
    drop(next);
    cluster.check_writers();
}

/// A slot moves to another machine, which dies: the fence is told its name, and not that of who
/// lived there when the recoverer last looked.
///
/// # Panics
/// When it is told another.
pub fn the_fence_is_told_who_lives_there(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clock = cluster.clock(0);
    let rescuer = cluster.join(0, "rescuer");
    let node = usize::from(VICTIM.0);
    for life in [1, 2] {
        let inhabitant = cluster.join_as(life, node, "inhabitant");
        let inhabitant = inhabitant.unwrap_or_else(|error| panic!("{error}"));
        beat_all(&[&inhabitant]);
        // The recoverer knows the first of them.
        cluster.warm();
        if life == 1 {
            inhabitant.leave();
        } else {
            crash(&cluster, life);
            std::mem::forget(inhabitant);
        }
    }
    let rescues = rescuer.manage().expect("nobody else manages");
    let mut deaths = Deaths::watch(&rescues, &clock, SUSPECT_MS);
    let mut fence = IsOff::default();
    until_suspected(|now_ms| drop(deaths.step(now_ms, true, &mut fence)));
    for step in 0..20 {
        cluster.warm();
        beat_all(&[&rescuer]);
        deaths.step(SUSPECT_MS + step * 20, true, &mut fence);
    }
    let told: Vec<_> = fence.0.iter().map(|order| order.host.as_deref()).collect();
    assert_eq!(told, [Some("host-2")], "the fence is asked once");
    cluster.check_writers();
}

/// What an observer sees of the victim's death.
fn seen(cluster: &Cluster, member: &RackMember) -> Option<NodeDeath> {
    NodeDeath::of(member.layout(), &cluster.rack.host(OBSERVER), VICTIM)
}

/// A process of the victim's machine says that it comes for the next life, and dies there: it reads
/// nothing, and takes nothing back.
fn dies_at_its_arrival(cluster: &Cluster, member: &RackMember) {
    let (fabric, arrival) = (cluster.rack.host(1), member.layout().arrival(VICTIM).range());
    let second = Arrival::Life(Incarnation(2)).word();
    fabric.store(arrival.start().word(0).expect("a line has eight"), second);
    fabric.publish(arrival);
    cluster.warm();
}

/// A host is at the recovery of another, and waits for the lock of the chunks, when the next
/// process of the dead one dies at its arrival. The next lock manager grants it that lock, and
/// waits for neither life's acknowledgement: it is not to recover beside it.
///
/// # Panics
/// When the two wait for each other.
pub fn who_died_at_its_arrival_keeps_no_manager_waiting(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clock = cluster.clock(0);
    let [rescuer, victim, next] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let manage = RefCell::new(rescuer.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    beat_all(&[&rescuer, &victim, &next]);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    let granting = Scripted::new(|pause| {
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), u32::from(pause == 0));
    });
    let taken = victim.allocate_chunk(&granting, 50, HEAP_PURPOSE);
    taken.unwrap_or_else(|error| panic!("{error}"));
    crash(&cluster, 1);
    std::mem::forget(victim);
    let mut watch = Watch::begin(&cluster, &rescuer, &manage.borrow(), &clock);
    let mut go_on = |until: &dyn Fn(&NodeDeath) -> bool| {
        (0..120).any(|_| {
            beat_all(&[&next]);
            watch.go_on(true, &mut IsOff::default(), 1);
            seen(&cluster, &rescuer).is_some_and(|death| until(&death))
        })
    };
    assert!(go_on(&|death| death.step == Some(RecoveryStep::Freed)), "its locks are not freed");
    dies_at_its_arrival(&cluster, &rescuer);

    let mut takes_over = next.manage().expect("one a host");
    takes_over.claim().expect("there are terms");
    cluster.warm();
    beat_all(&[&rescuer, &next]);
    // It asks for the lock.
    go_on(&|_| true);
    cluster.warm();
    poll_grants(&mut takes_over, 1);
    // The life that died in admission is recovered after it.
    let second = |death: &NodeDeath| death.over && death.decision.case.incarnation.0 == 2;
    assert!(go_on(&second), "{:?}", seen(&cluster, &rescuer));
    cluster.check_writers();
}

/// A lock manager dies at a recovery, before its fence, in the middle, or in the middle while a
/// case of a later life is opened. Its host lives, and gives that up: what was written and not
/// published is on the device by then, and the next recoverer sees at once that it may continue.
///
/// # Panics
/// When it is not, or does not.
pub fn a_recovery_that_broke_off_is_given_up(mutant: Mutant, seed: u64) {
    broke_off(mutant, seed, false, false);
    broke_off(mutant, seed, true, false);
    broke_off(mutant, seed, true, true);
}

fn broke_off(mutant: Mutant, seed: u64, fenced: bool, later_case: bool) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 2].map(|host| cluster.clock(host));
    let [agent, victim, second] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let first = cluster.join(0, "manager");
    beat_all(&[&agent, &victim, &second]);
    crash(&cluster, 1);
    std::mem::forget(victim);
    let manage = first.manage().expect("nobody else manages");
    let mut watch = Watch::begin(&cluster, &agent, &manage, &clocks[0]);
    let wanted = if fenced { RecoveryStep::Redone } else { RecoveryStep::Unfenced };
    let reached = (0..20).any(|_| {
        beat_all(&[&second]);
        if fenced {
            watch.go_on(true, &mut IsOff::default(), 1);
        } else {
            watch.go_on(true, &mut NoFence, 1);
        }
        seen(&cluster, &second).and_then(|death| death.step) == Some(wanted)
    });
    assert!(reached, "it does not come as far as {wanted:?}");
    // It dies as it is, with something stored that it was to publish.
    cluster.processes.crashed(&Crash::Process { host: 0, task: "manager".to_owned() });
    drop(watch);
    std::mem::forget(manage);
    std::mem::forget(first);
    let left = second.layout().requests(VICTIM).range().start().word(1).expect("a line has eight");
    if fenced {
        cluster.rack.host(0).store(left, 2);
    }

    let manage = second.manage().expect("one a host");
    if later_case {
        dies_at_its_arrival(&cluster, &second);
    }
    let mut watch = Watch::begin(&cluster, &second, &manage, &clocks[1]);
    let mut go_on = |steps| {
        for _ in 0..steps {
            beat_all(&[&agent]);
            watch.go_on(true, &mut IsOff::default(), 1);
        }
    };
    go_on(20);
    let waits = seen(&cluster, &second).and_then(|death| death.step);
    let expected = if later_case { RecoveryStep::Fenced } else { wanted };
    assert_eq!(
        waits,
        Some(expected),
        "DEATH-R4: the host of the first one lives, and has not given up"
    );
    for _ in 0..RESIGN_BEATS + 64 {
        beat_all(&[&agent, &second]);
    }
    if fenced {
        assert_eq!(cluster.rack.device_word(left), 2, "it would arrive after what comes later");
    }
    go_on(20);
    assert!(seen(&cluster, &second).is_some_and(|death| death.over), "the next goes on");
    cluster.check_writers();
}

/// A recoverer loses power in the middle, and its machine comes back: what it said in its former
/// life keeps nobody waiting. The dead one's next process sees that at once, over caches that know
/// the former life.
///
/// # Panics
/// When it is refused.
pub fn the_next_life_of_a_recoverer_is_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clock = cluster.clock(0);
    let [recoverer, victim] = [0, 1].map(|host| cluster.join(host, "worker"));
    beat_all(&[&recoverer, &victim]);
    cluster.processes.crashed(&Crash::Process { host: 1, task: "worker".to_owned() });
    std::mem::forget(victim);
    let manage = recoverer.manage().expect("nobody else manages");
    let mut watch = Watch::begin(&cluster, &recoverer, &manage, &clock);
    let redone = (0..20).any(|_| {
        watch.go_on(true, &mut IsOff::default(), 1);
        let step = seen(&cluster, &recoverer).and_then(|death| death.step);
        step == Some(RecoveryStep::Redone)
    });
    assert!(redone, "it does not begin");
    cluster.warm();
    crash(&cluster, 0);
    drop(watch);
    std::mem::forget(manage);
    std::mem::forget(recoverer);
    let again = cluster.join(0, "again");
    assert_eq!(again.incarnation(), Incarnation(2));
    let back = cluster.join_as(1, 1, "back");
    assert!(back.is_ok(), "{:?}", back.map(drop));
    cluster.check_writers();
}
