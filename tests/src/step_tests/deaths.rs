//! The death of a host: suspected, declared, fenced and recovered one step at a time. The next
//! actor sees each step at once.

use std::cell::RefCell;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::{CHUNK_LOCK, ChunkState, Layout, LockProtocol, NodeState, RecoveryStep};
use cxl_shm::lifecycle::{
    DeathEvent, Deaths, Fence, FenceOrder, FenceState, JoinError, NoFence, NodeDeath,
    RecoveryEvent, membership_epoch,
};
use cxl_shm::lock::Manage;
use cxl_shm::node::{Backend, SUSPECT_MS};
use cxl_shm::units::{Incarnation, LineRange, LockId, NodeId};
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::simulated::SimulatedClock;

use super::bed::{OBSERVER, Scripted, acquire, beat_all, cluster, crash, poll_grants};
use crate::rack::{Cluster, Mutant, Processes, RackMember};
use crate::stepped::stepped;

type RackManage<'m> = Manage<'m, SimulatedBackend<Processes>>;

const LOCK: LockId = LockId(9);
const VICTIM: NodeId = NodeId(1);

/// For a host that is off already.
#[derive(Debug)]
pub(super) struct IsOff;

impl Fence for IsOff {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::Fenced
    }
}

/// The looks of a watcher until it suspects a heartbeat that has stopped, from the first on. They
/// are not far apart: a watcher that sleeps starts to watch anew.
pub(super) fn until_suspected(look: impl FnMut(u64)) {
    (0..SUSPECT_MS).step_by(100).for_each(look);
}

fn layout(cluster: &Cluster) -> Layout {
    Layout::new(cluster.geometry()).expect("the region was formatted by it")
}

/// What anybody sees of the victim's death.
fn seen(cluster: &Cluster, host: usize) -> Option<NodeDeath> {
    let layout = layout(cluster);
    NodeDeath::of(&layout, &cluster.rack.host(host), VICTIM)
}

/// A host dies, and the word in which it would say that it comes back is damaged: its recoverer
/// mends the word, and another machine takes the slot.
///
/// # Panics
/// When that is not so.
pub fn a_damaged_arrival_is_mended(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let [watcher, victim] = [0, 1].map(|host| cluster.join(host, "worker"));
    let (manage, clock) = (watcher.manage().expect("nobody else manages"), cluster.clock(0));
    let arrival = layout(&cluster).arrival(VICTIM).range();
    let word = arrival.start().word(0).expect("a line has words");
    victim.fabric().store(word, 0xbad);
    victim.fabric().publish(arrival);
    crash(&cluster, 1);
    std::mem::forget(victim);
    let mut watch = Watch::begin(&cluster, &watcher, &manage, &clock);
    let line = layout(&cluster).node_line(VICTIM);
    // Not later: the next look at the slot would write the word back.
    let is_recovered = || {
        let line = line.fresh(&cluster.rack.host(OBSERVER));
        line.is_ok_and(|line| line.state() == Some(NodeState::Dead))
    };
    let recovered = (0..30).any(|_| {
        watch.go_on(true, &mut IsOff, 1);
        is_recovered()
    });
    assert!(recovered, "no end of the recovery");
    assert_ne!(cluster.rack.device_word(word), 0xbad, "its recoverer has mended the word");
    watch.go_on(true, &mut IsOff, 10);
    drop(manage);
    let heir = cluster.join_as(2, VICTIM.index(), "heir");
    assert!(heir.is_ok(), "the slot is free: {:?}", heir.map(drop));
}

