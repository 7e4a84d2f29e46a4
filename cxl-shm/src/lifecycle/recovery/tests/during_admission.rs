//! A recovery beside a host that joins the slot, and dies or gives up during admission.

use crate::host::{HostIdentity, ProcessIdentity};
use crate::layout::RecoveryStep;
use crate::lifecycle::admission::JoinAttempt;
use crate::lifecycle::consensus::decided_about;
use crate::lifecycle::deaths::{DeathEvent, Deaths};
use crate::lifecycle::fencing::NoFence;
use crate::lifecycle::node_death::NodeDeath;
use crate::lifecycle::recovery::tests::{
    Bed, Off, RecordingFence, VICTIM, arrival_of, has_reached, is_done, is_quarantined,
};
use crate::node::is_over;
use crate::node::{RESIGN_BEATS, SUSPECT_MS};
use crate::units::Incarnation;

/// The machine of a dead host comes back, and sleeps between its arrival and its first line until a
/// case of its life is opened; then it is refused, and takes its arrival back. The life before it,
/// which the slot has still, is declared dead all the same, with the one that was given up.
#[test]
fn a_life_given_up_in_admission_keeps_none_before_it_from_being_declared_dead() {
    for declared in [false, true] {
        let bed = Bed::of_three(1);
        let (first, second, paused) = (bed.join(0, 1), bed.join(1, 2), bed.join(2, 3));
        paused.beat();
        let arrival = first.layout().arrival(VICTIM).claim();
        arrival.publish(&bed.rack.host(2), arrival_of(2));
        let manage = first.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let until = |event: &DeathEvent| match event {
            DeathEvent::Suspected => !declared,
            DeathEvent::Declared(_) => declared,
            _ => false,
        };
        let events = bed.watch(&mut deaths, &[&first, &second], &mut NoFence, until);
        assert!(events.iter().any(until), "{events:?}");
        let opened = decided_about(second.layout(), second.fabric(), VICTIM, Incarnation(2));
        assert_eq!(opened.is_some(), declared);
        // The recoverer that continues reads all records.
        drop(deaths);
        drop(manage);
        arrival.publish(&bed.rack.host(2), arrival_of(1));

        let manage = second.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let by_first = |event: &DeathEvent| matches!(event, DeathEvent::Declared(decision) if decision.case.incarnation.0 == 2);
        // Appointed is who declared it: then the first host has to give it up.
        if declared {
            for _ in 0..=RESIGN_BEATS + 64 {
                first.beat();
            }
        }
        let events = bed.watch(&mut deaths, &[&first, &second], &mut Off, is_done);
        let (declares, ends) = (events.iter().any(by_first), events.iter().any(is_done));
        assert!(declares && ends, "of {} events, the last is {:?}", events.len(), events.last());
        let death = NodeDeath::of(second.layout(), second.fabric(), VICTIM).unwrap();
        assert!(death.over, "{death:?}");
        // It only slept, and stops itself.
        paused.beat();
        assert!(paused.check_member().is_err());
        std::mem::forget(paused);
        bed.died.add(3);
        assert_eq!(bed.join(2, 4).incarnation(), Incarnation(3));
    }
}

/// Between a machine's return to a slot and its first line there, the line is of the host before.
#[test]
fn who_comes_back_and_dies_before_its_first_line_is_not_taken_for_the_host_before() {
    let bed = Bed::of_three(1);
    let (first, before) = (bed.join(0, 1), bed.join(2, 3));
    before.beat();
    // No mark says whose it is.
    first.layout().arrival(VICTIM).claim().publish(&bed.rack.host(1), arrival_of(2));
    let mut told = Vec::new();
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let fenced = |event: &DeathEvent| matches!(event, DeathEvent::Recovery(_));
    let mut fence = RecordingFence(&mut told);
    let events = bed.watch(&mut deaths, &[&first], &mut fence, fenced);
    assert!(events.iter().any(fenced), "{events:?}");
    assert!(
        !told.is_empty() && told.iter().all(|order| (&order.host, order.machine) == (&None, None))
    );
    let whom =
        NodeDeath::of(first.layout(), first.fabric(), VICTIM).unwrap().whom_in_words("host-2");
    assert!(whom.contains("nothing says which") && !whom.contains("host-2"), "{whom}");
}

