//! A host that joins a slot and is not what it seems: one that was declared dead in admission and
//! only slept, and the image of a machine that lives.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use cxl_shm::fabric::Fabric;
use cxl_shm::host::HostIdentity;
use cxl_shm::layout::{Layout, LockProtocol};
use cxl_shm::lifecycle::{JoinError, NoFence, watch_heartbeats};
use cxl_shm::units::{Incarnation, LineOffset, NodeId};

use super::bed::{OBSERVER, Scripted, beat_all, cluster, crash};
use super::deaths::Watch;
use crate::rack::{Cluster, Mutant};
use crate::stepped::stepped;

const SLOT: NodeId = NodeId(1);

/// A host sleeps during admission, behind its mark, until it is declared dead, and wakes; perhaps
/// another has written the claim word meanwhile. It finds that out, withdraws and comes again for a
/// life that nobody has declared dead; or it had looked already, continues, and stops itself.
///
/// # Panics
/// When it continues in the life that was.
pub fn a_life_that_was_declared_dead_is_not_taken(mutant: Mutant, seed: u64) {
    for claims in [false, true] {
        // Which steps leave the mark on the device, and not yet the line, follows from trying each.
        let mut gave_up = 0;
        for step in 1.. {
            match sleeps_at(mutant, seed, step, claims) {
                Slept::Outside => {}
                Slept::GaveUp => gave_up += 1,
                Slept::WentOn => {}
                Slept::Inside => break,
            }
        }
        assert!(
            gave_up > 0,
            "a host that was declared dead in admission does not look (claims: {claims})"
        );
    }
}

/// What became of a host that slept before one of its operations.
enum Slept {
    /// It had no mark yet.
    Outside,
    /// It took its mark back, and came for a life that was not declared dead.
    GaveUp,
    /// It had looked, took the life, and stopped itself.
    WentOn,
    /// It had said who it is.
    Inside,
}

/// What becomes of a host that is declared dead in admission while it sleeps before operation
/// `step`.
fn sleeps_at(mutant: Mutant, seed: u64, step: u64, claims: bool) -> Slept {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    cluster.join(1, "before").leave();
    let watcher = cluster.join(0, "watcher");
    beat_all(&[&watcher]);
    cluster.warm();
    let layout = Layout::new(cluster.geometry()).expect("the region was formatted by it");
    let slept = RefCell::new(Slept::Inside);
    let fabric = stepped(cluster.rack.host(1));
    fabric.interposer().interrupt_at(step, || {
        if is_inside(&cluster, &layout) {
            return;
        }
        slept.replace(Slept::Outside);
        if !is_marked(&cluster, &layout) {
            return;
        }
        slept.replace(Slept::WentOn);
        let (manage, clock) = (watcher.manage().expect("nobody else manages"), cluster.clock(0));
        Watch::begin(&cluster, &watcher, &manage, &clock).go_on(true, &mut NoFence, 8);
        if claims {
            // Another comes, writes the claim word, and finds the mark.
            let (other, word) = (cluster.rack.host(2), layout.claim_word(SLOT).range());
            other.store(word.start().word(0).expect("a line has eight"), 7 << 32 | 2);
            other.publish(word);
        }
        cluster.warm();
    });
    let wait = Scripted::with_pauses_of(200, |_| ());
    let joined = cluster.join_over(fabric.clone(), &wait, 1, 1, "sleeper");
    let joined = joined.unwrap_or_else(|error| panic!("after a sleep at step {step}: {error}"));
    let slept = slept.replace(Slept::Inside);
    if matches!(slept, Slept::WentOn) {
        assert!(joined.beat());
        let is_member = joined.check_member().is_ok();
        let is_next = joined.incarnation() == Incarnation(3);
        assert_eq!(is_member, is_next, "at step {step}: the second was declared dead");
        return if is_next { Slept::GaveUp } else { slept };
    }
    slept
}

/// Whether the line of the slot names the second life, as the device says.
fn is_inside(cluster: &Cluster, layout: &Layout) -> bool {
    let word = layout.node_line(SLOT).at().word(0).expect("a line has eight");
    cluster.rack.device_word(word) >> 32 == 2
}

/// Whether somebody has come for the second life of the slot, as the device says.
fn is_marked(cluster: &Cluster, layout: &Layout) -> bool {
    marked_host(cluster, layout).is_some()
}

/// Where the device says which host has come for the second life of the slot: the line beside its
/// mark. `None` when the device has no such mark.
fn marked_host(cluster: &Cluster, layout: &Layout) -> Option<LineOffset> {
    let join_marks = layout.join_marks(SLOT);
    // The marks, and after them as many hosts in full.
    let marks = usize::try_from(join_marks.lines() / 2).unwrap_or(0);
    let first = |line: LineOffset| line.word(0).map_or(0, |word| cluster.rack.device_word(word));
    let mut of_marks = join_marks.iter().take(marks).zip(join_marks.iter().skip(marks));
    let marked = of_marks.find(|(mark, _)| first(*mark) & u64::from(u32::MAX) == 2);
    marked.map(|(_, host)| host)
}

