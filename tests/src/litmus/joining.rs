//! A host that joins while something else happens: a claim between any two of its operations, and
//! the death of its former life with a lock in its hands.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::LockProtocol;
use cxl_shm::lock::arbitrated::ManagerState;
use cxl_shm::member::JoinError;
use cxl_shm::units::{LineRange, LockId};

use super::bed::{OBSERVER, Scripted, acquire, beat_all, cluster, crash, poll_grants, request};
use crate::rack::Mutant;
use crate::stepped::Stepped;

const LOCK: LockId = LockId(9);

/// A manager claims a term and makes a round between any two operations of a host that joins: it
/// either sees the host come, and waits for it, or the host sees the claim, and obeys it (T4).
///
/// # Panics
/// When neither saw the other.
pub fn a_claim_meets_a_join(mutant: Mutant, seed: u64) {
    // How many steps a join has follows from the first.
    let mut step = 1;
    let mut steps = claim_at(mutant, seed, u64::MAX);
    while step <= steps {
        steps = claim_at(mutant, seed, step);
        step += 1;
    }
}

/// As [`a_claim_meets_a_join`], at operation `step`. Returns how many operations the join took.
fn claim_at(mutant: Mutant, seed: u64, step: u64) -> u64 {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    // A slot that was left: what its line says counts, and not that it was never used.
    cluster.join(1, "before").leave();
    let manager = Rc::new(cluster.join(2, "manager"));
    beat_all(&[&manager]);
    cluster.warm();
    let served_early = Rc::new(Cell::new(false));
    let fabric = Stepped::new(cluster.rack.host(1));
    let act = {
        let (manager, served) = (Rc::clone(&manager), Rc::clone(&served_early));
        let cluster = cluster.clone();
        move || {
            let mut manage = manager.manage().expect("nobody else manages");
            manage.claim().expect("there are terms");
            cluster.warm();
            beat_all(&[&manager]);
            cluster.warm();
            let state = manage.poll();
            served.set(matches!(state, Some(ManagerState::Serving { .. })));
            // It goes on below; its right to manage must not end with this call.
            std::mem::forget(manage);
        }
    };
    fabric.interrupt_at(step, act);
    let joiner = cluster.join_over(fabric.clone(), &cluster.clock(1), 1, 1, "joiner");
    assert!(joiner.is_ok(), "{joiner:?}");
    let steps = fabric.steps();
    cluster.warm();
    if served_early.get() {
        let seen = manager.manager_seen().expect("it claimed");
        let disobeys = seen.waiting_for(manager.layout(), manager.fabric());
        assert_eq!(disobeys, None, "at step {step} a manager served without this node");
    }
    steps
}

/// A host dies holding the lock and comes back with its caches and memory lost: the lock is free
/// after one round of the manager, and the host's new requests are new.
///
/// # Panics
/// When that is not so.
pub fn a_holder_dies_and_joins_again(mutant: Mutant, seed: u64) {
    for loss in 0..4 {
        holder_dies(mutant, seed.wrapping_mul(4).wrapping_add(loss));
    }
}

fn holder_dies(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [manager, other] = [0, 2].map(|host| cluster.join(host, "worker"));
    let manage = RefCell::new(manager.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    for _ in 0..2 {
        cluster.warm();
        let holder = cluster.join(1, "holder");
        beat_all(&[&manager, &other, &holder]);
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
        let held = acquire(&cluster, &holder, &clocks[1], LOCK, &manage);
        crash(&cluster, 1);
        // What dies does nothing any more, destructors included.
        std::mem::forget(held);
        std::mem::forget(holder);
    }
    cluster.warm();
    // Its old grant still stands: nobody else may have the lock before it is back.
    let mut next = request(&other, &clocks[2], LOCK);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    let back = cluster.join(1, "holder");
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 1);
    let next = next.poll().unwrap_or_else(|error| panic!("{error}"));
    drop(next.expect("a grant was not seen at once"));
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    drop(acquire(&cluster, &back, &clocks[1], LOCK, &manage));
    cluster.check_writers();
}

/// A slot whose inhabitant did not leave is refused to another host, for the right reason: its
/// heart beats, or it stands still, and caches that know an older beat do not confuse the two.
///
/// # Panics
/// When it is given away, or refused for the other reason.
pub fn a_slot_that_is_not_left_is_refused(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    // Their caches know who lived there before.
    cluster.join_as(0, 1, "before").unwrap_or_else(|error| panic!("{error}")).leave();
    cluster.warm();
    let inhabitant = cluster.join(1, "inhabitant");
    let ask = |beats: bool| {
        let clock = Scripted::with_pauses_of(800, |pause| {
            cluster.warm();
            if beats {
                assert_eq!(pause, 0, "a beat was not seen at once");
                beat_all(&[&inhabitant]);
            }
        });
        cluster.join_over(cluster.rack.host(2), &clock, 2, 1, "stranger").map(drop)
    };
    for _ in 0..2 {
        // Their caches know the beat before this one.
        cluster.warm();
        beat_all(&[&inhabitant]);
        match ask(false) {
            Err(JoinError::NotLeft { host, .. }) => assert_eq!(host, "host-1"),
            other => panic!("{other:?}"),
        }
        match ask(true) {
            Err(JoinError::NodeInUse { host, .. }) => assert_eq!(host, "host-1"),
            other => panic!("{other:?}"),
        }
    }
    cluster.check_writers();
}

/// Two hosts were given one number and write the slot's line at once: the one whose line did not
/// last before it looked again is refused.
///
/// # Panics
/// When it is let in.
pub fn two_hosts_with_one_number(mutant: Mutant, seed: u64) {
    let mut step = 1;
    while join_is_overwritten_at(mutant, seed, step) {
        step += 1;
    }
    assert!(step > 20, "a join has steps");
}

/// Says whether the join had such a step.
fn join_is_overwritten_at(mutant: Mutant, seed: u64, step: u64) -> bool {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let looker = cluster.rack.host(OBSERVER);
    // The line of the other host, from an earlier life of the slot.
    let other = cluster.join_as(2, 1, "other").unwrap_or_else(|error| panic!("{error}"));
    let line = other.layout().node_line(other.node());
    assert!(line.fresh(&looker).is_ok());
    let theirs = looker.read_line(line.at());
    other.leave();
    cluster.warm();
    let fabric = Stepped::new(cluster.rack.host(1));
    let writer = cluster.rack.host(2);
    let at = line.at();
    fabric.interrupt_at(step, move || {
        writer.write_line(at, &theirs);
        writer.publish(LineRange::one(at));
    });
    let joined = cluster.join_over(fabric.clone(), &cluster.clock(1), 1, 1, "joiner");
    let reached = fabric.steps() >= step;
    let lasts = line.fresh(&looker).is_ok() && looker.read_line(at) != theirs;
    // Written after the last look, it is the other one that finds out.
    let in_time = fabric.steps() >= step + 2;
    assert!(lasts || !in_time || joined.is_err(), "step {step}: two hosts inhabit one slot");
    reached
}
