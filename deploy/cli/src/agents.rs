//! The agents of hosts and their drives, as `rackline status` lists them.

use anyhow::Result;
use bytesize::ByteSize;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::units::NodeId;
use kv_cache::{AgentLine, AgentSeen, RestoreOutcome, agent_of};
use serde::Serialize;

use crate::output::say;

/// An agent beats every 250 ms.
const WATCH_MS: u64 = 700;

/// An agent and its drives. Counters are since the agent started.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AgentStatus {
    pub(crate) node: u16,
    /// How many agents the node had.
    pub(crate) agents: u32,
    /// `serves`, `stopped`, or `silent`: its beat did not move while it was watched.
    pub(crate) state: &'static str,
    pub(crate) drive_capacity_bytes: u64,
    pub(crate) drive_used_bytes: u64,
    pub(crate) drive_blocks: u64,
    /// Not all tables of the drives are read: they may have more blocks.
    pub(crate) tables_unread: bool,
    /// Drives that owe a clear, in the order of the settings, the first being 1.
    pub(crate) owing_drives: Vec<u32>,
    encoded: EncodedStatus,
    /// Blocks that hosts can find.
    pub(crate) announced_blocks: u64,
    /// Blocks that no host finds: the directory is full.
    pub(crate) unannounced_blocks: u64,
    pub(crate) backlog_bytes: u64,
    backed_up_blocks: u64,
    pub(crate) backed_up_bytes: u64,
    /// Blocks that were not backed up, by reason.
    pub(crate) dropped: DroppedStatus,
    /// When blocks were written.
    writes: WritesStatus,
    removed_blocks: u64,
    pub(crate) restored_bytes: u64,
    /// Requests by outcome.
    requests: Vec<RequestStatus>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DroppedStatus {
    /// Too many bytes waited for the drives.
    backlog_full: u64,
    /// Too many blocks waited for their age.
    too_many_wait: u64,
    /// The block left the pool, or was damaged there, before it was copied.
    left_pool: u64,
    /// No drive took the block.
    pub(crate) refused_by_drives: u64,
    /// The drive did not write the block in time.
    drive_silent: u64,
}

/// Encoded blocks.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct EncodedStatus {
    /// On the drives.
    blocks: u64,
    /// Bytes that their payload takes as it is written.
    bytes: u64,
    /// Bytes that their payload would take raw.
    raw_bytes: u64,
    /// Bytes that reads have decoded.
    decoded_bytes: u64,
}

impl DroppedStatus {
    fn new(line: &AgentLine) -> Self {
        Self {
            backlog_full: line.dropped_blocks,
            too_many_wait: line.unlisted_blocks,
            left_pool: line.lost_blocks,
            refused_by_drives: line.refused_blocks,
            drive_silent: line.given_up_blocks,
        }
    }

