//! Which host reclaims the resources of a vacant node: other candidates see it at once, and so does
//! the node's next incarnation.

use std::cell::RefCell;
use std::mem::forget;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, LockProtocol, RecoveryStep};
use cxl_shm::lifecycle::{DeathEvent, Deaths, RecoveryEvent, is_vacant};
use cxl_shm::node::SUSPECT_MS;
use cxl_shm::units::NodeId;
use cxl_shm::verify::simulated::Crash;

use super::bed::{OBSERVER, beat_all, cluster, crash};
use super::deaths::{IsOff, until_suspected};
use crate::rack::{Cluster, Mutant, RackMember};

const ORPHAN: NodeId = NodeId(1);

fn layout(cluster: &Cluster) -> Layout {
    Layout::new(cluster.geometry()).expect("the region was formatted by it")
}

/// Whether `member` may look after `ORPHAN`; it does not after that.
fn may_look_after(cluster: &Cluster, member: &RackMember) -> bool {
    let may = member.take_orphan(ORPHAN);
    stop(member);
    cluster.warm();
    may
}

fn stop(member: &RackMember) {
    member.reclaimer_word().publish(member.fabric(), 0);
}

/// What the device has in the first word of the orphan's area.
fn left(cluster: &Cluster) -> u64 {
    let word = layout(cluster).area(ORPHAN).word(0).expect("an area has a line");
    word.fresh(&cluster.rack.host(OBSERVER))
}

/// A reclaimer is one at a time, and stops when the orphan comes back, which waits for it.
///
/// # Panics
/// When one did not see the other at once.
pub fn a_reclaimer_is_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let [one, orphan, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    cluster.warm();
    assert!(!may_look_after(&cluster, &one), "it lives");
    orphan.leave();
    // A returning node is another life, whatever others remember of its slot.
    one.leave();
    cluster.warm();
    let one = cluster.join(0, "worker");
    assert!(one.take_orphan(ORPHAN), "that it left was not seen at once");
    assert!(!may_look_after(&cluster, &other), "two look after one");
    let word = one.area_of_vacant(ORPHAN).word(0).expect("an area has a line");
    word.publish(one.fabric(), 5);
    stop(&one);
    assert!(may_look_after(&cluster, &other), "that it stopped was not seen at once");
    assert_eq!(left(&cluster), 5);

    assert!(one.take_orphan(ORPHAN));
    cluster.warm();
    let orphan = cluster.join(1, "returned");
    assert!(!is_vacant(one.layout(), one.fabric(), ORPHAN), "that it came was not seen at once");
    assert_eq!(orphan.still_guarded(), Some(one.node()));
    cluster.warm();
    stop(&one);
    assert_eq!(orphan.still_guarded(), None, "that it stopped was not seen at once");
    let own = orphan.area().word(0).expect("an area has a line");
    orphan.fabric().refresh(orphan.layout().area(ORPHAN).range());
    assert_eq!(own.own(orphan.fabric()), 5);
    cluster.warm();
    assert!(!may_look_after(&cluster, &other), "it lives");
    // The word of a host that is named by nobody's word.
    assert!(one.reclaimer_word().own(one.fabric()) == 0);
    cluster.check_writers();
}

/// A host leaves, and two others give its chunks to the region, one after the other: the second
/// sees at once that the first has given one, which somebody else owns by then.
///
/// # Panics
/// When it gives away what is another's.
pub fn a_chunk_of_a_vacant_node_is_given_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [one, orphan, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let chunk = orphan.allocate_chunk(&clocks[1], 1000, 7).unwrap_or_else(|e| panic!("{e}"));
    orphan.leave();
    cluster.warm();
    assert_eq!(one.free_chunk_of_vacant(&clocks[0], 1000, ORPHAN, chunk), Ok(true));
    assert_eq!(other.free_chunk_of_vacant(&clocks[2], 1000, ORPHAN, chunk), Ok(false));
    while one.allocate_chunk(&clocks[0], 1000, 8).is_ok() {}
    assert!(one.owned_chunks().contains(&(chunk, 8)), "it was given to the region");
    cluster.check_writers();
}

/// A process dies as a reclaimer, in the middle of a store. Its host comes back, or leaves: what
/// was stored has arrived by then, and nobody waits.
///
/// # Panics
/// When that is not so.
pub fn the_work_of_a_reclaimer_that_is_gone_is_ended(mutant: Mutant, seed: u64) {
    for leaves in [false, true] {
        let cluster = cluster(LockProtocol::Bakery, mutant, seed);
        let [orphan, other] = [1, 2].map(|host| cluster.join(host, "worker"));
        orphan.leave();
        let [dies, lives] = ["reclaimer", "beside"].map(|name| cluster.join(0, name));
        cluster.warm();
        assert!(dies.take_orphan(ORPHAN));
        cluster.warm();
        let word = dies.layout().area(ORPHAN).range().start().word(0).expect("a line has words");
        dies.fabric().store(word, 7);
        cluster.processes.crashed(&Crash::Process { host: 0, task: "reclaimer".to_owned() });
        forget(dies);
        assert!(!may_look_after(&cluster, &other), "it may still be writing");
        if leaves {
            lives.leave();
        } else {
            cluster.processes.crashed(&Crash::Process { host: 0, task: "beside".to_owned() });
            forget(lives);
            forget(cluster.join(0, "returned"));
        }
        assert!(may_look_after(&cluster, &other), "that it is over was not seen at once");
        assert_eq!(left(&cluster), 7, "what it stored");
        let word = layout(&cluster).reclaimer(NodeId(0));
        assert_eq!(word.fresh(&cluster.rack.host(OBSERVER)), 0);
        // Nothing is on its way any more.
        let heir = cluster.join(1, "heir");
        assert_eq!(heir.still_guarded(), None);
        heir.area().word(0).expect("an area has a line").publish(heir.fabric(), 9);
        cluster.warm();
        assert_eq!(left(&cluster), 9);
        cluster.check_writers();
    }
}

/// The host of a reclaimer loses power: once it is fenced nobody waits for it, and not before.
///
/// # Panics
/// When that is not so.
pub fn a_fenced_reclaimer_is_none(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clock = cluster.clock(2);
    let [victim, orphan, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    orphan.leave();
    let manage = RefCell::new(other.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    let mut deaths = Deaths::watch(&manage.borrow(), &clock, SUSPECT_MS);
    until_suspected(|now_ms| assert_eq!(deaths.step(now_ms, true, &mut IsOff), []));
    assert!(victim.take_orphan(ORPHAN));
    crash(&cluster, 0);
    forget(victim);
    let mut fenced = false;
    for step in 0..40 {
        cluster.warm();
        beat_all(&[&other]);
        let state = manage.borrow_mut().poll();
        assert!(state.is_some(), "it was not deposed");
        let events = deaths.step(SUSPECT_MS + step * 20, true, &mut IsOff);
        let reached = |wanted: RecoveryStep| {
            events.iter().any(|(_, event)| {
                matches!(event, DeathEvent::Recovery(RecoveryEvent::Reached(step)) if *step == wanted)
            })
        };
        fenced |= reached(RecoveryStep::Fenced);
        assert_eq!(may_look_after(&cluster, &other), fenced, "fenced or not was not seen at once");
        if reached(RecoveryStep::Done) {
            let word = layout(&cluster).reclaimer(NodeId(0));
            assert_ne!(word.fresh(&cluster.rack.host(OBSERVER)), 0, "nobody has cleared it");
            cluster.check_writers();
            return;
        }
    }
    panic!("no end of the recovery");
}
