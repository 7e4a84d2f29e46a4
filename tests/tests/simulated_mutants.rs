//! Protocols with one rule broken fail on simulated racks: what `prove simulate --mutant` runs.

use cxl_shm::verify::Mutant;
use rackline_tests::scenario::{ALL, Family, Scenario};
use rackline_tests::simulation::{Plan, Tally, run};

/// More than any of them needs: the first failures end a run.
const SCHEDULES: u64 = 1000;

fn run_those(wanted: impl Fn(&Scenario) -> bool, broken: Option<Mutant>, schedules: u64) -> Tally {
    let scenarios: Vec<Scenario> = ALL.iter().copied().filter(wanted).collect();
    run(&Plan {
        scenarios: &scenarios,
        first_seed: 0,
        schedules: Some(schedules),
        seconds: None,
        hosts: (4, 16),
        threads: 2,
        broken,
    })
}

fn run_locks(broken: Option<Mutant>, schedules: u64) -> Tally {
    run_those(|scenario| scenario.family == Family::Locks, broken, schedules)
}

#[test]
fn broken_rules_of_locks_are_noticed() {
    for mutant in [Mutant::ReusesTicket, Mutant::PublishesAfterRelease] {
        let tally = run_locks(Some(mutant), SCHEDULES);
        assert!(!tally.failures.is_empty(), "{mutant:?} passes {} schedules", tally.total());
    }
    // What was broken for one run is whole in the next.
    assert_eq!(run_locks(None, 64).failures, []);
}

#[test]
fn broken_rules_of_orphans_are_noticed() {
    for broken in [None, Some(Mutant::GuardsUnseen), Some(Mutant::ComesHomeUnseen)] {
        let tally = run_those(|it| it.name == "a_reclaimer_is_seen_at_once", broken, 8);
        assert_eq!(tally.failures.is_empty(), broken.is_none(), "{broken:?}");
    }
}