/// A host loses power during admission. When its mark is on the device, the line that says whose
/// mark it is, is there too. A list of the nodes then shows a host in admission, whatever was in
/// the caches of the reader.
///
/// # Panics
/// When one of the two is not so.
pub fn a_death_during_admission_is_seen_at_once(mutant: Mutant, seed: u64) {
    const LOSSES: u64 = 4;
    let mut seen = 0;
    for step in (1..).step_by(3) {
        let seed_of = |loss| seed.wrapping_add(step * 64 + loss * 2);
        match dies_at(mutant, seed_of(0), step) {
            Died::Outside => {}
            Died::InAdmission => {
                seen += 1;
                // Other lines are lost.
                for loss in 1..LOSSES {
                    dies_at(mutant, seed_of(loss), step);
                }
            }
            Died::Inside => break,
        }
    }
    assert!(seen > 0, "nobody died in admission");
}

/// How far a host had come for the second life of the slot when it died, as the device says.
enum Died {
    /// There is no mark of it.
    Outside,
    /// There is its mark, and the line of the slot does not name that life.
    InAdmission,
    /// The line of the slot names that life.
    Inside,
}

fn dies_at(mutant: Mutant, seed: u64, step: u64) -> Died {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    // On another host: so the host that dies has no mark, and no line beside a mark, from before.
    cluster.join_as(2, 1, "before").unwrap_or_else(|error| panic!("{error}")).leave();
    cluster.warm();
    let layout = Layout::new(cluster.geometry()).expect("the region was formatted by it");
    let fabric = stepped(cluster.rack.host(1));
    fabric.interposer().interrupt_at(step, || resume_unwind(Box::new(Power)));
    let come = || cluster.join_over(fabric, &cluster.clock(1), 1, 1, "comes").map(drop);
    match catch_unwind(AssertUnwindSafe(come)) {
        Ok(joined) => panic!("it is dead long before it is in: {joined:?}"),
        Err(reason) if reason.is::<Power>() => {}
        Err(reason) => resume_unwind(reason),
    }
    crash(&cluster, 1);
    if is_inside(&cluster, &layout) {
        return Died::Inside;
    }
    let Some(host) = marked_host(&cluster, &layout) else { return Died::Outside };
    let said = host.word(0).map(|word| cluster.rack.device_word(word));
    assert!(said.is_some_and(|said| said != 0), "step {step}: nobody knows whose mark it is");
    let clock = Scripted::with_pauses_of(400, |_| ());
    let heartbeats = watch_heartbeats(&layout, &cluster.rack.host(OBSERVER), &clock);
    let in_admission = heartbeats
        .iter()
        .find(|heartbeat| heartbeat.node == SLOT)
        .map(|heartbeat| heartbeat.in_admission);
    assert_eq!(in_admission, Some(true), "step {step}: {heartbeats:?}");
    Died::InAdmission
}

/// Why a join was broken off.
struct Power;

/// Two machines are images of one installation, and were given one number. While one lives the
/// other is refused; when its heartbeat has stopped the other is let in, as the machine that has
/// booted again.
///
/// # Panics
/// When that is not so.
pub fn an_image_of_a_machine_that_lives_is_refused(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let image = |boot| HostIdentity { machine_id: [7, 7], ..HostIdentity::simulated(boot) };
    let come = |host: usize, wait: &dyn Fn()| {
        let clock = Scripted::with_pauses_of(400, |_| wait());
        let fabric = cluster.rack.host(host);
        cluster.join_known_as(&image(host as u64), fabric, &clock, host, 1, "image")
    };
    let first = come(1, &|| ()).unwrap_or_else(|error| panic!("{error}"));
    beat_all(&[&first]);
    cluster.warm();
    let beats = || {
        cluster.warm();
        assert!(first.beat(), "it is the agent of its host");
    };
    match come(2, &beats) {
        Err(JoinError::NodeInUse { host, .. }) => assert_eq!(host, "host-1"),
        other => panic!("beside one that lives: {:?}", other.map(drop)),
    }
    let second = come(2, &|| cluster.warm());
    assert!(second.is_ok(), "its heartbeat has stopped: {:?}", second.map(drop));
}

/// As many machines as a slot has marks have lived in a slot, one after the other. One more comes,
/// takes the oldest mark, and is refused after its admission: the marks say again what they said
/// before.
///
/// # Panics
/// When it does not.
pub fn a_refused_host_leaves_the_join_marks_as_they_were(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let layout = Layout::new(cluster.geometry()).expect("the region was formatted by it");
    let (host, clock) = (cluster.rack.host(1), cluster.clock(1));
    let come = |machine: u64| {
        let identity = HostIdentity::simulated(10 + machine);
        cluster.join_known_as(&identity, host.clone(), &clock, 1, 1, "comes")
    };
    let join_marks = layout.join_marks(SLOT);
    // The marks, and after them as many hosts in full.
    for machine in 0..join_marks.lines() / 2 {
        come(machine).unwrap_or_else(|error| panic!("machine {machine}: {error}")).leave();
    }
    // Without the seal: it counts how often a line was written.
    let words = |line: LineOffset| [0, 1, 2, 3, 4, 5, 6].map(|index| line.word(index));
    let said = || -> Vec<u64> {
        let words = join_marks.iter().flat_map(words).flatten();
        words.map(|word| cluster.rack.device_word(word)).collect()
    };
    let before = said();
    // Beyond all counting: the joining host finds it only after its admission.
    let requests = layout.requests(SLOT).range();
    host.store(requests.start().word(0).expect("a line has words"), u64::MAX);
    host.publish(requests);
    let refused = come(join_marks.lines()).map(drop);
    assert!(matches!(refused, Err(JoinError::BadTicket { .. })), "{refused:?}");
    assert_eq!(said(), before);
}
