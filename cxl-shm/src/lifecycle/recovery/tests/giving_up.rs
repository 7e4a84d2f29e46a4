//! A lock manager that was appointed to recover dies, and its host lives.

use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::fabric::PART_LINES;
use crate::host::{HostIdentity, ProcessIdentity};
use crate::layout::PeerDoubleBuffer;
use crate::layout::header;
use crate::layout::{RecoveryRecord, RecoveryStep};
use crate::lifecycle::admission::JoinAttempt;
use crate::lifecycle::consensus::decided_about;
use crate::lifecycle::deaths::{DeathEvent, Deaths};
use crate::lifecycle::fencing::{Fence, NoFence};
use crate::lifecycle::leave::LeaveOutcome;
use crate::lifecycle::node_death::NodeDeath;
use crate::lifecycle::recovery::double_buffer;
use crate::lifecycle::recovery::tests::{
    Bed, MANAGER_PID, Off, VICTIM, arrival_of, has_reached, is_done, is_quarantined,
};
use crate::node::{RESIGN_BEATS, SUSPECT_MS};
use crate::units::{ChunkId, Incarnation, NodeId};

/// As long as each area is, in parts that are published at once.
const AREA_PARTS: u64 = 3;

/// The first manager is appointed and comes as far as `first_fence` lets it, then dies; the other
/// host's manager ends the recovery once the first host has given it up, and not before.
fn another_manager_goes_on(mut first_fence: impl Fence, reached: impl Fn(&DeathEvent) -> bool) {
    let bed = Bed::of_three(AREA_PARTS * PART_LINES);
    let (agent, first, second) = (bed.join(0, 1), bed.join(0, MANAGER_PID), bed.join(1, 2));
    let victim = bed.join(2, 3);
    victim.beat();

    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let events = bed.watch(&mut deaths, &[&agent, &second], &mut first_fence, reached);
    assert!(events.iter().any(|it| matches!(it, DeathEvent::Declared(_))), "{events:?}");
    bed.manager_dies(deaths, manage);
    // It was redoing an update that gives a chunk to a heap, say.
    let left = header(first.layout().chunk(ChunkId(1))).at();
    bed.rack.host(0).store(left.word(0).unwrap(), 1);

    let manage = second.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let death = || NodeDeath::of(second.layout(), second.fabric(), VICTIM).unwrap();
    let appointed = |death: NodeDeath| death.decision.appointment.recoverer;
    // DEATH-R4: the host of the recoverer lives, and has not given up.
    for _ in 0..400 {
        agent.beat();
        second.beat();
        bed.clock.pause(0);
        let events = deaths.step(bed.clock.now_ms(), true, &mut Off);
        assert!(events.iter().all(|(node, _)| *node != VICTIM), "{events:?}");
    }
    assert_eq!(appointed(death()), NodeId(0));
    let heartbeat = || agent.layout().heartbeat(NodeId(0)).fresh(second.fabric());
    let before = heartbeat();
    for _ in 0..=RESIGN_BEATS + 64 {
        agent.beat();
        second.beat();
    }
    let between = heartbeat() - before - (RESIGN_BEATS + 64 + 1);
    assert!(death().step.is_some_and(RecoveryStep::has_resigned), "{:?}", death().step);
    // Where it had begun, the lines that it may have written pass on with it.
    let stays = death().step == Some(RecoveryStep::ResignedUnfenced);
    assert_eq!(bed.rack.dirty_lines(0).contains(&left), stays);
    // That takes longer than others wait for a heartbeat, when the lines are many.
    assert_eq!(between >= AREA_PARTS, !stays, "the heartbeat advanced {between} times in between");
    let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, is_done);
    assert!(events.iter().any(is_done), "{events:?}");
    assert!(death().over && appointed(death()) == NodeId(1));

    // A lock manager on the first host finds nothing left to do.
    drop(deaths);
    drop(manage);
    let again = bed.join(0, 9);
    let manage = again.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, |_| false);
    assert_eq!(events, []);
}

#[test]
fn a_recovery_whose_manager_died_before_the_fence_is_carried_on_by_another() {
    another_manager_goes_on(NoFence, is_quarantined);
}

