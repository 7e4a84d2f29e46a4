//! Request, grant, release, withdrawal of the arbitrated lock, each seen at once.

use std::cell::RefCell;

use cxl_shm::layout::LockProtocol;
use cxl_shm::lock::{Contention, LockError};
use cxl_shm::units::LockId;

use super::bed::{Scripted, acquire, beat_all, cluster, manager_polls, poll_grants, request};
use crate::rack::Mutant;

const LOCK: LockId = LockId(9);

/// One round of the manager after a request grants it, one look after the grant holds it, and one
/// round after a release or a withdrawal knows of it.
///
/// # Panics
/// When one of them was not seen.
pub fn grants_are_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [manager, one, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    cluster.warm();
    let manage = RefCell::new(manager.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    cluster.warm();
    beat_all(&[&manager, &one, &other]);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);

    for (member, clock) in [(&one, &clocks[1]), (&other, &clocks[2]), (&one, &clocks[1])] {
        let held = acquire(&cluster, member, clock, LOCK, &manage);
        cluster.warm();
        drop(held);
    }

    // The second waits until the first has released, whichever asks again.
    let first = acquire(&cluster, &one, &clocks[1], LOCK, &manage);
    let mut second = request(&other, &clocks[2], LOCK);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    cluster.warm();
    drop(first);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 1);
    let second = second.poll().unwrap_or_else(|error| panic!("{error}"));
    let second = second.expect("a grant was not seen at once");

    // A withdrawal is known before the lock is free again, and the next may have it.
    let withdrawn = request(&one, &clocks[1], LOCK);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    cluster.warm();
    drop(withdrawn);
    cluster.warm();
    drop(second);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);

    // A try says no while another holds or wants the lock, and gets it when nobody does.
    let held = acquire(&cluster, &one, &clocks[1], LOCK, &manage);
    cluster.warm();
    let refused = other.try_lock_shared(LOCK, &clocks[2]).unwrap_or_else(|error| panic!("{error}"));
    assert!(refused.is_none(), "the request of another was not seen");
    cluster.warm();
    drop(held);
    cluster.warm();
    let clock = manager_polls(&cluster, &manage, &[1]);
    let held = other.try_lock_shared(LOCK, &clock).unwrap_or_else(|error| panic!("{error}"));
    assert!(held.is_some(), "nobody wants it, and the manager works");
    drop(held);

    // A refusal names the holder, although all caches were filled before there was one.
    cluster.warm();
    let held = acquire(&cluster, &one, &clocks[1], LOCK, &manage);
    let refused = other.lock_shared(LOCK, &clocks[2], 0).map(drop);
    let others = Contention::HeldBy { node: one.node() };
    assert_eq!(refused, Err(LockError::TimedOut { lock: LOCK, timeout_ms: 0, others }));
    drop(held);
    cluster.check_writers();
}

/// A manager that works is not called silent, one that does not is, one that stopped has said so.
///
/// # Panics
/// When that is not so.
pub fn a_manager_is_seen_to_move(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [manager, one, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    assert_eq!(one.manager_seen(), None);
    cluster.warm();
    let manage = RefCell::new(manager.manage().expect("nobody else manages"));
    let term = manage.borrow_mut().claim().expect("there are terms");
    let seen = one.manager_seen().expect("its claim is published");
    assert_eq!((seen.node, seen.term, seen.serving), (manager.node(), term, true));
    beat_all(&[&manager, &one, &other]);
    poll_grants(&mut manage.borrow_mut(), 0);

    let held = acquire(&cluster, &one, &clocks[1], LOCK, &manage);
    // A waiter looks at the manager's heartbeat at least every 140 ms here: one beat every 1440 ms
    // is just often enough.
    let moving = Scripted::with_pauses_of(15, |pause| {
        cluster.warm();
        if pause % 96 == 0 {
            poll_grants(&mut manage.borrow_mut(), 0);
        }
    });
    let refused = other.lock_shared(LOCK, &moving, 8000).map(drop);
    let others = Contention::HeldBy { node: one.node() };
    assert_eq!(refused, Err(LockError::TimedOut { lock: LOCK, timeout_ms: 8000, others }));
    let standing = Scripted::with_pauses_of(15, |_| cluster.warm());
    let refused = other.lock_shared(LOCK, &standing, 8000).map(drop);
    assert!(matches!(refused, Err(LockError::ManagerSilent { .. })), "{refused:?}");
    drop(held);

    let before = one.manager_seen().expect("it serves");
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    let after = one.manager_seen().expect("it serves");
    assert_ne!(before.heartbeat, after.heartbeat, "a round is a beat");
    cluster.warm();
    drop(manage);
    let stopped = one.manager_seen().expect("it served");
    assert!(!stopped.serving, "that it stopped was not seen");
}
