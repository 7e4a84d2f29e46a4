//! Step tests of the sound program, on lazy caches and on busy ones; and that a schedule is
//! the same whenever it is run.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use rackline_tests::rack::{Mutant, Watched, for_seeds, watch};
use rackline_tests::scenario::{ALL, Family, Scenario};

fn of(wanted: impl Fn(Family) -> bool) -> impl Iterator<Item = &'static Scenario> {
    ALL.iter().filter(move |scenario| wanted(scenario.family))
}

#[test]
fn what_is_published_is_seen_at_once() {
    for scenario in of(|family| family == Family::Step) {
        eprintln!("{}", scenario.name);
        for_seeds(0..4, |seed| (scenario.run)(Mutant::NONE, seed));
    }
}

#[test]
fn a_seed_is_one_schedule() {
    let mutant = Mutant { hosts: Some((4, 6)), ..Mutant::NONE };
    for scenario in of(Family::takes_any_hosts) {
        let traces = || {
            let Watched { steps, traces, .. } = watch(|| (scenario.run)(mutant, 5));
            (steps, traces)
        };
        let first = traces();
        assert!(first.0 > 0, "{} runs a schedule", scenario.name);
        assert_eq!(traces(), first, "{}", scenario.name);
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = ALL.iter().map(|scenario| scenario.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len());
}
