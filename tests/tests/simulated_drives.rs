//! Backup, restore and requests beside eviction, publishes and deaths on simulated racks: many seeds,
//! both cache modes, with and without posted writes, pauses and crashes.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use rackline_tests::drive_scenarios::{agents_die_beside_requests, serve_from_drives};
use rackline_tests::rack::{Mutant, for_seeds};

#[test]
fn blocks_that_left_a_too_small_pool_come_back_from_drives() {
    for_seeds(0..20, |seed| serve_from_drives(Mutant::NONE, seed));
}

#[test]
fn nothing_that_a_drive_has_is_lost_whichever_process_dies() {
    for_seeds(0..20, |seed| agents_die_beside_requests(Mutant::NONE, seed));
}
