//! The recovery of a host by another whose caches know everything from before its death.

use std::cell::RefCell;

use cxl_shm::layout::{LockProtocol, RecoveryStep};
use cxl_shm::member::{DeathNews, Deaths, Fence, FenceOrder, FenceState, RecoveryNews, SUSPECT_MS};
use cxl_shm::units::{LockId, NodeId};

use super::bed::{acquire, beat_all, cluster, crash, poll_grants, request};
use crate::rack::Mutant;

const LOCK: LockId = LockId(9);
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
    let held = acquire(&cluster, &victim, &clocks[1], LOCK, &manage);
    crash(&cluster, 1);
    std::mem::forget(held);
    std::mem::forget(victim);
    let mut next = request(&manager, &clocks[2], LOCK);
    poll_grants(&mut manage.borrow_mut(), 0);

    let rescues = rescuer.manage().expect("nobody of its host manages");
    let mut deaths = Deaths::watch(&rescues, &clocks[0], SUSPECT_MS);
    let mut fence = IsOff::default();
    deaths.step(0, true, &mut fence);
    let mut free = false;
    for step in 0..40 {
        cluster.warm();
        beat_all(&[&rescuer, &manager]);
        let news = deaths.step(SUSPECT_MS + step * 20, true, &mut fence);
        let freed = DeathNews::Recovery(RecoveryNews::Reached(RecoveryStep::Freed));
        if news.contains(&(VICTIM, freed)) {
            free = true;
            break;
        }
    }
    assert!(free, "the locks of the dead were not freed");
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 1);
    let next = next.poll().unwrap_or_else(|error| panic!("{error}"));
    drop(next.expect("a grant was not seen at once"));
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
    deaths.step(0, true, &mut fence);
    for step in 0..20 {
        cluster.warm();
        beat_all(&[&rescuer]);
        deaths.step(SUSPECT_MS + step * 20, true, &mut fence);
    }
    let told: Vec<_> = fence.0.iter().map(|order| order.host.as_deref()).collect();
    assert_eq!(told, [Some("host-2")], "the fence is asked once");
    cluster.check_writers();
}
