//! What each node says of itself, and the sums over the rack, as `rackline status` lists them.

use anyhow::Result;
use bytesize::ByteSize;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::lifecycle::NodeHeartbeat;
use kv_cache::{NodeSummary, SummarySeen, summary_of};
use serde::Serialize;

use crate::output::say;

/// A node says something twice a second. A summary as old as this is not of now.
const OLD_MS: u64 = 3_000;

/// What a node says of itself. Counters are since its host joined.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SummaryStatus {
    /// `current`; `old`, when the node has said nothing for 3 seconds, or does not live; `missing`, when
    /// no process of its host has said anything since it joined; or `unreadable`.
    pub(crate) state: &'static str,
    /// About how old it is, by the heartbeat of the node.
    pub(crate) age_ms: u64,
    #[serde(flatten)]
    pub(crate) counted: Counted,
}

/// The figures of one node, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counted {
    pool_free_bytes: u64,
    pub(crate) holds: u64,
    lookups: u64,
    pub(crate) lookup_blocks: u64,
    pub(crate) lookup_hits: u64,
    fetched_blocks: u64,
    pub(crate) fetched_bytes: u64,
    /// Blocks that were found, and could not be fetched or held.
    misses: u64,
    published_blocks: u64,
    pub(crate) published_bytes: u64,
    restored_blocks: u64,
    pub(crate) restored_bytes: u64,
    pub(crate) evicted_blocks: u64,
    removed_blocks: u64,
    pub(crate) damaged_blocks: u64,
    pub(crate) memory_faults: u64,
    pub(crate) ended_processes: u64,
}

impl Counted {
    fn of(summary: &NodeSummary) -> Self {
        Self {
            pool_free_bytes: summary.free_bytes,
            holds: summary.holds.into(),
            lookups: summary.lookups,
            lookup_blocks: summary.lookup_blocks,
            lookup_hits: summary.lookup_hits,
            fetched_blocks: summary.fetched_blocks,
            fetched_bytes: summary.fetched_bytes,
            misses: summary.misses,
            published_blocks: summary.published_blocks,
            published_bytes: summary.published_bytes,
            restored_blocks: summary.promoted_blocks,
            restored_bytes: summary.promoted_bytes,
            evicted_blocks: summary.evicted_blocks,
            removed_blocks: summary.removed_blocks,
            damaged_blocks: summary.damaged_blocks,
            memory_faults: summary.memory_faults,
            ended_processes: summary.ended_processes,
        }
    }

    fn add(self, other: &Self) -> Self {
        Self {
            pool_free_bytes: self.pool_free_bytes + other.pool_free_bytes,
            holds: self.holds + other.holds,
            lookups: self.lookups + other.lookups,
            lookup_blocks: self.lookup_blocks + other.lookup_blocks,
            lookup_hits: self.lookup_hits + other.lookup_hits,
            fetched_blocks: self.fetched_blocks + other.fetched_blocks,
            fetched_bytes: self.fetched_bytes + other.fetched_bytes,
            misses: self.misses + other.misses,
            published_blocks: self.published_blocks + other.published_blocks,
            published_bytes: self.published_bytes + other.published_bytes,
            restored_blocks: self.restored_blocks + other.restored_blocks,
            restored_bytes: self.restored_bytes + other.restored_bytes,
            evicted_blocks: self.evicted_blocks + other.evicted_blocks,
            removed_blocks: self.removed_blocks + other.removed_blocks,
            damaged_blocks: self.damaged_blocks + other.damaged_blocks,
            memory_faults: self.memory_faults + other.memory_faults,
            ended_processes: self.ended_processes + other.ended_processes,
        }
    }
}

/// What the node of `heartbeat` says, freshly read.
pub(crate) fn look(
    heartbeat: &NodeHeartbeat,
    superblock: &Superblock,
    layout: &Layout,
    fabric: &impl Fabric,
) -> Result<SummaryStatus> {
    let seen = summary_of(fabric, superblock, layout, heartbeat.node)?;
    let beats = layout.heartbeat(heartbeat.node).fresh(fabric);
    Ok(status_of(seen, heartbeat, beats))
}

