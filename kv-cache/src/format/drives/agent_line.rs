//! What the agent of a host says of itself: five lines, for tools.

use bytemuck::{Pod, Zeroable};
use cxl_shm::fabric::Record;

use super::request::RestoreOutcome;

/// Lines of an agent.
pub(crate) const AGENT_LINES: u64 = 5;
const RUNS: u64 = 1;
const STOPPED: u64 = 2;
/// As the two above, while some tables of its drives are not read.
const RUNS_UNREAD: u64 = 3;
const STOPPED_UNREAD: u64 = 4;

/// What the agent of a host says of its drives. Counters are since the agent started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AgentLine {
    /// The agent works; false once it has stopped in order.
    pub runs: bool,
    /// Not all tables of its drives are read: they may have more blocks than it says.
    pub is_unread: bool,
    /// Bytes that the drives may take.
    pub capacity_bytes: u64,
    /// Bytes of those in use.
    pub used_bytes: u64,
    /// Blocks on the drives.
    pub blocks: u64,
    /// Blocks of those that are announced to other hosts.
    pub announced_blocks: u64,
    /// Blocks that are not announced because the directory is full.
    pub unannounced_blocks: u64,
    /// Bytes that wait to be written.
    pub backlog_bytes: u64,
    /// Blocks that were written to a drive.
    pub backed_up_blocks: u64,
    /// Their bytes.
    pub backed_up_bytes: u64,
    /// Blocks that were not written because too many bytes waited.
    pub dropped_blocks: u64,
    /// Blocks that were not written because too many blocks waited for their age.
    pub unlisted_blocks: u64,
    /// Blocks that left the pool, or were damaged there, before they were copied.
    pub lost_blocks: u64,
    /// Blocks that no drive took.
    pub refused_blocks: u64,
    /// Blocks that a drive did not write in time.
    pub given_up_blocks: u64,
    /// Its drives that owe a clear, by their places in its settings: the first is bit 0. Bit 63 stands
    /// for all that have no bit.
    pub owing_drives: u64,
    /// Encoded blocks on the drives.
    pub encoded_blocks: u64,
    /// Bytes that their payload takes as it is written, in whole pages.
    pub encoded_bytes: u64,
    /// Bytes that their payload would take raw, in whole pages.
    pub encoded_raw_bytes: u64,
    /// Bytes that reads have decoded.
    pub decoded_bytes: u64,
    /// Windows that engines left for writes.
    pub windows: u64,
    /// Windows in which a write began.
    pub windows_used: u64,
    /// Bytes whose write began in a window.
    pub window_bytes: u64,
    /// Bytes whose write began while neither reads nor engines said anything.
    pub idle_bytes: u64,
    /// Bytes whose write began because it had waited for long.
    pub late_bytes: u64,
    /// Blocks that left the drives.
    pub removed_blocks: u64,
    /// Bytes of blocks that were restored.
    pub restored_bytes: u64,
    /// Requests by outcome, in the order of [`RestoreOutcome::ALL`].
    pub outcomes: [u64; RestoreOutcome::ALL.len()],
}

/// What a tool sees of the agent of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentSeen {
    /// How many agents the node had.
    pub life: u32,
    /// Counts up four times a second while the agent lives; 0 once it has stopped in order.
    pub beat: u64,
    /// What the agent says of itself.
    pub line: AgentLine,
}

/// Where the agent stands.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StateLine([u64; 7]);

/// What it did on its own.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WorkLine([u64; 7]);

/// What came of requests, but for the first outcome.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct OutcomesLine([u64; 7]);

/// What its drives do with blocks.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DrivesLine([u64; 7]);

impl Record for DrivesLine {
    const KIND: u32 = u32::from_le_bytes(*b"agdr");
}

/// What an agent says of itself, as it lies in the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgentRecords {
    pub(crate) state: StateLine,
    pub(crate) work: WorkLine,
    pub(crate) outcomes: OutcomesLine,
    pub(crate) schedule: ScheduleLine,
    pub(crate) drives: DrivesLine,
}

/// When it wrote.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScheduleLine([u64; 7]);

impl Record for ScheduleLine {
    const KIND: u32 = u32::from_le_bytes(*b"agsc");
}

impl Record for StateLine {
    const KIND: u32 = u32::from_le_bytes(*b"agst");
}

impl Record for WorkLine {
    const KIND: u32 = u32::from_le_bytes(*b"agwk");
}

impl Record for OutcomesLine {
    const KIND: u32 = u32::from_le_bytes(*b"agoc");
}

impl AgentLine {
    /// Requests with `outcome`.
    #[must_use]
    pub fn requests(&self, outcome: RestoreOutcome) -> u64 {
        let found = RestoreOutcome::ALL.iter().zip(self.outcomes).find(|(it, _)| **it == outcome);
        found.map_or(0, |(_, count)| count)
    }

