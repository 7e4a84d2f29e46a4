//! Thousands of schedules of engines, reads and writes, under a clock that the test moves. What the
//! log of each says is checked against the rules, and each broken rule is noticed.

mod checks;
mod simulation;

use std::cell::Cell;

use super::Mutant;
use checks::check;
use simulation::simulate;

/// Schedules of the whole test, and those of which one shows that a rule is broken.
const SCHEDULES: u64 = 3_000;
const SCHEDULES_OF_A_MUTANT: u64 = 400;

thread_local! {
    static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether the rule is broken in this test.
pub(super) fn breaks(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

#[test]
fn schedules_keep_the_rules() {
    let mut begun = [0; 3];
    for seed in 0..SCHEDULES {
        let (rig, log) = simulate(seed);
        match check(rig, &log) {
            Ok(counts) => begun.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(begun.iter().all(|count| *count > 1000), "each reason of a write is seen: {begun:?}");
}

#[test]
fn a_broken_rule_is_noticed() {
    for mutant in [
        Mutant::IgnoresReads,
        Mutant::KeepsWindow,
        Mutant::LastForward,
        Mutant::IgnoresGaps,
        Mutant::IgnoresBudget,
        Mutant::CountsOneWrite,
        Mutant::IgnoresDepth,
        Mutant::IdleAtOnce,
        Mutant::NeverLate,
        Mutant::LateBesideOthers,
        Mutant::YoungFirst,
    ] {
        BROKEN.set(Some(mutant));
        let fails = |seed: u64| {
            let (rig, log) = simulate(seed);
            check(rig, &log).err()
        };
        let noticed = (0..SCHEDULES_OF_A_MUTANT).find_map(fails);
        BROKEN.set(None);
        assert!(noticed.is_some(), "{mutant:?} goes unnoticed");
    }
}
