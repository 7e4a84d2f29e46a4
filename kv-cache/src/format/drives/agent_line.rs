//! What the agent of a host says of itself: four lines, for tools.

use bytemuck::{Pod, Zeroable};
use cxl_shm::fabric::Record;

use super::request::RestoreOutcome;

/// Lines of an agent.
pub(crate) const AGENT_LINES: u64 = 4;
const RUNS: u64 = 1;
const STOPPED: u64 = 2;

/// What the agent of a host says of its drives. Counters are since the agent started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AgentLine {
    /// The agent works; false once it has stopped in order.
    pub runs: bool,
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

    /// The four lines that say so.
    pub(crate) fn encode(&self) -> (StateLine, WorkLine, OutcomesLine, ScheduleLine) {
        let runs = if self.runs { RUNS } else { STOPPED };
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
        (StateLine(state), WorkLine(work), OutcomesLine(others), ScheduleLine(schedule))
    }

    /// What four lines say; `None` when a state of no version is in them.
    pub(crate) fn decode(
        state: &StateLine,
        work: &WorkLine,
        others: &OutcomesLine,
        schedule: &ScheduleLine,
    ) -> Option<Self> {
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
        let runs = match runs {
            RUNS => true,
            STOPPED => false,
            _ => return None,
        };
        let mut outcomes = [restored; RestoreOutcome::ALL.len()];
        outcomes[1..].copy_from_slice(&others.0);
        Some(Self {
            runs,
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
        };
        for line in [said, AgentLine { runs: false, ..said }] {
            let (state, work, outcomes, schedule) = line.encode();
            assert_eq!(AgentLine::decode(&state, &work, &outcomes, &schedule), Some(line));
        }
        let (mut state, work, outcomes, schedule) = said.encode();
        state.0[0] = 3;
        assert_eq!(AgentLine::decode(&state, &work, &outcomes, &schedule), None);
        assert_eq!(said.requests(RestoreOutcome::Restored), 12);
        assert_eq!(said.requests(RestoreOutcome::Cancelled), 19);
    }
}
