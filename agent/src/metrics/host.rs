//! What the processes of this host have done together, and how full the host's part of the pool is.

use std::time::Duration;

use kv_cache::Latency;
use rackline_metrics::Family;

use super::{HostSeen, seconds};

/// Counters of the cache, the names of their families, and what they count. What is left out is in
/// the families of the tiers.
pub(super) const SUMS: [(&str, &str, &str); 38] = [
    ("lookups", "rackline_lookups_total", "Lookups of a prefix."),
    ("lookup_blocks", "rackline_lookup_blocks_total", "Blocks that were looked up."),
    ("lookup_hits", "rackline_lookup_hits_total", "Blocks of those that the caller got."),
    ("log_entries", "rackline_log_entries_total", "Entries of publication logs that were read."),
    ("rescans", "rackline_rescans_total", "Segments that were scanned to make a replica current."),
    ("already_there", "rackline_publishes_already_there_total", "Blocks that were in the pool."),
    ("refused", "rackline_publishes_refused_total", "Blocks that were refused at publication."),
    (
        "aborted_blocks",
        "rackline_aborted_blocks_total",
        "Blocks given up before they were complete.",
    ),
    ("retired_blocks", "rackline_retired_blocks_total", "Blocks removed as cleared or damaged."),
    ("evicted_blocks", "rackline_evicted_blocks_total", "Blocks that made room for others."),
    (
        "evicted_for_descriptors",
        "rackline_evicted_for_descriptors_total",
        "Blocks of those that made room for descriptors, and not for bytes.",
    ),
    (
        "evictions_inline",
        "rackline_evictions_inline_total",
        "Times a publish had to make room itself.",
    ),
    (
        "spared_held",
        "rackline_evictions_spared_total",
        "Blocks not evicted because they were held.",
    ),
    ("held_blocks", "rackline_held_blocks_total", "Blocks that were held."),
    ("refused_holds", "rackline_refused_holds_total", "Blocks that were to be held, and were not."),
    (
        "holds_without_room",
        "rackline_holds_without_room_total",
        "Holds of those that were refused because the host's table of holds is full.",
    ),
    ("released_blocks", "rackline_released_blocks_total", "Holds that were given up."),
    ("restored_blocks", "rackline_restored_blocks_total", "Blocks from drives that lookups got."),
    ("chunks_added", "rackline_chunks_added_total", "Chunks that the node was given."),
    ("chunks_returned", "rackline_chunks_returned_total", "Chunks that the node gave back."),
    (
        "inherited_chunks",
        "rackline_inherited_chunks_total",
        "Chunks of vacant nodes that were given back to the region.",
    ),
    ("sweeps", "rackline_sweeps_total", "Times the directory was built anew from descriptors."),
    (
        "reclaimed_blocks",
        "rackline_reclaimed_blocks_total",
        "Blocks freed that a dead process, or an earlier life of the node, was writing.",
    ),
    (
        "memory_faults",
        "rackline_memory_faults_total",
        "Pages of payload that the device could not read, as processes of this host met them.",
    ),
    (
        "failed_chunks",
        "rackline_failed_chunks_total",
        "Chunks that processes of this host noted as failed: they are taken out of use.",
    ),
    (
        "ended_processes",
        "rackline_ended_processes_total",
        "Processes of this host that ended without leaving: killed, or crashed.",
    ),
    (
        "prefetch_asked_blocks",
        "rackline_prefetch_asked_blocks_total",
        "Blocks on drives that prefetches asked for.",
    ),
    (
        "prefetch_restored_blocks",
        "rackline_prefetch_restored_blocks_total",
        "Blocks of those that came into the pool.",
    ),
    (
        "prefetch_late_blocks",
        "rackline_prefetch_late_blocks_total",
        "Blocks of those that did not come before the deadline, or before a lookup asked itself.",
    ),
    (
        "prefetch_refused_blocks",
        "rackline_prefetch_refused_blocks_total",
        "Blocks of those that the agent of the drive refused for another reason.",
    ),
    (
        "prefetch_cancelled_blocks",
        "rackline_prefetch_cancelled_blocks_total",
        "Blocks of those that were not wanted any more before they came.",
    ),
    (
        "prefetch_used_blocks",
        "rackline_prefetch_used_blocks_total",
        "Prefetched blocks that a lookup found since.",
    ),
    (
        "prefetch_joined_blocks",
        "rackline_prefetch_joined_blocks_total",
        "Blocks that a lookup wanted while their prefetch was under way.",
    ),
    (
        "prefetch_full_blocks",
        "rackline_prefetch_full_blocks_total",
        "Blocks on drives not prefetched, because too many others were under way.",
    ),
    (
        "streamed_blocks",
        "rackline_streamed_blocks_total",
        "Layers of blocks that executors streamed to engines, each block once a layer.",
    ),
    ("streamed_bytes", "rackline_streamed_bytes_total", "Bytes of those."),
    (
        "stream_lost_blocks",
        "rackline_stream_lost_blocks_total",
        "Blocks of which an executor could not read a layer: lost, or damaged.",
    ),
    ("stream_waits", "rackline_stream_waits_total", "Layers for which an engine had to wait."),
];

