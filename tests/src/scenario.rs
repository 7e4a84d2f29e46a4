//! All scenarios by name: what `prove simulate` and `prove mutate` run.

use crate::cache_scenarios::{flipped_bits_are_misses, serve_through_crashes, serve_together};
use crate::heap_scenarios::{chunks_on_request, heaps_through_crashes, heaps_without_crashes};
use crate::litmus::{
    bakery, chunks, deaths, formatting, grants, joining, moving, objects, takeover,
};
use crate::lock_fairness::{overtaking_is_bounded, pass_through_crashes};
use crate::lock_scenarios::{
    chunks_through_crashes, count_through_takeovers, count_together, standby_stands_by,
};
use crate::member_scenarios::{
    a_paused_host_is_quarantined, recoverers_die, the_dead_are_replaced, the_dead_return,
};
use crate::rack::Mutant;

/// Something that hosts do on a simulated rack.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name, for people and for `--scenario`.
    pub name: &'static str,
    /// What it is about.
    pub family: Family,
    /// Runs it: panics when the program does not do what it should under this seed.
    pub run: fn(Mutant, u64),
}

/// Kinds of scenarios.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// One step at a time, moved by hand: cheap, and nothing is mended by a repetition.
    Litmus,
    /// Locks and lock managers under a seeded schedule.
    Locks,
    /// The chunk table under a seeded schedule.
    Chunks,
    /// Objects and named roots under a seeded schedule.
    Heaps,
    /// The KV cache on top of all under a seeded schedule.
    Cache,
    /// Long seeded schedules on a number of hosts of their own.
    Fixed,
}

impl Family {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Litmus => "litmus",
            Self::Locks => "locks",
            Self::Chunks => "chunks",
            Self::Heaps => "heaps",
            Self::Cache => "cache",
            Self::Fixed => "fixed",
        }
    }

    /// Schedules of each of its scenarios in a round of `prove simulate`: those in which a host waits
    /// out the heart of another, or moves payload, take ten times as long.
    #[must_use]
    pub fn turns(self) -> u64 {
        match self {
            Self::Locks => 16,
            Self::Chunks | Self::Heaps | Self::Cache | Self::Litmus | Self::Fixed => 1,
        }
    }

    /// Whether its scenarios run on any number of hosts, and fast enough for very many seeds.
    #[must_use]
    pub fn takes_any_hosts(self) -> bool {
        match self {
            Self::Locks | Self::Chunks | Self::Cache => true,
            Self::Litmus | Self::Heaps | Self::Fixed => false,
        }
    }
}

macro_rules! scenarios {
    ($($family:ident: $($function:path),+;)+) => {
        &[$($(Scenario {
            name: last_segment(stringify!($function)),
            family: Family::$family,
            run: $function,
        }),+),+]
    };
}

/// All of them.
pub const ALL: &[Scenario] = scenarios! {
    Litmus:
        grants::grants_are_seen_at_once,
        grants::a_manager_is_seen_to_move,
        takeover::a_takeover_is_seen_at_once,
        takeover::a_waiting_request_is_found_by_the_next_manager,
        bakery::numbers_are_seen_at_once,
        bakery::who_chooses_is_waited_for,
        bakery::a_dead_host_holds_until_it_is_back,
        chunks::chunks_change_hands,
        chunks::a_closed_intent_stays_closed,
        chunks::a_chunk_takes_no_stores_along,
        chunks::an_open_intent_in_old_caches_is_not_redone,
        joining::a_slot_that_is_not_left_is_refused,
        joining::two_hosts_with_one_number,
        chunks::a_host_dies_at_each_step,
        moving::a_slot_moves_and_comes_back,
        moving::a_manager_moves_and_comes_back,
        joining::a_holder_dies_and_joins_again,
        formatting::a_new_region_is_seen_at_once,
        joining::a_claim_meets_a_join,
        formatting::a_formatter_dies,
        deaths::a_death_is_seen_step_by_step,
        deaths::two_declare_one_death,
        deaths::a_return_meets_a_recovery,
        objects::frees_arrive,
        objects::rings_go_round,
        objects::a_sender_dies_at_each_step,
        objects::a_heap_moves,
        objects::a_heap_survives_a_loss_of_power,
        objects::a_used_chunk_becomes_a_heap;
    Locks: count_together, count_through_takeovers;
    Chunks: chunks_through_crashes;
    Heaps: heaps_through_crashes, heaps_without_crashes, chunks_on_request;
    Cache: serve_together, serve_through_crashes;
    Fixed:
        standby_stands_by,
        the_dead_are_replaced,
        recoverers_die,
        a_paused_host_is_quarantined,
        the_dead_return,
        overtaking_is_bounded,
        pass_through_crashes,
        flipped_bits_are_misses;
};

/// The name of a function without its path.
const fn last_segment(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut start = bytes.len();
    while start > 0 && bytes[start - 1] != b':' && bytes[start - 1] != b' ' {
        start -= 1;
    }
    let (_, name) = path.split_at(start);
    name
}
