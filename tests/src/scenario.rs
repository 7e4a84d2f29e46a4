//! All scenarios by name: what `prove simulate` and `prove mutate` run.

use crate::cache_scenarios::{flipped_bits_are_misses, serve_through_crashes, serve_together};
use crate::drive_scenarios::{
    agents_die_beside_requests, drives_beside_bad_metadata, serve_from_drives,
};
use crate::heap_scenarios::{chunks_on_request, heaps_through_crashes, heaps_without_crashes};
use crate::lock_fairness::{overtaking_is_bounded, pass_through_crashes};
use crate::lock_scenarios::{
    chunks_through_crashes, count_through_takeovers, count_together, free_locks_are_granted,
    standby_stands_by,
};
use crate::member_scenarios::{
    a_paused_host_is_quarantined, recoverers_die, the_dead_are_replaced, the_dead_return,
};
use crate::metadata_scenarios::{locks_beside_bad_metadata, metadata_goes_bad};
use crate::orphan_scenarios::vacant_nodes_make_room;
use crate::poison_scenarios::{payload_goes_bad, payload_goes_bad_under_pressure};
use crate::pressure_scenarios::{
    serve_from_too_small_a_pool, share_chunks_beside_bad_metadata, share_chunks_through_crashes,
};
use crate::rack::Mutant;
use crate::step_tests::{
    abandoned, admission, bakery, beats, chunks, deaths, deep, formatting, grants, joining,
    lock_table, moving, objects, orphans, remains, rescue, roots, takeover,
};

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
    Step,
    /// Locks and lock managers under a seeded schedule.
    Locks,
    /// The chunk table under a seeded schedule.
    Chunks,
    /// The KV cache on top of all under a seeded schedule.
    Cache,
    /// The KV cache in a pool that is too small for it.
    Pressure,
    /// The KV cache in such a pool, with a drive at each host.
    Drives,
    /// Hosts that die for good, are declared dead, recovered and replaced.
    Deaths,
    /// Objects and named roots under a seeded schedule, on three hosts.
    Heaps,
    /// Recoverers that die, hosts that seem dead and wake, or come back, on three to five hosts.
    Recoveries,
    /// What hosts published that died or left, in a pool that is too small, on three hosts.
    Orphans,
    /// Many waiters on one lock, on three hosts.
    Fairness,
    /// A lock manager and its standby, on two hosts.
    Standby,
    /// Bits of the device that flip under the KV cache, on hosts of its own number.
    Damage,
    /// Lines of the payload, or of the metadata, that go bad while the KV cache is served.
    Poison,
}