fn status_of(seen: SummarySeen, heartbeat: &NodeHeartbeat, beats: u64) -> SummaryStatus {
    let none = |state| SummaryStatus { state, age_ms: 0, counted: Counted::default() };
    match (seen, seen.of(heartbeat.incarnation)) {
        (SummarySeen::Unreadable, _) => none("unreadable"),
        (_, None) => none("missing"),
        (_, Some(summary)) => {
            let age_ms = summary.age_ms(beats);
            let is_current = heartbeat.beats && age_ms < OLD_MS;
            let state = if is_current { "current" } else { "old" };
            SummaryStatus { state, age_ms, counted: Counted::of(&summary) }
        }
    }
}

/// The sums over all nodes that say something, those that are gone among them.
pub(crate) fn sum<'s>(summaries: impl Iterator<Item = &'s SummaryStatus>) -> Counted {
    summaries.fold(Counted::default(), |sum, summary| sum.add(&summary.counted))
}

/// A line for each node, and one for the rack.
pub(crate) fn print<'s>(summaries: impl Iterator<Item = (u16, &'s SummaryStatus)> + Clone) {
    let told = summaries.clone().filter(|(_, summary)| summary.counted != Counted::default());
    if told.count() == 0 {
        return;
    }
    say!(
        "since its host joined   hits of looked up        fetched     published    evicted   holds"
    );
    for (node, summary) in summaries.clone() {
        let note = match summary.state {
            "current" => String::new(),
            "old" => "  not of now: the node is gone, or no engine or agent runs there".to_owned(),
            "missing" => "  nothing said yet: no engine or agent of the host has run".to_owned(),
            _ => "  unreadable; the next half second of an engine or agent mends it".to_owned(),
        };
        line(&format!("node {node}"), &summary.counted, &note);
    }
    line("rack", &sum(summaries.map(|(_, summary)| summary)), "");
}

fn line(name: &str, counted: &Counted, note: &str) {
    say!(
        "{name:<16} {:>11} of {:>11}  {:>11}  {:>12}  {:>9}  {:>6}{note}",
        counted.lookup_hits,
        counted.lookup_blocks,
        ByteSize(counted.fetched_bytes).to_string(),
        ByteSize(counted.published_bytes).to_string(),
        counted.evicted_blocks,
        counted.holds,
    );
}

#[cfg(test)]
mod tests {
    use cxl_shm::layout::NodeState;
    use cxl_shm::units::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn a_summary_is_current_old_missing_or_unreadable() {
        let heartbeat = NodeHeartbeat {
            node: NodeId(1),
            state: Some(NodeState::Joined),
            incarnation: Incarnation(3),
            host: "a".to_owned(),
            in_admission: false,
            beats: true,
        };
        let summary = told(3);
        let state =
            |seen, heartbeat: &NodeHeartbeat, beats| status_of(seen, heartbeat, beats).state;
        let told_now = SummarySeen::Told(summary);
        assert_eq!(state(told_now, &heartbeat, summary.heartbeat + 60), "current");
        assert_eq!(state(told_now, &heartbeat, summary.heartbeat + 300), "old");
        let silent = NodeHeartbeat { beats: false, ..heartbeat.clone() };
        assert_eq!(state(told_now, &silent, summary.heartbeat), "old");
        let rejoined = NodeHeartbeat { incarnation: Incarnation(4), ..heartbeat.clone() };
        assert_eq!(state(told_now, &rejoined, summary.heartbeat), "missing");
        assert_eq!(state(SummarySeen::Nothing, &heartbeat, 0), "missing");
        assert_eq!(state(SummarySeen::Unreadable, &heartbeat, 0), "unreadable");
        let status = [status_of(told_now, &heartbeat, 0), status_of(told_now, &silent, 0)];
        let sums = sum(status.iter());
        assert_eq!((sums.lookup_hits, sums.holds, sums.published_bytes), (10, 4, 14));
    }

    fn told(incarnation: u32) -> NodeSummary {
        NodeSummary {
            incarnation: Incarnation(incarnation),
            number: 9,
            heartbeat: 1000,
            ready_blocks: 1,
            writing_blocks: 0,
            used_bytes: 4096,
            free_bytes: 0,
            chunks: 1,
            holds: 2,
            lookups: 3,
            lookup_blocks: 6,
            lookup_hits: 5,
            fetched_blocks: 5,
            fetched_bytes: 500,
            misses: 1,
            published_blocks: 1,
            published_bytes: 7,
            promoted_blocks: 0,
            promoted_bytes: 0,
            evicted_blocks: 0,
            removed_blocks: 0,
            damaged_blocks: 0,
            memory_faults: 0,
            ended_processes: 0,
        }
    }
}
