//! A host that joins while something else happens: a claim between any two of its operations, and
//! the death of its former life with a lock in its hands.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::HostIdentity;
use cxl_shm::layout::{Layout, LockProtocol, Machine, NodeState};
use cxl_shm::lifecycle::{Fence, FenceOrder, FenceState, JoinError};
use cxl_shm::lock::arbitrated::ManagerState;
use cxl_shm::units::{LineRange, LockId, NodeId};

use super::bed::{OBSERVER, Scripted, acquire, beat_all, cluster, crash, poll_grants, request};
use super::deaths::Watch;
use crate::rack::{Cluster, Mutant};
use crate::stepped::{Stepped, stepped};

const LOCK: LockId = LockId(9);

/// A join has returned. The first look of another host finds the state joined, and not joining.
///
/// # Panics
/// When it does not.
pub fn a_join_is_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let joined = cluster.join(1, "joined");
    let line = layout(&cluster).node_line(NodeId(1)).fresh(&cluster.rack.host(OBSERVER));
    let line = line.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(line.state(), Some(NodeState::Joined));
    assert_eq!(line.incarnation(), joined.incarnation());
}

/// A manager claims a term and makes a round between any two operations of a host that joins: it
/// either sees the host come, and waits for it, or the host sees the claim, and obeys it (LOCK-T4).
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
    let fabric = stepped(cluster.rack.host(1));
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
            // It continues below; its right to manage must not end with this call.
            std::mem::forget(manage);
        }
    };
    fabric.interposer().interrupt_at(step, act);
    let joiner = cluster.join_over(fabric.clone(), &cluster.clock(1), 1, 1, "joiner");
    assert!(joiner.is_ok(), "{joiner:?}");
    let steps = fabric.interposer().steps();
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
/// heartbeat advances, or it stands still, and caches that know an older beat do not confuse the
/// two.
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
        let clock = Scripted::with_pauses_of(400, |pause| {
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

/// A line that cannot be read may be torn by a death, and may be one that is being written by a
/// host that sleeps. The join mark still says which host lived there: a stranger is refused,
/// and its own machine let in.
///
/// # Panics
/// When that is not so.
pub fn a_line_that_cannot_be_read_is_still_somebodys(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let inhabitant = cluster.join(1, "inhabitant");
    let (fabric, line) = (cluster.rack.host(1), inhabitant.layout().node_line(NodeId(1)));
    let whole = fabric.read_line(line.at());
    let torn = [&whole[..2], &[0; 6][..]].concat();
    fabric.write_line(line.at(), torn.as_slice().try_into().expect("a line has eight words"));
    fabric.publish(LineRange::one(line.at()));
    let come = |host: usize| {
        cluster.warm();
        let clock = Scripted::with_pauses_of(400, |_| ());
        cluster.join_over(cluster.rack.host(host), &clock, host, 1, "comer").map(drop)
    };
    match come(2) {
        Err(JoinError::NotLeft { host, .. }) => assert_eq!(host, "host-1"),
        other => panic!("a stranger: {other:?}"),
    }
    crash(&cluster, 1);
    std::mem::forget(inhabitant);
    let own = come(1);
    assert!(own.is_ok(), "its own machine: {own:?}");
}

/// Two hosts were given one number, and one of them joins between any two operations of the other:
/// one of the two is let in, and the other one leaves nothing behind.
///
/// # Panics
/// When both are let in, or none.
pub fn two_hosts_with_one_number(mutant: Mutant, seed: u64) {
    let mut step = 1;
    while joins_within_at(mutant, seed, step) {
        step += 1;
    }
    assert!(step > 100, "a join has steps");
}

/// Says whether the join had such a step.
fn joins_within_at(mutant: Mutant, seed: u64, step: u64) -> bool {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    // Both caches know the slot and its join marks from before.
    for host in [1, 2] {
        cluster.join_as(host, 1, "before").unwrap_or_else(|error| panic!("{error}")).leave();
    }
    cluster.warm();
    let come = {
        let cluster = cluster.clone();
        move |fabric, host| cluster.join_over(fabric, &short_pauses(), host, 1, "joiner")
    };
    let inner = Rc::new(RefCell::new(None));
    let fabric = stepped(cluster.rack.host(1));
    let act = {
        let (cluster, come, inner) = (cluster.clone(), come.clone(), Rc::clone(&inner));
        move || {
            // Also in the middle of a line.
            cluster.warm();
            *inner.borrow_mut() = Some(come(stepped(cluster.rack.host(2)), 2));
            cluster.warm();
        }
    };
    fabric.interposer().interrupt_at(step, act);
    let outer = come(fabric.clone(), 1);
    let reached = fabric.interposer().steps() >= step;
    let Some(inner) = inner.take() else { return reached };
    let (winner, loser, host) = match (outer, inner) {
        (Ok(winner), Err(loser)) => (winner, loser, 2),
        (Err(loser), Ok(winner)) => (winner, loser, 1),
        (Ok(_), Ok(_)) => panic!("at step {step}: two hosts inhabit one slot"),
        (Err(outer), Err(inner)) => panic!("at step {step} nobody is let in: {outer}; {inner}"),
    };
    let told = matches!(loser, JoinError::NotLeft { .. } | JoinError::Contended { .. });
    assert!(told, "at step {step}: {loser}");
    winner.leave();
    cluster.warm();
    let next = come(stepped(cluster.rack.host(host)), host);
    assert!(next.is_ok(), "after step {step}: {:?}", next.map(drop));
    reached
}

/// Its time goes by in a few pauses.
fn short_pauses() -> impl Clock {
    Scripted::with_pauses_of(400, |_| ())
}

/// A host dies at any operation of its joining. Its next process is admitted at once. Another host
/// is admitted in two cases: the dead host left no visible trace, or exactly the dead host was
/// declared dead, fenced and recovered. That also holds when a third host, which slept before
/// admission since a former life, overwrites the claim word of the dead host.
///
/// # Panics
/// When a host is shut out forever, or is admitted to a slot that is not recovered.
pub fn a_joining_host_dies_at_each_step(mutant: Mutant, seed: u64) {
    let (mut step, mut nameless) = (1, 0);
    while let Some(fenced) = joining_host_dies_at(mutant, seed, step, step % 4 == 3) {
        nameless += fenced;
        // In admission each step is another case.
        step += if step < 160 { 1 } else { 11 + seed % 7 };
    }
    assert!(nameless > 0, "nobody died in admission");
}

/// For a host that is off: the host to be fenced must be this host, and known.
struct JoinerFence {
    host: u64,
    /// How often it was to be fenced before it had given its name.
    nameless: u32,
}

impl Fence for JoinerFence {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        let HostIdentity { name, boot_id, machine_id, .. } = HostIdentity::simulated(self.host);
        assert_eq!(order.machine, Some(Machine { boot_id, machine_id }), "{order:?}");
        match &order.host {
            Some(host) => assert_eq!(*host, name, "{order:?}"),
            None => self.nameless += 1,
        }
        FenceState::Fenced
    }
}

/// Why a join was broken off.
struct Died;

/// How often the joiner was fenced before it had given its name; nothing when the join had no such
/// step.
fn joining_host_dies_at(mutant: Mutant, seed: u64, step: u64, returns: bool) -> Option<u32> {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    // It lives on, elsewhere.
    cluster.join_as(2, 1, "before").unwrap_or_else(|error| panic!("{error}")).leave();
    let watcher = cluster.join(0, "watcher");
    beat_all(&[&watcher]);
    cluster.warm();
    let fabric = stepped(cluster.rack.host(1));
    fabric.interposer().interrupt_at(step, || resume_unwind(Box::new(Died)));
    let come = |fabric: Stepped<'static>, host| {
        cluster.join_over(fabric, &short_pauses(), host, 1, "joiner").map(std::mem::forget)
    };
    let died = match catch_unwind(AssertUnwindSafe(|| come(fabric, 1))) {
        Ok(_) => false,
        Err(reason) if reason.is::<Died>() => true,
        Err(reason) => resume_unwind(reason),
    };
    crash(&cluster, 1);
    if step % 4 < 2 {
        claim_late(&cluster);
    }
    cluster.warm();
    let host = if returns { 1 } else { 2 };
    let mut fence = JoinerFence { host: 1, nameless: 0 };
    let first = come(stepped(cluster.rack.host(host)), host);
    match first {
        Ok(()) => {}
        Err(error) if returns => panic!("after a death at step {step}: {error}"),
        Err(_) => {
            let manage = watcher.manage().expect("nobody else manages");
            let clock = cluster.clock(0);
            Watch::begin(&cluster, &watcher, &manage, &clock).go_on(true, &mut fence, 12);
            cluster.warm();
            let again = come(stepped(cluster.rack.host(host)), host);
            assert!(again.is_ok(), "after a death at step {step}, recovered: {again:?}");
        }
    }
    died.then_some(fence.nameless)
}

fn layout(cluster: &Cluster) -> Layout {
    Layout::new(cluster.geometry()).expect("the region was formatted by it")
}

/// What a host does that came for the first life of the slot, and wakes now.
fn claim_late(cluster: &Cluster) {
    let (fabric, word) =
        (cluster.rack.host(OBSERVER), layout(cluster).claim_word(NodeId(1)).range());
    fabric.store(word.start().word(0).expect("a line has eight"), 7 << 32 | 1);
    fabric.publish(word);
}
