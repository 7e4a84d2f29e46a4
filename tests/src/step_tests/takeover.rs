//! Change of the lock manager: claims, acknowledgements and reports, each seen at once.

use std::cell::RefCell;

use cxl_shm::layout::LockProtocol;
use cxl_shm::lock::ManagerSeen;
use cxl_shm::lock::arbitrated::ManagerState;
use cxl_shm::units::LockId;

use super::bed::{OBSERVER, acquire, beat_all, cluster, poll_grants, request};
use crate::rack::Mutant;

const LOCK: LockId = LockId(9);

/// A new manager on another node: the old one finds itself deposed in its next round, the new one
/// serves in the first round after every heartbeat has beaten, and knows who holds what (LOCK-T2 to
/// LOCK-T4).
///
/// # Panics
/// When one of them was not seen.
pub fn a_takeover_is_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [first, holder, second] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let everybody = [&first, &holder, &second];
    let old = RefCell::new(first.manage().expect("nobody else manages"));
    old.borrow_mut().claim().expect("there are terms");
    beat_all(&everybody);
    cluster.warm();
    poll_grants(&mut old.borrow_mut(), 0);
    let held = acquire(&cluster, &holder, &clocks[1], LOCK, &old);

    cluster.warm();
    let new = RefCell::new(second.manage().expect("one a host"));
    let term = new.borrow_mut().claim().expect("there are terms");
    cluster.warm();
    assert_eq!(old.borrow_mut().poll(), Some(ManagerState::Deposed { by_term: term }));
    // LOCK-T4: it waits for each of them, and no longer.
    let looker = cluster.rack.host(OBSERVER);
    for next in &everybody[..2] {
        cluster.warm();
        let seen = ManagerSeen::look(first.layout(), &looker).expect("it claimed");
        let waits_for = seen.waiting_for(first.layout(), &looker);
        assert_eq!(waits_for, Some(next.node()), "the next that has not acknowledged");
        beat_all(&[next]);
        cluster.warm();
        let state = new.borrow_mut().poll();
        assert!(matches!(state, Some(ManagerState::Collecting { .. })), "{state:?}");
    }
    cluster.warm();
    beat_all(&[&second]);
    cluster.warm();
    poll_grants(&mut new.borrow_mut(), 0);

    // LOCK-T3: held by the report of a holder that this manager never granted anything.
    let mut next = request(&first, &clocks[0], LOCK);
    cluster.warm();
    poll_grants(&mut new.borrow_mut(), 0);
    cluster.warm();
    drop(held);
    cluster.warm();
    poll_grants(&mut new.borrow_mut(), 1);
    let next = next.poll().unwrap_or_else(|error| panic!("{error}"));
    drop(next.expect("a grant was not seen at once"));

    // Back to the first host: its caches are full of its own old term.
    drop(old);
    cluster.warm();
    let again = RefCell::new(first.manage().expect("the old one is gone"));
    let newer = again.borrow_mut().claim().expect("there are terms");
    assert!(newer > term, "a claim goes beyond all that was claimed");
    cluster.warm();
    beat_all(&everybody);
    cluster.warm();
    poll_grants(&mut again.borrow_mut(), 0);
    drop(acquire(&cluster, &holder, &clocks[1], LOCK, &again));
    cluster.check_writers();
}

/// A request that was made under one manager and waits is granted by the next in one round.
///
/// # Panics
/// When it is not.
pub fn a_waiting_request_is_found_by_the_next_manager(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [first, waiter, second] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let everybody = [&first, &waiter, &second];
    let mut old = first.manage().expect("nobody else manages");
    old.claim().expect("there are terms");
    beat_all(&everybody);
    poll_grants(&mut old, 0);
    let new = RefCell::new(second.manage().expect("one a host"));
    let mut pending = request(&waiter, &clocks[1], LOCK);
    cluster.warm();
    new.borrow_mut().claim().expect("there are terms");
    cluster.warm();
    beat_all(&everybody);
    cluster.warm();
    poll_grants(&mut new.borrow_mut(), 1);
    let held = pending.poll().unwrap_or_else(|error| panic!("{error}"));
    drop(held.expect("the grant of the new manager was not seen at once"));
    cluster.check_writers();
}