/// A recoverer is about to begin, and one of a later case, whose life was given up in admission,
/// too: the one of the earlier case yields, and neither waits for the other for ever.
#[test]
fn of_two_that_are_about_to_recover_one_slot_the_earlier_yields() {
    let bed = Bed::of_three(1);
    let (first, second) = (bed.join(0, 1), bed.join(1, 2));
    bed.dies(bed.join(2, 3));
    let alive = [&first, &second];
    let arrival = first.layout().arrival(VICTIM).claim();

    let manages = [first.manage().unwrap(), second.manage().unwrap()];
    let [mut by_first, mut by_second] =
        manages.each_ref().map(|manage| Deaths::watch(manage, &bed.clock, SUSPECT_MS));
    assert!(
        bed.watch(&mut by_first, &alive, &mut NoFence, is_quarantined).iter().any(is_quarantined)
    );
    arrival.publish(&bed.rack.host(2), arrival_of(2));
    assert!(
        bed.watch(&mut by_second, &alive, &mut NoFence, is_quarantined).iter().any(is_quarantined)
    );
    arrival.publish(&bed.rack.host(2), arrival_of(1));

    let mut all = Vec::new();
    for _ in 0..100 {
        for deaths in [&mut by_first, &mut by_second] {
            all.extend(bed.look(deaths, &alive, &mut Off));
        }
    }
    assert!(all.iter().any(is_done), "{all:?}");
    assert!(all.iter().any(has_reached(RecoveryStep::Superseded)), "{all:?}");
    assert_eq!(bed.rack.conflicts(), []);
}

/// As before, and the recoverer of the earlier case is quarantined: it yields all the same, and
/// continues with the later one when the recoverer appointed there gives up.
#[test]
fn a_quarantined_recovery_yields_to_a_later_case() {
    let bed = Bed::of_three(1);
    let (first, second) = (bed.join(0, 1), bed.join(1, 2));
    bed.dies(bed.join(2, 3));
    let alive = [&first, &second];
    let arrival = first.layout().arrival(VICTIM).claim();
    let (manage, other) = (first.manage().unwrap(), second.manage().unwrap());
    let mut by_first = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let mut by_second = Deaths::watch(&other, &bed.clock, SUSPECT_MS);
    let events = bed.watch(&mut by_first, &alive, &mut NoFence, is_quarantined);
    assert!(events.iter().any(is_quarantined), "{events:?}");
    arrival.publish(&bed.rack.host(2), arrival_of(2));
    let events = bed.watch(&mut by_second, &alive, &mut NoFence, is_quarantined);
    assert!(events.iter().any(is_quarantined), "{events:?}");
    arrival.publish(&bed.rack.host(2), arrival_of(1));
    drop(by_second);
    drop(other);

    let yielded = has_reached(RecoveryStep::Superseded);
    let events = bed.watch(&mut by_first, &alive, &mut NoFence, &yielded);
    assert!(
        events.iter().any(yielded),
        "of {} events, the last is {:?}",
        events.len(),
        events.last()
    );
    for _ in 0..=RESIGN_BEATS + 64 {
        second.beat();
    }
    let events = bed.watch(&mut by_first, &alive, &mut Off, is_done);
    assert!(
        events.iter().any(is_done),
        "of {} events, the last is {:?}",
        events.len(),
        events.last()
    );
}