#[test]
fn a_recovery_whose_manager_died_half_way_is_carried_on_by_another() {
    another_manager_goes_on(Off, has_reached(RecoveryStep::Redone));
}

/// The first manager yields to a host that joins for a new life of the slot, and dies. That host is
/// refused, and takes its arrival back. Nobody else would continue in its place.
#[test]
fn a_recovery_that_yielded_to_who_did_not_come_is_carried_on_by_another() {
    for comes in [false, true] {
        let bed = Bed::of_three(1);
        let (agent, first, second) = (bed.join(0, 1), bed.join(0, MANAGER_PID), bed.join(1, 2));
        bed.dies(bed.join(2, 3));
        let arrival = first.layout().arrival(VICTIM).claim();
        let manage = first.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let fenced = has_reached(RecoveryStep::Fenced);
        let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, &fenced);
        assert!(events.iter().any(fenced), "{events:?}");
        arrival.publish(&bed.rack.host(2), arrival_of(2));
        let yielded = has_reached(RecoveryStep::Superseded);
        let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, &yielded);
        assert!(events.iter().any(yielded), "{events:?}");
        bed.manager_dies(deaths, manage);
        if !comes {
            arrival.publish(&bed.rack.host(2), arrival_of(1));
            let death = NodeDeath::of(second.layout(), second.fabric(), VICTIM).unwrap();
            assert!(death.is_quarantined(), "{death:?}");
        }
        for _ in 0..=RESIGN_BEATS + 64 {
            agent.beat();
            second.beat();
        }
        let double_buffer =
            PeerDoubleBuffer::<RecoveryRecord>::of(first.layout().recoveries(NodeId(0)), VICTIM);
        second.fabric().refresh(first.layout().recoveries(NodeId(0)).range());
        let step = double_buffer.cached(second.fabric()).unwrap().and_then(|record| record.step());
        // Of one whose next life is there nothing is given up.
        let expected =
            if comes { RecoveryStep::Superseded } else { RecoveryStep::ResignedUnfenced };
        assert_eq!(step, Some(expected));
        if !comes {
            let manage = second.manage().unwrap();
            let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
            let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, is_done);
            assert!(events.iter().any(is_done), "of {} events, {:?}", events.len(), events.last());
        }
    }
}

#[test]
fn a_host_with_a_lock_manager_gives_nothing_up() {
    let bed = Bed::of_three(1);
    let (agent, first, victim) = (bed.join(0, 1), bed.join(0, MANAGER_PID), bed.join(2, 3));
    victim.beat();
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let events = bed.watch(&mut deaths, &[&agent], &mut NoFence, is_quarantined);
    assert!(events.iter().any(is_quarantined), "{events:?}");
    for _ in 0..=2 * RESIGN_BEATS {
        agent.beat();
    }
    let death = NodeDeath::of(agent.layout(), agent.fabric(), VICTIM).unwrap();
    assert_eq!(death.step, Some(RecoveryStep::Unfenced));
    assert!(bed.watch(&mut deaths, &[&agent], &mut Off, is_done).iter().any(is_done));
}

/// A recoverer's process died when the line of the dead was final, and before it said so; its host
/// lives, and nobody is appointed to that life any more. What it last said keeps neither the slot's
/// next return waiting nor its next recovery.
#[test]
fn a_record_that_nobody_corrects_keeps_nobody_waiting() {
    let bed = Bed::of_three(1);
    let (agent, first, second) = (bed.join(0, 1), bed.join(0, MANAGER_PID), bed.join(1, 2));
    bed.dies(bed.join(2, 3));
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, is_done);
    assert!(events.iter().any(is_done), "{events:?}");
    let case = decided_about(first.layout(), first.fabric(), VICTIM, Incarnation(1)).unwrap().case;
    let adopted = RecoveryRecord::new(case, first.incarnation(), RecoveryStep::Adopted);
    double_buffer(&first, VICTIM).publish(first.fabric(), adopted);
    bed.manager_dies(deaths, manage);

    let recover = || {
        let manage = second.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, is_done);
        assert!(events.iter().any(is_done), "{events:?}");
    };
    // The next life dies during admission: of what is past the line says no more than that.
    let identity = HostIdentity::simulated(1);
    let attempt = JoinAttempt::new(VICTIM, &identity, ProcessIdentity::new(4, 1));
    let (layout, fabric) = (second.layout(), bed.rack.host(1));
    let snapshot = attempt.look(layout, &fabric, Incarnation(1));
    assert_eq!(attempt.try_claim(layout, &fabric, &snapshot, Incarnation(2)), Ok(()));
    recover();
    // The one after it dies, too, and its machine comes back: that looks for recoverers.
    bed.dies(bed.join(2, 5));
    let back = bed.join(2, 6);
    assert_eq!(back.incarnation(), Incarnation(4));
    bed.dies(back);
    recover();
}