impl Family {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Locks => "locks",
            Self::Chunks => "chunks",
            Self::Cache => "cache",
            Self::Pressure => "pressure",
            Self::Drives => "drives",
            Self::Deaths => "deaths",
            Self::Heaps => "heaps",
            Self::Recoveries => "recoveries",
            Self::Orphans => "orphans",
            Self::Fairness => "fairness",
            Self::Standby => "standby",
            Self::Damage => "damage",
            Self::Poison => "poison",
        }
    }

    /// Schedules of each of its scenarios in a round of `prove simulate`. A schedule of locks takes
    /// a few milliseconds, and most protocols are in it; one in which a host moves payload, or
    /// waits out the heartbeat of another, takes five to twenty times as long, and has a smaller
    /// share. Step tests are no schedules: `prove mutate` and the suites run them.
    #[must_use]
    pub fn turns(self) -> u64 {
        match self {
            Self::Step => 0,
            Self::Locks => 400,
            Self::Chunks => 10,
            Self::Deaths => 6,
            Self::Damage => 4,
            Self::Cache | Self::Heaps | Self::Poison => 3,
            Self::Recoveries | Self::Fairness | Self::Standby => 2,
            Self::Pressure | Self::Drives | Self::Orphans => 1,
        }
    }

    /// Whether its scenarios run on any number of hosts.
    #[must_use]
    pub fn takes_any_hosts(self) -> bool {
        match self {
            Self::Locks
            | Self::Chunks
            | Self::Cache
            | Self::Pressure
            | Self::Drives
            | Self::Poison
            | Self::Deaths => true,
            Self::Step
            | Self::Heaps
            | Self::Recoveries
            | Self::Orphans
            | Self::Fairness
            | Self::Standby
            | Self::Damage => false,
        }
    }

    /// Whether `prove mutate` runs its scenarios: the layers above remove their own flushes, and
    /// what the long schedules reach is reached by cheaper ones.
    #[must_use]
    pub fn is_mutated(self) -> bool {
        matches!(self, Self::Step | Self::Locks | Self::Chunks | Self::Heaps)
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
    Step:
        grants::grants_are_seen_at_once,
        grants::a_manager_is_seen_to_move,
        takeover::a_takeover_is_seen_at_once,
        takeover::a_waiting_request_is_found_by_the_next_manager,
        bakery::numbers_are_seen_at_once,
        bakery::who_chooses_is_waited_for,
        bakery::a_dead_host_holds_until_it_is_back,
        chunks::chunks_change_hands,
        chunks::the_last_chunk_is_taken_once,
        chunks::a_closed_intent_stays_closed,
        chunks::a_chunk_takes_no_stores_along,
        chunks::an_open_intent_in_old_caches_is_not_redone,
        joining::a_join_is_seen_at_once,
        joining::a_slot_that_is_not_left_is_refused,
        joining::a_line_that_cannot_be_read_is_still_somebodys,
        joining::two_hosts_with_one_number,
        joining::a_joining_host_dies_at_each_step,
        admission::a_life_that_was_declared_dead_is_not_taken,
        admission::an_image_of_a_machine_that_lives_is_refused,
        admission::a_death_during_admission_is_seen_at_once,
        chunks::a_host_dies_at_each_step,
        moving::a_slot_moves_and_comes_back,
        moving::a_manager_moves_and_comes_back,
        joining::a_holder_dies_and_joins_again,
        formatting::a_new_region_is_seen_at_once,
        joining::a_claim_meets_a_join,
        formatting::a_formatter_dies,
        deaths::a_death_is_seen_step_by_step,
        deaths::a_chunk_is_adopted_once,
        deaths::two_declare_one_death,
        deaths::a_return_meets_a_recovery,
        objects::frees_arrive,
        objects::rings_go_round,
        objects::a_sender_dies_at_each_step,
        objects::a_sender_dies_at_the_end_of_a_line,
        objects::a_free_of_a_former_life_frees_nothing,
        objects::an_idle_host_gives_back,
        objects::a_heap_moves,
        objects::an_object_is_handed_over,
        objects::a_heap_survives_a_loss_of_power,
        objects::a_used_chunk_becomes_a_heap,
        roots::destroyed_roots_are_collected_at_once,
        roots::a_root_is_found_at_the_first_look,
        roots::a_name_is_given_once,
        roots::a_destroyed_root_takes_its_stores_along,
        remains::a_chunk_that_is_not_taken_is_not_written,
        remains::what_was_given_back_stays_given_back,
        remains::the_dead_ask_for_nothing,
        remains::who_leaves_takes_nothing_along,
        beats::a_first_look_finds_the_last_beat,
        beats::a_silent_manager_is_noticed,
        beats::a_formatted_region_is_noticed,
        beats::an_overwritten_acknowledgement_is_written_anew,
        rescue::what_the_dead_held_is_granted,
        rescue::a_holder_that_was_seen_waiting_is_told_of,
        rescue::the_fence_is_told_who_lives_there,
        rescue::who_died_at_its_arrival_keeps_no_manager_waiting,
        rescue::a_recovery_that_broke_off_is_given_up,
        rescue::the_next_life_of_a_recoverer_is_seen_at_once,
        deep::double_buffers_are_never_forgotten,
        deep::holders_are_redone,
        deep::holders_and_hosts_die,
        deep::profiles_change_hands,
        deep::profiles_are_flushed,
        deep::a_recovery_passes_on,
        deep::the_killed_leave_nothing,
        lock_table::locks_are_given_out_once,
        abandoned::a_dead_holder_is_told_of,
        abandoned::a_dead_holder_is_told_of_by_the_manager,
        abandoned::a_holder_whose_tier_is_lost_is_flushed,
        abandoned::records_that_cannot_be_read_are_made_good,
        abandoned::an_end_of_numbers_is_seen_at_once,
        admission::a_refused_host_leaves_the_join_marks_as_they_were,
        formatting::a_superblock_is_replaced_at_each_step_of_a_look,
        objects::a_zeroed_object_is_seen_at_once,
        deaths::a_damaged_arrival_is_mended,
        orphans::a_chunk_of_a_vacant_node_is_given_once,
        orphans::a_reclaimer_is_seen_at_once,
        orphans::the_work_of_a_reclaimer_that_is_gone_is_ended,
        orphans::a_fenced_reclaimer_is_none;
    Locks: count_together, count_through_takeovers, free_locks_are_granted;
    Chunks: chunks_through_crashes;
    Heaps: heaps_through_crashes, heaps_without_crashes, chunks_on_request;
    Cache: serve_together, serve_through_crashes;
    Pressure: serve_from_too_small_a_pool, share_chunks_through_crashes;
    Drives: serve_from_drives, agents_die_beside_requests;
    Deaths: the_dead_are_replaced;
    Recoveries: recoverers_die, a_paused_host_is_quarantined, the_dead_return;
    Orphans: vacant_nodes_make_room;
    Fairness: overtaking_is_bounded, pass_through_crashes;
    Standby: standby_stands_by;
    Damage: flipped_bits_are_misses;
    Poison:
        payload_goes_bad, payload_goes_bad_under_pressure, metadata_goes_bad,
        locks_beside_bad_metadata, share_chunks_beside_bad_metadata, drives_beside_bad_metadata;
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