/// A host dies with a lock, a chunk of its heap and one of the layer above. One watcher declares
/// and recovers it; each step is seen by others at once, and what it had is free.
///
/// # Panics
/// When one of them is not.
pub fn a_death_is_seen_step_by_step(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [watcher, victim, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let manage = RefCell::new(watcher.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    beat_all(&[&watcher, &victim, &other]);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    for (purpose, grants) in [(HEAP_PURPOSE, 1), (42, 1)] {
        let clock = Scripted::new(|pause| {
            cluster.warm();
            poll_grants(&mut manage.borrow_mut(), u32::from(pause == 0) * grants);
        });
        victim.allocate_chunk(&clock, 50, purpose).unwrap_or_else(|error| panic!("{error}"));
    }
    cluster.warm();
    let held = acquire(&cluster, &victim, &clocks[1], LOCK, &manage);
    let mut deaths = Deaths::watch(&manage.borrow(), &clocks[0], SUSPECT_MS);
    cluster.warm();
    until_suspected(|now_ms| assert_eq!(deaths.step(now_ms, true, &mut IsOff), []));
    // A heartbeat that has advanced meanwhile is alive.
    beat_all(&[&other]);
    crash(&cluster, 1);
    std::mem::forget(held);
    std::mem::forget(victim);

    let mut now_ms = SUSPECT_MS;
    let mut events = Vec::new();
    let mut steps = 0;
    while !matches!(
        events.last(),
        Some(DeathEvent::Recovery(RecoveryEvent::Reached(RecoveryStep::Done)))
    ) {
        cluster.warm();
        beat_all(&[&other]);
        poll_any(&manage);
        let of_victim = deaths.step(now_ms, true, &mut IsOff).into_iter().map(|(node, event)| {
            assert_eq!(node, VICTIM, "{event:?} of one who lives");
            event
        });
        events.extend(of_victim);
        let death = seen(&cluster, OBSERVER);
        let told = events.iter().rev().find_map(|event| match event {
            DeathEvent::Recovery(RecoveryEvent::Reached(step)) => Some(*step),
            DeathEvent::Recovery(RecoveryEvent::Adopted(_)) => Some(RecoveryStep::Adopted),
            _ => None,
        });
        let declared = events.iter().any(|event| matches!(event, DeathEvent::Declared(_)));
        assert_eq!(death.is_some(), declared, "the decision is seen at once");
        assert_eq!(death.and_then(|death| death.step), told, "the step is seen at once");
        now_ms += 20;
        steps += 1;
        assert!(steps < 40, "no end after {events:?}");
    }
    let adopted = events.iter().find_map(|event| match event {
        DeathEvent::Recovery(RecoveryEvent::Adopted(chunks)) => Some(chunks.len()),
        _ => None,
    });
    assert_eq!(adopted, Some(1), "the chunk of the heap, and not that of the layer above");
    let (layout, observer) = (layout(&cluster), cluster.rack.host(OBSERVER));
    let line = layout.node_line(VICTIM).fresh(&observer).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(line.state(), Some(NodeState::Dead));
    assert_eq!(membership_epoch(&layout, &observer), 1);
    let heap = watcher.owned_chunks().into_iter().filter(|(_, purpose)| *purpose == HEAP_PURPOSE);
    assert_eq!(heap.count(), 1);
    cluster.warm();
    poll_any(&manage);
    drop(acquire(&cluster, &other, &clocks[2], LOCK, &manage));
    // Another machine takes its place, and has the chunk of the layer above.
    cluster.warm();
    let heir = cluster.join_as(OBSERVER, 1, "heir").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(heir.incarnation(), Incarnation(2));
    assert_eq!(heir.owned_chunks().iter().map(|(_, purpose)| *purpose).collect::<Vec<_>>(), [42]);
    cluster.check_writers();
}

/// A chunk of a dead host goes to another while its recoverer waits for the lock of the chunks: one
/// that recovered it before had begun that, and died with the lock. It is not given away twice.
///
/// # Panics
/// When it is.
pub fn a_chunk_is_adopted_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [recoverer, victim, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    beat_all(&[&recoverer, &victim, &other]);
    let take = |member: &RackMember, host: usize, purpose| {
        cluster.warm();
        let taken = member.allocate_chunk(&clocks[host], 1000, purpose);
        taken.unwrap_or_else(|error| panic!("{error}"))
    };
    let give_back = |member: &RackMember, host: usize, chunk| {
        let given = member.free_chunk(&clocks[host], 1000, chunk);
        given.unwrap_or_else(|error| panic!("{error}"));
    };
    // What the table says of the victim's chunk when it is the other's.
    let chunk = take(&victim, 1, 42);
    give_back(&victim, 1, chunk);
    let entry = layout(&cluster).chunk_entry(chunk);
    let mut taken = vec![take(&other, 2, 42)];
    while !taken.contains(&chunk) {
        taken.push(take(&other, 2, 42));
    }
    let of_other = cluster.rack.host(2).read_line(entry.at());
    taken.into_iter().for_each(|chunk| give_back(&other, 2, chunk));
    assert_eq!(take(&victim, 1, HEAP_PURPOSE), chunk);
    crash(&cluster, 1);
    std::mem::forget(victim);
    cluster.warm();
    let mut pending = other.begin_shared(CHUNK_LOCK, &clocks[2]);
    let held = (0..100).find_map(|_| {
        cluster.warm();
        pending.poll().unwrap_or_else(|error| panic!("{error}"))
    });
    let held = held.expect("nobody else wants the lock");
    let manage = recoverer.manage().expect("nobody else manages");
    let mut watch = Watch::begin(&cluster, &recoverer, &manage, &clocks[0]);
    let mut go_on = || {
        for _ in 0..20 {
            beat_all(&[&other]);
            watch.go_on(true, &mut IsOff, 1);
        }
    };
    go_on();
    let freed = Some(RecoveryStep::Freed);
    assert_eq!(seen(&cluster, OBSERVER).and_then(|death| death.step), freed, "it waits");
    let (owner, incarnation) = (other.node(), other.incarnation());
    let state = ChunkState::Owned { owner, incarnation, purpose: 42 };
    let of_host = cluster.rack.host(2);
    of_host.write_line(entry.at(), &of_other);
    of_host.publish(LineRange::one(entry.at()));
    drop(held);
    go_on();
    assert!(seen(&cluster, OBSERVER).is_some_and(|death| death.over), "it got the lock");
    let now = entry.fresh(&cluster.rack.host(OBSERVER)).ok().and_then(|entry| entry.state());
    assert_eq!(now, Some(state));
}

fn poll_any<B: Backend>(manage: &RefCell<cxl_shm::lock::Manage<'_, B>>) {
    let state = manage.borrow_mut().poll();
    assert!(state.is_some(), "it was not deposed");
}

/// Two watchers declare one host dead at once, in every order of their steps: they appoint one.
///
/// # Panics
/// When they appoint two, or none.
pub fn two_declare_one_death(mutant: Mutant, seed: u64) {
    for order in 0..64_u32 {
        let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
        let [one, other] = [0, 2].map(|host| cluster.join(host, "watcher"));
        let victim = cluster.join(1, "victim");
        victim.beat();
        let [first, second] = [&one, &other].map(|it| it.manage().expect("one a host"));
        let clocks = [0, 2].map(|host| cluster.clock(host));
        let mut watches = [
            Deaths::watch(&first, &clocks[0], SUSPECT_MS),
            Deaths::watch(&second, &clocks[1], SUSPECT_MS),
        ];
        for deaths in &mut watches {
            cluster.warm();
            until_suspected(|now_ms| drop(deaths.step(now_ms, true, &mut NoFence)));
        }
        let mut appointed = Vec::new();
        for step in 0..60_u64 {
            cluster.warm();
            beat_all(&[&one, &other]);
            // In the order of the bits, then in turn.
            let next = if step < 6 { order >> step & 1 } else { u32::from(step % 2 == 1) };
            let deaths = &mut watches[next as usize];
            let events = deaths.step(SUSPECT_MS + step * 20, true, &mut NoFence);
            appointed.extend(events.into_iter().filter_map(|(_, event)| match event {
                DeathEvent::Declared(decision) => Some(decision.appointment),
                _ => None,
            }));
        }
        assert!(!appointed.is_empty(), "nobody is appointed in order {order:#b}");
        let first = appointed[0];
        assert!(appointed.iter().all(|it| *it == first), "{appointed:?} in order {order:#b}");
        // The victim wakes, and sees it in its next beat.
        cluster.warm();
        assert!(victim.check_member().is_ok());
        victim.beat();
        assert!(victim.check_member().is_err(), "it was declared dead and goes on");
        cluster.check_writers();
    }
}

/// The machine of a dead host comes back between any two steps of its recovery, or the recovery
/// begins between any two steps of its return: one waits for the other, and never do both write.
///
/// # Panics
/// When both do, or none gets on.
pub fn a_return_meets_a_recovery(mutant: Mutant, seed: u64) {
    // Announced; sure to be alone; the locks are free; all done.
    for recovery_steps in [1, 2, 4, 8] {
        let mut step = 1;
        let mut steps = return_at(mutant, seed, recovery_steps, u64::MAX);
        while step <= steps {
            steps = return_at(mutant, seed, recovery_steps, step);
            step += 3 + seed % 5;
        }
    }
}

/// Returns how many operations the return took.
fn return_at(mutant: Mutant, seed: u64, recovery_steps: u64, at: u64) -> u64 {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let watcher = cluster.join(0, "watcher");
    let victim = cluster.join(1, "victim");
    beat_all(&[&watcher, &victim]);
    crash(&cluster, 1);
    // Its host's memory is blank: what it strikes itself off is not there any more.
    drop(victim);
    let clock = cluster.clock(0);
    let manage = watcher.manage().expect("nobody else manages");
    // One recoverer all the time: it does not find out anew who lives where.
    let recoverer = RefCell::new(Watch::begin(&cluster, &watcher, &manage, &clock));
    recoverer.borrow_mut().go_on(true, &mut NoFence, 8);
    assert!(seen(&cluster, OBSERVER).is_some_and(|death| death.is_quarantined()));

    // Its machine comes back; before its operation `at` it is known to be off, and recovered.
    let fabric = stepped(cluster.rack.host(1));
    fabric
        .interposer()
        .interrupt_at(at, || recoverer.borrow_mut().go_on(false, &mut IsOff, recovery_steps));
    // It watches the heartbeat of its former life a few times only.
    let wait = Scripted::with_pauses_of(400, |_| ());
    let back = cluster.join_over(fabric.clone(), &wait, 1, 1, "back");
    let steps = fabric.interposer().steps();
    match back {
        Ok(back) => {
            // The appointed recoverer yields: the new life is not touched.
            beat_all(&[&back]);
            recoverer.borrow_mut().go_on(false, &mut IsOff, 12);
            cluster.warm();
            beat_all(&[&back]);
            assert!(back.check_member().is_ok(), "only its former life was declared dead");
            let line = back.layout().node_line(VICTIM).fresh(&cluster.rack.host(OBSERVER));
            let line = line.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(line.state(), Some(NodeState::Joined), "at step {at}");
            assert_eq!(line.incarnation(), back.incarnation());
        }
        Err(JoinError::BeingRecovered { recoverer: by, .. }) => {
            assert_eq!(by, watcher.node());
            // The next recoverer of its host, which looks around anew.
            Watch::begin(&cluster, &watcher, &manage, &clock).go_on(false, &mut IsOff, 12);
            cluster.warm();
            // Or another machine: nothing is left of the refused host.
            let host = if at.is_multiple_of(2) { 1 } else { OBSERVER };
            let back = cluster.join_as(host, 1, "back");
            assert!(back.is_ok(), "at step {at}: {:?}", back.map(drop));
        }
        Err(error) => panic!("at step {at}: {error}"),
    }
    cluster.check_writers();
    steps
}

/// A watcher of heartbeats, one step after the other. Without `declares` it carries on with what
/// was decided: a life that is just coming, and whose heartbeat does not advance yet, is not
/// declared dead.
pub(super) struct Watch<'m> {
    cluster: &'m Cluster,
    watcher: &'m RackMember,
    deaths: Deaths<'m, SimulatedBackend<Processes>>,
    now_ms: u64,
}

impl<'m> Watch<'m> {
    /// It has looked once, and finds a stopped heartbeat from now on.
    pub(super) fn begin(
        cluster: &'m Cluster,
        watcher: &'m RackMember,
        manage: &RackManage<'m>,
        clock: &'m SimulatedClock,
    ) -> Self {
        let mut deaths = Deaths::watch(manage, clock, SUSPECT_MS);
        cluster.warm();
        until_suspected(|now_ms| drop(deaths.step(now_ms, false, &mut NoFence)));
        Self { cluster, watcher, deaths, now_ms: SUSPECT_MS }
    }

    pub(super) fn go_on(&mut self, declares: bool, fence: &mut impl Fence, steps: u64) {
        for _ in 0..steps {
            self.cluster.warm();
            self.watcher.beat();
            self.deaths.step(self.now_ms, declares, fence);
            self.now_ms += 20;
        }
    }
}
