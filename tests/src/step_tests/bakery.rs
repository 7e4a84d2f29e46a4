//! The bakery lock: every look at another's word sees what was published before it.

use cxl_shm::layout::LockProtocol;
use cxl_shm::lock::{PendingLock, SharedGuard};
use cxl_shm::units::LockId;
use cxl_shm::verify::SimulatedBackend;

use super::bed::{cluster, request};
use crate::rack::{Mutant, Processes};

const LOCK: LockId = LockId(9);

type Pending<'m> = PendingLock<'m, SimulatedBackend<Processes>>;
type Guard<'m> = SharedGuard<'m, SimulatedBackend<Processes>>;

fn look<'m>(pending: &mut Pending<'m>) -> Option<Guard<'m>> {
    pending.poll().unwrap_or_else(|error| panic!("{error}"))
}

/// Three hosts come in every order, and are served in that order, each in its first look after the
/// one before it has released or withdrawn.
///
/// # Panics
/// When one is served too early or too late.
pub fn numbers_are_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let members = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        let [first, second, third] = order;
        cluster.warm();
        // Chooses, takes its number, finds nobody before it: one look each.
        let mut holder = request(&members[first], &clocks[first], LOCK);
        assert!(look(&mut holder).is_none());
        cluster.warm();
        let held = look(&mut holder).expect("nobody is before it");

        cluster.warm();
        let refused = members[second].try_lock_shared(LOCK, &clocks[second]);
        assert!(matches!(refused, Ok(None)), "the number of another was not seen: {refused:?}");

        cluster.warm();
        let mut next = request(&members[second], &clocks[second], LOCK);
        cluster.warm();
        // While the second chooses, the third cannot pass it.
        let mut last = request(&members[third], &clocks[third], LOCK);
        for waiting in [&mut next, &mut last] {
            cluster.warm();
            assert!(look(waiting).is_none(), "it takes its number");
        }
        for _ in 0..2 {
            cluster.warm();
            assert!(look(&mut next).is_none(), "the first holds it");
            assert!(look(&mut last).is_none(), "two are before it");
        }
        cluster.warm();
        drop(held);
        cluster.warm();
        assert!(look(&mut last).is_none(), "one is before it");
        cluster.warm();
        let held = look(&mut next).expect("the release before it was not seen at once");
        cluster.warm();
        assert!(look(&mut last).is_none(), "one is before it");
        // One that withdraws is in nobody's way, and a newcomer stands behind who waits.
        let mut newcomer = request(&members[first], &clocks[first], LOCK);
        cluster.warm();
        assert!(look(&mut newcomer).is_none());
        cluster.warm();
        drop(held);
        cluster.warm();
        assert!(look(&mut newcomer).is_none(), "one is before it");
        drop(last);
        cluster.warm();
        drop(look(&mut newcomer).expect("the withdrawal before it was not seen at once"));
    }
    cluster.check_writers();
}

/// Who chooses is waited for: one that has not published its number yet may have a smaller one
/// (of two with one number the node with the smaller name is first).
///
/// # Panics
/// When it is not waited for.
pub fn who_chooses_is_waited_for(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let members = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    for (early, late) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
        cluster.warm();
        let mut one = request(&members[early], &clocks[early], LOCK);
        cluster.warm();
        let mut other = request(&members[late], &clocks[late], LOCK);
        cluster.warm();
        assert!(look(&mut one).is_none(), "it takes its number");
        cluster.warm();
        assert!(look(&mut one).is_none(), "the other chooses, and may come before it");
        cluster.warm();
        assert!(look(&mut other).is_none(), "it takes its number, after the one it saw");
        cluster.warm();
        let held = look(&mut one).expect("the other has the larger number");
        cluster.warm();
        assert!(look(&mut other).is_none(), "it is held");
        cluster.warm();
        drop(held);
        cluster.warm();
        drop(look(&mut other).expect("the release was not seen at once"));
    }
    cluster.check_writers();
}

/// A host dies holding, and later waiting; others wait for it until it is back, and no longer.
///
/// # Panics
/// When that is not so.
pub fn a_dead_host_holds_until_it_is_back(mutant: Mutant, seed: u64) {
    for loss in 0..3 {
        let seed = seed.wrapping_mul(3).wrapping_add(loss);
        let cluster = cluster(LockProtocol::Bakery, mutant, seed);
        let clocks = [0, 1, 2].map(|host| cluster.clock(host));
        let other = cluster.join(2, "worker");
        for holds in [true, false] {
            cluster.warm();
            let dies = cluster.join(1, "dies");
            let mut pending = request(&dies, &clocks[1], LOCK);
            assert!(look(&mut pending).is_none());
            let held = if holds { look(&mut pending) } else { None };
            super::bed::crash(&cluster, 1);
            // What dies does nothing any more, destructors included.
            std::mem::forget((held, pending));
            std::mem::forget(dies);
            cluster.warm();
            let mut next = request(&other, &clocks[2], LOCK);
            assert!(look(&mut next).is_none());
            cluster.warm();
            assert!(look(&mut next).is_none(), "the dead hold what they held");
            let back = cluster.join(1, "back");
            cluster.warm();
            drop(look(&mut next).expect("what it held was not ended when it came back"));
            back.leave();
        }
        cluster.check_writers();
    }
}