    /// Each reason that was met, with its count.
    pub(crate) fn text(&self) -> String {
        let Self { backlog_full, too_many_wait, left_pool, refused_by_drives, drive_silent } = self;
        let reasons = [
            (backlog_full, "backlog full"),
            (too_many_wait, "too many wait"),
            (left_pool, "left the pool"),
            (refused_by_drives, "refused by drives"),
            (drive_silent, "not written in time"),
        ];
        let met = reasons.iter().filter(|(count, _)| **count > 0);
        let met: Vec<_> = met.map(|(count, reason)| format!("{count} {reason}")).collect();
        if met.is_empty() { "0".to_owned() } else { met.join(", ") }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct WritesStatus {
    /// Windows that engines left.
    windows: u64,
    /// Windows in which a write began.
    windows_used: u64,
    /// Bytes whose write began in a window.
    window_bytes: u64,
    /// Bytes whose write began while neither reads nor engines said anything.
    idle_bytes: u64,
    /// Bytes whose write began because it had waited for long.
    late_bytes: u64,
}

impl WritesStatus {
    fn new(line: &AgentLine) -> Self {
        let AgentLine { windows, windows_used, window_bytes, idle_bytes, late_bytes, .. } = *line;
        Self { windows, windows_used, window_bytes, idle_bytes, late_bytes }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct RequestStatus {
    outcome: &'static str,
    count: u64,
}

impl AgentStatus {
    pub(crate) fn new(node: NodeId, seen: &AgentSeen, beats: bool) -> Self {
        let line = &seen.line;
        let state = match (line.runs && seen.beat != 0, beats) {
            (false, _) => "stopped",
            (true, true) => "serves",
            (true, false) => "silent",
        };
        let requests = RestoreOutcome::ALL.map(|outcome| RequestStatus {
            outcome: outcome.label(),
            count: line.requests(outcome),
        });
        let AgentLine { capacity_bytes, used_bytes, blocks, .. } = *line;
        Self {
            node: node.0,
            agents: seen.life,
            state,
            drive_capacity_bytes: capacity_bytes,
            drive_used_bytes: used_bytes,
            drive_blocks: blocks,
            tables_unread: line.is_unread,
            owing_drives: (1..=u64::BITS)
                .filter(|at| line.owing_drives & 1 << (at - 1) != 0)
                .collect(),
            encoded: EncodedStatus {
                blocks: line.encoded_blocks,
                bytes: line.encoded_bytes,
                raw_bytes: line.encoded_raw_bytes,
                decoded_bytes: line.decoded_bytes,
            },
            announced_blocks: line.announced_blocks,
            unannounced_blocks: line.unannounced_blocks,
            backlog_bytes: line.backlog_bytes,
            backed_up_blocks: line.backed_up_blocks,
            backed_up_bytes: line.backed_up_bytes,
            dropped: DroppedStatus::new(line),
            writes: WritesStatus::new(line),
            removed_blocks: line.removed_blocks,
            restored_bytes: line.restored_bytes,
            requests: requests.into(),
        }
    }
}

impl AgentStatus {
    /// It follows the drives of other hosts.
    pub(crate) fn has_no_drives(&self) -> bool {
        self.drive_capacity_bytes == 0 && self.drive_blocks == 0 && !self.tables_unread
    }

    /// What the agent does, behind its name.
    pub(crate) fn in_words(&self) -> &'static str {
        if self.state == "silent" { "is silent" } else { self.state }
    }
}

/// The agents of all nodes, watched until each has beaten, or for 0.7 seconds.
pub(crate) fn look(
    fabric: &impl Fabric,
    superblock: &Superblock,
    layout: &Layout,
) -> Result<Vec<AgentStatus>> {
    let all = || -> Result<Vec<(NodeId, AgentSeen)>> {
        let mut found = Vec::new();
        for node in layout.nodes() {
            found.extend(agent_of(fabric, superblock, layout, node)?.map(|seen| (node, seen)));
        }
        Ok(found)
    };
    let first = all()?;
    let beat_of = |node| first.iter().find(|(other, _)| *other == node).map(|(_, it)| it.beat);
    let clock = SystemClock::start();
    loop {
        let now = all()?;
        let beats = |it: &(NodeId, AgentSeen)| beat_of(it.0) != Some(it.1.beat);
        let is_seen = |it: &(NodeId, AgentSeen)| it.1.beat == 0 || beats(it);
        if now.iter().all(is_seen) || clock.now_ms() >= WATCH_MS {
            let status = |it: &(NodeId, AgentSeen)| AgentStatus::new(it.0, &it.1, beats(it));
            return Ok(now.iter().map(status).collect());
        }
        clock.sleep_ms(20);
    }
}

pub(crate) fn print(agents: &[AgentStatus]) {
    for agent in agents {
        if agent.has_no_drives() {
            if agent.state == "serves" {
                say!("node {} has no drives: its agent serves", agent.node);
            }
            continue;
        }
        say!(
            "drives of node {}: {} of {} used, {} blocks, {} announced; the agent {}",
            agent.node,
            ByteSize(agent.drive_used_bytes),
            ByteSize(agent.drive_capacity_bytes),
            agent.drive_blocks,
            agent.announced_blocks,
            agent.in_words(),
        );
        if agent.tables_unread {
            say!("  not all tables of the drives are read: there may be more blocks");
        }
        if agent.encoded.blocks > 0 {
            let EncodedStatus { blocks, bytes, raw_bytes, .. } = agent.encoded;
            let (bytes, raw_bytes) = (ByteSize(bytes), ByteSize(raw_bytes));
            say!("  {blocks} blocks are encoded: {bytes} instead of {raw_bytes}");
        }
        say!(
            "  {} blocks backed up ({}), {} removed; {} waiting to be written; dropped: {}",
            agent.backed_up_blocks,
            ByteSize(agent.backed_up_bytes),
            agent.removed_blocks,
            ByteSize(agent.backlog_bytes),
            agent.dropped.text(),
        );
        let WritesStatus { windows, windows_used, window_bytes, idle_bytes, late_bytes } =
            agent.writes;
        say!(
            "  written in {windows_used} of {windows} windows: {}; outside: {} idle, {} late",
            ByteSize(window_bytes),
            ByteSize(idle_bytes),
            ByteSize(late_bytes),
        );
        let asked = agent.requests.iter().filter(|it| it.count > 0);
        let asked: Vec<_> = asked.map(|it| format!("{} {}", it.count, it.outcome)).collect();
        if !asked.is_empty() {
            say!("  requests: {}; {} restored", asked.join(", "), ByteSize(agent.restored_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_has_a_reason() {
        let line = AgentLine { dropped_blocks: 3, refused_blocks: 1, ..Default::default() };
        assert_eq!(DroppedStatus::new(&line).text(), "3 backlog full, 1 refused by drives");
        let line = AgentLine { given_up_blocks: 2, ..Default::default() };
        assert_eq!(DroppedStatus::new(&line).text(), "2 not written in time");
        assert_eq!(DroppedStatus::new(&AgentLine::default()).text(), "0");
    }

    #[test]
    fn an_agent_serves_is_silent_or_has_stopped() {
        let state = |runs, beat, beats| {
            let line = AgentLine { runs, outcomes: [1, 2, 3, 4, 5, 6, 7, 8], ..Default::default() };
            let status = AgentStatus::new(NodeId(3), &AgentSeen { life: 2, beat, line }, beats);
            assert_eq!((status.node, status.agents, status.tables_unread), (3, 2, false));
            assert_eq!(status.requests[1], RequestStatus { outcome: "unknown", count: 2 });
            status.state
        };
        assert_eq!(state(true, 5, true), "serves");
        assert_eq!(state(true, 5, false), "silent");
        assert_eq!(state(true, 0, true), "stopped");
        assert_eq!(state(false, 5, true), "stopped");
    }

    #[test]
    fn what_drives_owe_and_how_they_encode_is_shown() {
        let line = AgentLine {
            is_unread: true,
            owing_drives: 0b101,
            encoded_blocks: 4,
            encoded_bytes: 5,
            encoded_raw_bytes: 6,
            decoded_bytes: 7,
            ..Default::default()
        };
        let status = AgentStatus::new(NodeId(3), &AgentSeen { life: 2, beat: 1, line }, true);
        assert_eq!((status.tables_unread, &*status.owing_drives), (true, &[1, 3][..]));
        let json = serde_json::to_value(&status.encoded).unwrap_or_default();
        let expected =
            serde_json::json!({ "blocks": 4, "bytes": 5, "raw_bytes": 6, "decoded_bytes": 7 });
        assert_eq!(json, expected);
    }
}