/// A process is in admission to a slot that was not left, and has not said that it arrives:
/// it came before the case of its life was opened, which was for another that gave up. It is the
/// one to be fenced.
#[test]
fn who_came_before_its_case_was_opened_is_fenced_behind_a_line_of_the_life_before() {
    let bed = Bed::of_three(1);
    let (first, second, before) = (bed.join(0, 1), bed.join(1, 2), bed.join(2, 3));
    before.beat();
    bed.rack.crash(2);
    std::mem::forget(before);
    let layout = first.layout();
    let again = HostIdentity { boot_id: [99, 0], ..HostIdentity::simulated(2) };
    let attempt = JoinAttempt::new(VICTIM, &again, ProcessIdentity::new(4, 1));
    let snapshot = attempt.look(layout, &bed.rack.host(2), Incarnation(1));
    assert_eq!(attempt.try_claim(layout, &bed.rack.host(2), &snapshot, Incarnation(2)), Ok(()));
    let arrival = layout.arrival(VICTIM).claim();
    arrival.publish(&bed.rack.host(2), arrival_of(2));
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let suspected = |event: &DeathEvent| *event == DeathEvent::Suspected;
    let events = bed.watch(&mut deaths, &[&first, &second], &mut NoFence, suspected);
    assert!(events.iter().any(suspected), "{events:?}");
    drop(deaths);
    arrival.publish(&bed.rack.host(2), arrival_of(1));

    let manage = second.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let mut told = Vec::new();
    let fenced = |event: &DeathEvent| matches!(event, DeathEvent::Recovery(_));
    let events = bed.watch(&mut deaths, &[&first, &second], &mut RecordingFence(&mut told), fenced);
    assert!(events.iter().any(fenced), "{events:?}");
    let order = told.first().unwrap();
    assert_eq!(order.machine.map(|machine| machine.boot_id), Some(again.boot_id), "{order:?}");
    assert_eq!((order.incarnation, &order.host), (Incarnation(2), &None));
    // As an operator is told.
    let death = NodeDeath::of(layout, first.fabric(), VICTIM).unwrap();
    assert_eq!((death.in_admission, death.machine), (true, order.machine), "{death:?}");
    let whom = death.whom_in_words("host-2");
    let boot = format!("boot {:016x}{:016x}", again.boot_id[0], again.boot_id[1]);
    assert!(whom.contains(&boot) && !whom.contains("host-2"), "{whom}");
}

/// A bit of an arrival flips, of each in turn: nobody is taken for past by it, nor for gone.
/// Somebody may have come for the next life, whom an operator has to know to be off; then the slot
/// is whole again.
#[test]
fn a_damaged_arrival_is_of_the_next_life_and_made_good() {
    for bit in [0, 7, 31, 32, 63] {
        let bed = Bed::of_three(1);
        let (first, before) = (bed.join(0, 1), bed.join(2, 3));
        bed.dies(before);
        let back = bed.join(2, 4);
        back.beat();
        let (layout, fabric) = (first.layout(), first.fabric());
        let arrival = layout.arrival(VICTIM);
        let whole = arrival.fresh(fabric);
        assert_eq!(whole, arrival_of(2));
        arrival.claim().publish(&bed.rack.host(2), whole ^ 1 << bit);
        assert!(!is_over(layout, fabric, VICTIM, Incarnation(2)), "bit {bit}");
        bed.dies(back);
        let manage = first.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let mut told = Vec::new();
        let events =
            bed.watch(&mut deaths, &[&first], &mut RecordingFence(&mut told), is_quarantined);
        assert!(events.iter().any(is_quarantined), "{events:?}");
        let order = told.first().unwrap();
        assert_eq!((order.incarnation, &order.host), (Incarnation(3), &None), "bit {bit}");
        let events = bed.watch(&mut deaths, &[&first], &mut Off, is_done);
        assert!(events.iter().any(is_done), "{events:?}");
        assert_eq!(arrival.fresh(fabric), arrival_of(3));
        assert_eq!(bed.join(2, 5).incarnation(), Incarnation(4));
    }
}
