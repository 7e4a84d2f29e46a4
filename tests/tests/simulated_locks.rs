//! The two-tier lock, membership, the lock manager and the chunk table on simulated racks: many
//! seeds, both cache modes, with and without posted writes, pauses and crashes.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use rackline_tests::lock_fairness::{overtaking_is_bounded, pass_through_crashes};
use rackline_tests::lock_scenarios::{
    chunks_through_crashes, count_through_takeovers, count_together, free_locks_are_granted,
    standby_stands_by,
};
use rackline_tests::rack::{Mutant, for_seeds};

#[test]
fn no_two_hold_a_lock_and_no_update_is_lost() {
    for_seeds(0..90, |seed| count_together(Mutant::NONE, seed));
}

#[test]
fn two_threads_that_ask_at_once_both_get_their_locks() {
    for_seeds(0..120, |seed| free_locks_are_granted(Mutant::NONE, seed));
}

#[test]
fn locks_survive_the_change_of_their_manager() {
    for_seeds(0..60, |seed| count_through_takeovers(Mutant::NONE, seed));
}

#[test]
fn a_standby_waits_for_its_turn() {
    for_seeds(0..20, |seed| standby_stands_by(Mutant::NONE, seed));
}

#[test]
fn chunks_have_one_owner_whichever_process_dies() {
    for_seeds(0..90, |seed| chunks_through_crashes(Mutant::NONE, seed));
}

#[test]
fn nobody_is_overtaken_without_bound() {
    for_seeds(0..48, |seed| overtaking_is_bounded(Mutant::NONE, seed));
}

#[test]
fn what_is_passed_on_within_a_host_is_never_lost() {
    for_seeds(0..72, |seed| pass_through_crashes(Mutant::NONE, seed));
}