/// A manager dies in the middle of a recovery, and before its host gives that up another case is
/// opened for the slot: nobody waits for the dead one's record for ever.
#[test]
fn a_recovery_that_broke_off_in_an_earlier_case_is_given_up() {
    broken_off_in_an_earlier_case(false);
}

/// As it is when a lock manager runs there again: nobody is granted anything while it gives that
/// up, and its heartbeat as a manager continues.
#[test]
fn a_manager_that_gives_an_earlier_recovery_up_beats() {
    broken_off_in_an_earlier_case(true);
}

fn broken_off_in_an_earlier_case(by_manager: bool) {
    let bed = Bed::of_three(AREA_PARTS * PART_LINES);
    let (agent, first, second) = (bed.join(0, 1), bed.join(0, MANAGER_PID), bed.join(1, 2));
    bed.dies(bed.join(2, 3));
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let redone = has_reached(RecoveryStep::Redone);
    let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, &redone);
    assert!(events.iter().any(redone), "{events:?}");
    bed.manager_dies(deaths, manage);
    let left = header(first.layout().chunk(ChunkId(1))).at();
    bed.rack.host(0).store(left.word(0).unwrap(), 1);

    // Of a life that never came further than its arrival.
    let arrival = second.layout().arrival(VICTIM).claim();
    arrival.publish(&bed.rack.host(2), arrival_of(2));
    let manage = second.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    if by_manager {
        let opened = bed.watch(&mut deaths, &[&agent, &second], &mut NoFence, is_quarantined);
        assert!(opened.iter().any(is_quarantined), "{opened:?}");
        let again = bed.join(0, 9);
        let manage = again.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let word = again.layout().manager_heartbeat(NodeId(0));
        let before = word.fresh(second.fabric());
        let _ = bed.watch(&mut deaths, &[&agent, &second], &mut NoFence, |_| {
            !bed.rack.dirty_lines(0).contains(&left)
        });
        let beats = word.fresh(second.fabric()) - before;
        assert!(beats >= AREA_PARTS, "it beat {beats} times");
    }
    let events = bed.watch(&mut deaths, &[&agent, &second], &mut Off, is_done);
    assert!(
        events.iter().any(is_done),
        "of {} events, the last is {:?}",
        events.len(),
        events.last()
    );
    assert!(!bed.rack.dirty_lines(0).contains(&left), "it would arrive after what came later");
    assert!(NodeDeath::of(second.layout(), second.fabric(), VICTIM).unwrap().over);
}

/// A manager dies in the middle of a recovery, and its host leaves, or comes back, before it gives
/// that up: what is in its caches of the lines of the dead does not outlast its life.
#[test]
fn what_a_recoverer_had_not_published_arrives_before_its_life_is_over() {
    for leaves in [true, false] {
        let bed = Bed::of_three(1);
        let (agent, first, victim) = (bed.join(0, 1), bed.join(0, MANAGER_PID), bed.join(2, 3));
        bed.dies(victim);
        let manage = first.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let redone = has_reached(RecoveryStep::Redone);
        let events = bed.watch(&mut deaths, &[&agent], &mut Off, &redone);
        assert!(events.iter().any(redone), "{events:?}");
        bed.manager_dies(deaths, manage);
        let left = first.layout().requests(VICTIM).range().start();
        bed.rack.host(0).store(left.word(0).unwrap(), 1);
        if leaves {
            assert_eq!(agent.leave(), LeaveOutcome::NodeLeft);
        } else {
            std::mem::forget(agent);
            bed.died.add(1);
            std::mem::forget(bed.join(0, 5));
        }
        assert!(!bed.rack.dirty_lines(0).contains(&left), "leaves: {leaves}");
    }
}
