//! Objects and named roots on simulated racks: many seeds, both cache modes, with and without
//! posted writes, pauses and crashes.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use rackline_tests::heap_scenarios::{
    chunks_on_request, heaps_through_crashes, heaps_without_crashes,
};
use rackline_tests::rack::{Mutant, for_seeds};

#[test]
fn every_byte_is_accounted_for_whichever_process_dies() {
    for_seeds(0..60, |seed| heaps_through_crashes(Mutant::NONE, seed));
}

#[test]
fn every_byte_is_accounted_for_when_nobody_dies() {
    for_seeds(0..30, |seed| heaps_without_crashes(Mutant::NONE, seed));
}

#[test]
fn a_host_that_runs_dry_gets_what_others_do_not_need() {
    for_seeds(0..30, |seed| chunks_on_request(Mutant::NONE, seed));
}
