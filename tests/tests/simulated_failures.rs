//! Lines of the metadata that cannot be read any more, in each part of it, on simulated racks: with
//! pauses and crashes, locks, a pool that is too small, and drives.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::Mutex;

use rackline_tests::drive_scenarios::drives_beside_bad_metadata;
use rackline_tests::failing_lines::Part;
use rackline_tests::metadata_scenarios::{counts_beside_bad_metadata, report_of};
use rackline_tests::pressure_scenarios::share_chunks_beside_bad_metadata;
use rackline_tests::rack::{Mutant, for_seeds};

/// Seeds of the scenario of the cache.
const SEEDS: u64 = 60;

fn replayed() -> bool {
    std::env::var_os("RACKLINE_SEED").is_some()
}

#[test]
fn metadata_that_goes_bad_costs_a_process_the_pool_and_nobody_a_byte() {
    let (met, others) = (Mutex::new(BTreeMap::<Part, u64>::new()), Mutex::new([0; 3]));
    for_seeds(0..SEEDS, |seed| {
        let report = report_of(Mutant::NONE, seed, false);
        for (part, times) in report.met {
            *met.lock().unwrap().entry(part).or_default() += times;
        }
        let now = [report.acknowledged, report.finished, report.without_pool];
        others.lock().unwrap().iter_mut().zip(now).for_each(|(all, now)| *all += now);
    });
    let (met, others) = (met.into_inner().unwrap(), others.into_inner().unwrap());
    let missing: Vec<_> = Part::ALL.into_iter().filter(|part| !met.contains_key(part)).collect();
    assert!(replayed() || missing.is_empty(), "no process met {missing:?}: {met:?}");
    assert!(
        replayed() || others.iter().all(|all| *all > 20),
        "{others:?}: hardly anything happened"
    );
}

/// Without FAULT-F4 what a process concludes from zeros reaches others, and is noticed.
#[test]
fn a_process_that_goes_on_after_a_failure_is_noticed() {
    let noticed = |seed: &u64| catch_unwind(|| report_of(Mutant::NONE, *seed, true)).is_err();
    assert!((0..SEEDS).any(|seed| noticed(&seed)), "nobody noticed");
}

#[test]
fn locks_are_exclusive_while_metadata_goes_bad() {
    let cut_off = Mutex::new(0);
    for_seeds(0..60, |seed| {
        let now = counts_beside_bad_metadata(Mutant::NONE, seed);
        *cut_off.lock().unwrap() += now;
    });
    let cut_off = cut_off.into_inner().unwrap();
    assert!(replayed() || cut_off > 60, "{cut_off} processes were cut off");
}

#[test]
fn no_slot_leaks_from_a_small_pool_whose_metadata_goes_bad() {
    for_seeds(0..12, |seed| share_chunks_beside_bad_metadata(Mutant::NONE, seed));
}

#[test]
fn drives_bring_back_what_they_have_while_metadata_goes_bad() {
    for_seeds(0..6, |seed| drives_beside_bad_metadata(Mutant::NONE, seed));
}
