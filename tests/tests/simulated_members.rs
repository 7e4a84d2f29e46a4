//! Deaths of hosts on simulated racks: many seeds, both cache modes and lock protocols, with and
//! without posted writes.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use rackline_tests::member_scenarios::{
    a_paused_host_is_quarantined, recoverers_die, the_dead_are_replaced, the_dead_return,
};
use rackline_tests::rack::{Mutant, for_seeds};
use rackline_tests::step_tests::deaths;

#[test]
fn another_machine_takes_the_place_of_a_dead_host() {
    for_seeds(0..60, |seed| the_dead_are_replaced(Mutant::NONE, seed));
}

#[test]
fn who_dies_while_recovering_is_recovered_too() {
    for_seeds(0..60, |seed| recoverers_die(Mutant::NONE, seed));
}

#[test]
fn a_host_that_only_paused_gets_nothing_done_and_loses_nothing() {
    for_seeds(0..60, |seed| a_paused_host_is_quarantined(Mutant::NONE, seed));
}

#[test]
fn a_machine_that_comes_back_never_meets_its_recoverer() {
    for_seeds(0..120, |seed| the_dead_return(Mutant::NONE, seed));
}

#[test]
fn each_step_of_a_death_is_seen_at_once() {
    for_seeds(0..8, |seed| deaths::a_death_is_seen_step_by_step(Mutant::NONE, seed));
    for_seeds(0..8, |seed| deaths::two_declare_one_death(Mutant::NONE, seed));
    for_seeds(0..3, |seed| deaths::a_return_meets_a_recovery(Mutant::NONE, seed));
}
