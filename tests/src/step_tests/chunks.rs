//! Chunks that change hands, each step seen at once by hosts whose caches know the table of before.

use std::cell::{Cell, RefCell};

use cxl_shm::chunk::AllocateError;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{ChunkState, LockProtocol};
use cxl_shm::units::{ChunkId, LineRange, WordOffset};
use cxl_shm::verify::simulated::{Faults, Schedule};

use super::bed::{
    OBSERVER, Scripted, beat_all, cluster, crash, geometry, manager_polls, poll_grants, settings,
};
use crate::rack::{Cluster, Mutant, RackMember};
use crate::stepped::stepped;

/// One host takes all chunks, another finds none; every chunk that the first gives back the second
/// can take, in both directions.
///
/// # Panics
/// When one of them was not seen.
pub fn chunks_change_hands(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let [manager, one, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let manage = RefCell::new(manager.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    beat_all(&[&manager, &one, &other]);
    poll_grants(&mut manage.borrow_mut(), 0);
    let take = |member: &RackMember| {
        cluster.warm();
        let clock = manager_polls(&cluster, &manage, &[1]);
        let chunk = member.allocate_chunk(&clock, 1000, 7);
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
        chunk
    };
    let give = |member: &RackMember, chunk: ChunkId| {
        cluster.warm();
        let clock = manager_polls(&cluster, &manage, &[1]);
        member.free_chunk(&clock, 1000, chunk).unwrap_or_else(|error| panic!("{error}"));
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
    };
    let owned = |member: &RackMember| {
        cluster.warm();
        member.owned_chunks().into_iter().map(|(chunk, _)| chunk).collect::<Vec<_>>()
    };

    let chunks = one.layout().chunks() as usize;
    let mut all: Vec<_> = (0..chunks).map(|_| take(&one).expect("one is free")).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), chunks, "no chunk is taken twice");
    assert!(matches!(take(&other), Err(AllocateError::Exhausted { own: 0, .. })));
    assert_eq!(owned(&one), all);
    for (from, to) in [(&one, &other), (&other, &one)] {
        let passed = owned(from)[0];
        give(from, passed);
        assert!(!owned(from).contains(&passed));
        let error = from.free_chunk(&manager_polls(&cluster, &manage, &[1]), 1000, passed);
        assert!(error.is_err(), "a chunk is given back once");
        poll_grants(&mut manage.borrow_mut(), 0);
        assert_eq!(take(to).ok(), Some(passed));
        assert_eq!(owned(to), if std::ptr::eq(to, &other) { vec![passed] } else { all.clone() });
    }
    cluster.check_writers();
}

/// A host has seen the last free chunk, and another host takes it before the first one asks for the
/// lock of the table. Exactly one of the two has the chunk.
///
/// # Panics
/// When both have it, or neither.
pub fn the_last_chunk_is_taken_once(mutant: Mutant, seed: u64) {
    let mut steps = (1..).step_by(4);
    let asks = steps.find(|step| !is_taken_before(mutant, seed, *step));
    assert!(asks > Some(1), "there are operations before the request for the lock");
}

/// Says whether the other host has the chunk. After the request for the lock it waits in vain.
fn is_taken_before(mutant: Mutant, seed: u64, step: u64) -> bool {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [1, 2].map(|host| cluster.clock(host));
    let other = cluster.join(2, "other");
    for _ in 1..other.layout().chunks() {
        other.allocate_chunk(&clocks[1], 1000, 9).unwrap_or_else(|error| panic!("{error}"));
    }
    let theirs = Cell::new(None);
    let fabric = stepped(cluster.rack.host(1));
    let one = cluster.join_over(fabric.clone(), &clocks[0], 1, 1, "one");
    let one = one.unwrap_or_else(|error| panic!("{error}"));
    fabric.interposer().interrupt_at(step, || {
        theirs.set(other.allocate_chunk(&Scripted::new(|_| ()), 5, 9).ok());
    });
    let ours = one.allocate_chunk(&clocks[0], 1000, 7).ok();
    let theirs = theirs.get();
    assert!(ours.is_some() != theirs.is_some(), "step {step}: {ours:?}, {theirs:?}");
    cluster.check_writers();
    theirs.is_some()
}

/// A host takes a chunk, gives it back, and dies with whatever its caches held. Another takes it;
/// when the first comes back it must not do again what it had done: its redo record was closed.
///
/// # Panics
/// When the second host has lost its chunk.
pub fn a_closed_intent_stays_closed(mutant: Mutant, seed: u64) {
    for loss in 0..6 {
        let seed = seed.wrapping_mul(12).wrapping_add(loss * 2);
        let cluster = cluster(LockProtocol::Bakery, mutant, seed);
        let [one, other] = [1, 2].map(|host| cluster.join(host, "worker"));
        let clocks = [0, 1, 2].map(|host| cluster.clock(host));
        let chunk = one.allocate_chunk(&clocks[1], 1000, 7).unwrap_or_else(|e| panic!("{e}"));
        one.free_chunk(&clocks[1], 1000, chunk).unwrap_or_else(|error| panic!("{error}"));
        crash(&cluster, 1);
        std::mem::forget(one);
        cluster.warm();
        let chunks = other.layout().chunks();
        let taken = (0..chunks).filter_map(|_| other.allocate_chunk(&clocks[2], 1000, 9).ok());
        assert!(taken.collect::<Vec<_>>().contains(&chunk), "it was given back");
        cluster.warm();
        let back = cluster.join(1, "worker");
        assert_eq!(back.owned_chunks(), []);
        cluster.warm();
        assert_eq!(other.owned_chunks().len(), chunks as usize, "a closed intent was redone");
        cluster.check_writers();
    }
}

