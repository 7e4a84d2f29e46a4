//! Eviction, holds and chunks that change hands on simulated racks whose pool is too small: many
//! seeds, both cache modes, with and without posted writes, pauses and crashes.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use rackline_tests::pressure_scenarios::{
    serve_from_too_small_a_pool, share_chunks_through_crashes,
};
use rackline_tests::rack::{Mutant, for_seeds};

#[test]
fn what_is_held_is_there_however_full_the_pool() {
    for_seeds(0..30, |seed| serve_from_too_small_a_pool(Mutant::NONE, seed));
}

#[test]
fn nothing_is_lost_whichever_process_dies() {
    for_seeds(0..30, |seed| share_chunks_through_crashes(Mutant::NONE, seed));
}
