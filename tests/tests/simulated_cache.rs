//! Publish, lookup and fetch on simulated racks of 2 to 4 hosts: many seeds, both cache modes, with
//! and without posted writes, DMA past the caches and through them, pauses and crashes.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use std::sync::Mutex;

use rackline_tests::cache_scenarios::{
    flipped_bits_are_misses, serve_through_crashes, serve_together,
};
use rackline_tests::orphan_scenarios::the_dead_make_room;
use rackline_tests::poison_scenarios::{bad_blocks_after, payload_goes_bad_under_pressure};
use rackline_tests::rack::{Mutant, for_seeds};

#[test]
fn every_host_reads_what_any_host_published() {
    for_seeds(0..60, |seed| serve_together(Mutant::NONE, seed));
}

#[test]
fn no_wrong_byte_is_accepted_whichever_process_dies() {
    for_seeds(0..60, |seed| serve_through_crashes(Mutant::NONE, seed));
}

#[test]
fn damage_is_a_miss() {
    for_seeds(0..30, |seed| flipped_bits_are_misses(Mutant::NONE, seed));
}

#[test]
fn lines_that_go_bad_are_misses() {
    let found = Mutex::new(0);
    for_seeds(0..20, |seed| {
        let now = bad_blocks_after(Mutant::NONE, seed);
        *found.lock().unwrap() += now;
    });
    let found = found.into_inner().unwrap();
    assert!(std::env::var_os("RACKLINE_SEED").is_some() || found > 20, "{found} were found");
    for_seeds(0..20, |seed| payload_goes_bad_under_pressure(Mutant::NONE, seed));
}

#[test]
fn the_room_of_the_dead_is_used_and_nothing_is_lost() {
    let used = Mutex::new(0);
    for_seeds(0..36, |seed| {
        let now = the_dead_make_room(Mutant::NONE, seed);
        *used.lock().unwrap() += now;
    });
    let replayed = std::env::var_os("RACKLINE_SEED").is_some();
    let used = used.into_inner().unwrap();
    assert!(replayed || used > 6, "{used} chunks: hardly anybody ran short");
}