    /// The lines that say so.
    pub(crate) fn encode(&self) -> AgentRecords {
        let runs = match (self.runs, self.is_unread) {
            (true, false) => RUNS,
            (true, true) => RUNS_UNREAD,
            (false, false) => STOPPED,
            (false, true) => STOPPED_UNREAD,
        };
        let [restored, others @ ..] = self.outcomes;
        let state = [
            runs,
            self.capacity_bytes,
            self.used_bytes,
            self.blocks,
            self.announced_blocks,
            self.unannounced_blocks,
            self.backlog_bytes,
        ];
        let work = [
            self.backed_up_blocks,
            self.backed_up_bytes,
            self.dropped_blocks,
            self.removed_blocks,
            self.restored_bytes,
            restored,
            self.unlisted_blocks,
        ];
        let schedule = [
            self.windows,
            self.windows_used,
            self.window_bytes,
            self.idle_bytes,
            self.late_bytes,
            self.lost_blocks,
            self.refused_blocks,
        ];
        let drives = [
            self.given_up_blocks,
            self.encoded_blocks,
            self.encoded_bytes,
            self.encoded_raw_bytes,
            self.decoded_bytes,
            self.owing_drives,
            0,
        ];
        AgentRecords {
            state: StateLine(state),
            work: WorkLine(work),
            outcomes: OutcomesLine(others),
            schedule: ScheduleLine(schedule),
            drives: DrivesLine(drives),
        }
    }

    /// What the lines say; `None` when a state of no version is in them.
    pub(crate) fn decode(records: &AgentRecords) -> Option<Self> {
        let AgentRecords { state, work, outcomes: others, schedule, drives } = records;
        let [
            runs,
            capacity_bytes,
            used_bytes,
            blocks,
            announced_blocks,
            unannounced_blocks,
            backlog_bytes,
        ] = state.0;
        let [
            backed_up_blocks,
            backed_up_bytes,
            dropped_blocks,
            removed_blocks,
            restored_bytes,
            restored,
            unlisted_blocks,
        ] = work.0;
        let [
            windows,
            windows_used,
            window_bytes,
            idle_bytes,
            late_bytes,
            lost_blocks,
            refused_blocks,
        ] = schedule.0;
        let [
            given_up_blocks,
            encoded_blocks,
            encoded_bytes,
            encoded_raw_bytes,
            decoded_bytes,
            owing_drives,
            _,
        ] = drives.0;
        let (runs, is_unread) = match runs {
            RUNS => (true, false),
            STOPPED => (false, false),
            RUNS_UNREAD => (true, true),
            STOPPED_UNREAD => (false, true),
            _ => return None,
        };
        let mut outcomes = [restored; RestoreOutcome::ALL.len()];
        outcomes[1..].copy_from_slice(&others.0);
        Some(Self {
            runs,
            is_unread,
            given_up_blocks,
            encoded_blocks,
            encoded_bytes,
            encoded_raw_bytes,
            decoded_bytes,
            owing_drives,
            capacity_bytes,
            used_bytes,
            blocks,
            announced_blocks,
            unannounced_blocks,
            backlog_bytes,
            backed_up_blocks,
            backed_up_bytes,
            dropped_blocks,
            unlisted_blocks,
            lost_blocks,
            refused_blocks,
            windows,
            windows_used,
            window_bytes,
            idle_bytes,
            late_bytes,
            removed_blocks,
            restored_bytes,
            outcomes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_survives_its_lines() {
        let said = AgentLine {
            runs: true,
            is_unread: false,
            capacity_bytes: 1,
            used_bytes: 2,
            blocks: 3,
            announced_blocks: 4,
            unannounced_blocks: 5,
            backlog_bytes: 6,
            backed_up_blocks: 7,
            backed_up_bytes: 8,
            dropped_blocks: 9,
            removed_blocks: 10,
            restored_bytes: 11,
            outcomes: [12, 13, 14, 15, 16, 17, 18, 19],
            unlisted_blocks: 20,
            lost_blocks: 21,
            refused_blocks: 22,
            windows: 23,
            windows_used: 24,
            window_bytes: 25,
            idle_bytes: 26,
            late_bytes: 27,
            given_up_blocks: 28,
            encoded_blocks: 29,
            encoded_bytes: 30,
            encoded_raw_bytes: 31,
            decoded_bytes: 32,
            owing_drives: 33,
        };
        let stopped = AgentLine { runs: false, ..said };
        let unread = [said, stopped].map(|line| AgentLine { is_unread: true, ..line });
        for line in [said, stopped].into_iter().chain(unread) {
            assert_eq!(AgentLine::decode(&line.encode()), Some(line));
        }
        let mut records = said.encode();
        records.state.0[0] = 5;
        assert_eq!(AgentLine::decode(&records), None);
        assert_eq!(said.requests(RestoreOutcome::Restored), 12);
        assert_eq!(said.requests(RestoreOutcome::Cancelled), 19);
    }
}