/// A slot moves between two hosts while all caches are filled at some step of an update under a
/// lock: a redo record that was seen open long ago is not redone.
///
/// # Panics
/// When it is.
pub fn an_open_intent_in_old_caches_is_not_redone(mutant: Mutant, seed: u64) {
    let mut step = 1;
    while intent_is_cached_at(mutant, seed, step) {
        step += 3;
    }
}

/// Says whether the update had such a step.
fn intent_is_cached_at(mutant: Mutant, seed: u64, step: u64) -> bool {
    let settings = settings(seed);
    let cluster = Cluster::format(settings, geometry(), LockProtocol::Bakery, [0; 6], mutant);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let fabric = stepped(cluster.rack.host(1));
    let first = cluster.join_over(fabric.clone(), &clocks[1], 1, 1, "first");
    let first = first.unwrap_or_else(|error| panic!("{error}"));
    // Who inhabits the slot next has never seen its redo records before.
    let during = cluster.clone();
    fabric.interposer().interrupt_at(step, move || during.warm());
    let chunk = first.allocate_chunk(&clocks[1], 1000, 7).unwrap_or_else(|e| panic!("{e}"));
    let reached = fabric.interposer().steps() >= step;
    first.free_chunk(&clocks[1], 1000, chunk).unwrap_or_else(|error| panic!("{error}"));
    first.leave();
    let other = cluster.join(0, "other");
    let chunks = other.layout().chunks();
    while other.allocate_chunk(&clocks[0], 1000, 9).is_ok() {}
    let next = cluster.join_as(2, 1, "next").unwrap_or_else(|error| panic!("{error}"));
    cluster.warm();
    assert_eq!(next.owned_chunks(), []);
    assert_eq!(other.owned_chunks().len(), chunks as usize, "step {step}: redone from old caches");
    reached
}

/// A host loses power at each step of taking a chunk and giving it back, several times with other
/// losses: the table stays readable, and the returning host has the chunk or does not have it.
///
/// # Panics
/// When an entry was lost, or a chunk is taken and nobody knows.
pub fn a_host_dies_at_each_step(mutant: Mutant, seed: u64) {
    const LOSSES: u64 = 2;
    let mut step = 1;
    while (0..LOSSES).all(|loss| dies_at(mutant, seed.wrapping_mul(LOSSES) + loss * 2, step)) {
        step += 1;
    }
}

/// Says whether there was such a step.
fn dies_at(mutant: Mutant, seed: u64, step: u64) -> bool {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed.wrapping_add(step * 64));
    let joined = cluster.join(1, "first");
    let worker = cluster.clone();
    let schedule = Schedule::builder(&cluster.rack, seed.wrapping_add(step))
        .faults(Faults::NONE)
        .steps_max(mutant.steps_max(100_000))
        .task(1, "worker", move || {
            let member = worker.join(1, "worker");
            let clock = worker.clock(1);
            let chunk = member.allocate_chunk(&clock, 1000, 7).expect("one is free");
            member.free_chunk(&clock, 1000, chunk).expect("it is ours");
        })
        .crash_host_at(1, step);
    let processes = cluster.processes.clone();
    let report = schedule.on_crash(move |crash| processes.crashed(crash)).run();
    let back = cluster.audit(1);
    let owned = back.owned_chunks();
    assert!(owned.len() <= 1, "step {step}: {owned:?}");
    let looker = cluster.rack.host(OBSERVER);
    for chunk in (0..back.layout().chunks()).map(ChunkId) {
        let entry = back.layout().chunk_entry(chunk).fresh(&looker);
        let state = entry.unwrap_or_else(|error| panic!("step {step}: {error}")).state();
        let known = owned.iter().any(|(owned, _)| *owned == chunk);
        assert_eq!(state != Some(ChunkState::Free), known, "step {step}: {chunk}");
    }
    // Dead again: what it did again when it came back is over, and what others take is theirs.
    crash(&cluster, 1);
    let (other, clock) = (cluster.join(2, "other"), cluster.clock(2));
    while other.allocate_chunk(&clock, 1000, 9).is_ok() {}
    let taken = other.owned_chunks();
    assert_eq!(cluster.join(1, "back").owned_chunks(), owned, "step {step}");
    assert_eq!(other.owned_chunks(), taken, "step {step}: a closed intent was redone");
    // Not sooner, as the dead leave nothing in order. Forgotten, they would keep a rack each in
    // memory.
    drop((joined, back));
    report.host_crashes > 0
}

/// A host leaves stores in a chunk that it never published, and gives the chunk back: they are gone
/// from its caches before another host has the chunk (MEM-M1).
///
/// # Panics
/// When they are not.
pub fn a_chunk_takes_no_stores_along(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [one, other] = [1, 2].map(|host| cluster.join(host, "worker"));
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let chunk = one.allocate_chunk(&clocks[1], 1000, 7).unwrap_or_else(|error| panic!("{error}"));
    let at = WordOffset::new(one.layout().chunk(chunk).offset()).expect("chunks are aligned");
    one.fabric().store(at, 1);
    one.free_chunk(&clocks[1], 1000, chunk).unwrap_or_else(|error| panic!("{error}"));
    while other.allocate_chunk(&clocks[2], 1000, 9).is_ok() {}
    other.fabric().store(at, 2);
    other.fabric().publish(LineRange::one(at.line()));
    cluster.check_writers();
}