pub(super) fn families(seen: &HostSeen) -> Vec<Family> {
    let counters = seen.sums.counters();
    let value =
        |name: &str| counters.iter().find(|(its, _)| *its == name).map_or(0, |(_, value)| *value);
    let mut families = Vec::new();
    for (counter, name, help) in SUMS {
        families.push(Family::counter(name, help).with(&[], value(counter)));
    }
    let mut waited = Family::counter(
        "rackline_stream_wait_seconds_total",
        "How long engines waited for layers of executors.",
    );
    waited.push_real(&[], Duration::from_micros(value("stream_wait_us")).as_secs_f64());
    families.push(waited);
    let mut misses = Family::counter(
        "rackline_misses_total",
        "Blocks that were found and could not be fetched or held, by reason.",
    );
    for (miss, count) in seen.sums.all_misses() {
        misses.push(&[("reason", miss.label())], count);
    }
    let mut took = Family::histogram(
        "rackline_call_seconds",
        "How long calls of sessions took, by kind: lookup, publish, fetch, hold, restore.",
    );
    for (latency, histogram) in Latency::ALL.into_iter().zip(&seen.latencies) {
        let (buckets, sum) = seconds(histogram);
        took.push_histogram(&[("call", latency.label())], buckets, sum);
    }
    families.extend([misses, took]);
    families.extend(occupancy(seen));
    families
}

fn occupancy(seen: &HostSeen) -> [Family; 4] {
    let occupancy = &seen.occupancy;
    let descriptors =
        Family::gauge("rackline_descriptors", "Descriptors of this node, by what they are for.");
    let descriptors = descriptors
        .with(&[("state", "ready")], occupancy.ready_blocks)
        .with(&[("state", "writing")], occupancy.writing_blocks);
    let gauge = |name, help, value| Family::gauge(name, help).with(&[], value);
    [
        descriptors,
        gauge(
            "rackline_descriptors_max",
            "Most descriptors that this node can use at once.",
            occupancy.blocks_max,
        ),
        gauge(
            "rackline_pool_free_bytes",
            "Bytes of payload slots in the chunks of this node that are free.",
            occupancy.free_bytes,
        ),
        gauge("rackline_pool_chunks", "Chunks that this node owns for blocks.", occupancy.chunks),
    ]
}

#[cfg(test)]
mod tests {
    use kv_cache::Metrics;

    use super::*;

    /// Counters that are figures of the tiers, or belong to one process.
    const ELSEWHERE: [&str; 18] = [
        "fetched_blocks",
        "fetched_bytes",
        "gpu_fetched_blocks",
        "gpu_fetched_bytes",
        "published_blocks",
        "published_bytes",
        "gpu_published_blocks",
        "gpu_published_bytes",
        "promoted_blocks",
        "promoted_bytes",
        "found_blocks",
        "removed_blocks",
        "drive_blocks",
        "replica_blocks",
        "replica_bytes",
        "membership_lost",
        "told_uses",
        "stream_wait_us",
    ];
    /// Counted to keep the accounts, and of no use to a person.
    const NOT_SHOWN: [&str; 2] = ["found_bytes", "removed_bytes"];

    #[test]
    fn every_counter_of_the_cache_is_shown_once() {
        let mut shown: Vec<_> = SUMS.iter().map(|(counter, ..)| *counter).collect();
        shown.extend(ELSEWHERE);
        shown.extend(NOT_SHOWN);
        let mut counters: Vec<_> = Metrics::default().counters().map(|(name, _)| name).to_vec();
        shown.sort_unstable();
        counters.sort_unstable();
        assert_eq!(shown, counters);
    }
}
