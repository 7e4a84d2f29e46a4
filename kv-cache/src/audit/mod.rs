//! Checking what a region holds, without being a member and without a write to it.
//!
//! ```text
//! metadata   sealed lines of the region, chunk table, redo records
//! blocks     descriptors, and where their payload lies
//! told       logs, directives, summaries, holds
//! drives     what hosts say of their drives
//! payload    checksums of some blocks, or of all
//! repair     what can be put right while no process uses the region
//! ```
//!
//! - **AUDIT-F1** Nothing is written but by a repair, and a repair needs a region without members.
//! - **AUDIT-F2** In a region in use, lines change while they are read. A fault counts only when the same
//!   fault is there in each of several looks, with time between them. What changed instead is counted,
//!   and is no finding.
//! - **AUDIT-F3** In a region in use, what is unfinished is a finding only of nodes that are vacant.
//! - **AUDIT-F4** A repair leaves the region as it would be after the loss of what is damaged: the block
//!   is gone, and its slot is a tombstone. It makes nothing up.

mod blocks;
mod drives;
mod fault;
mod metadata;
mod payload;
mod repair;
mod told;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, NodeState, Superblock};
use cxl_shm::units::{LineRange, NodeId};

use crate::format::{Areas, GeometryError, areas_of};

pub use fault::{Fault, Gravity};
pub use payload::PayloadSample;
pub use repair::{Repair, RepairError};

/// Looks at a fault, after the first one, before it counts.
const LOOKS_AGAIN: u32 = 3;
/// Faults that are kept one by one; of the others there is the number.
const FAULTS_MAX: usize = 100_000;

/// What is being checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuditStep {
    /// Lines of the region's own metadata.
    Metadata,
    /// Descriptors of a node.
    Blocks(NodeId),
    /// Logs, directives, summaries and holds of a node.
    Told(NodeId),
    /// What a node says of its drives.
    Drives(NodeId),
    /// Checksums of payload, in bytes.
    Payload,
    /// The faults that were found, once more.
    Faults,
}

/// How much was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Lines of the region's own metadata.
    pub metadata_lines: u64,
    /// Slots of descriptor segments.
    pub descriptors: u64,
    /// Blocks, also those that are being written.
    pub blocks: u64,
    /// Entries of logs.
    pub log_entries: u64,
    /// Words that say what nodes hold.
    pub hold_words: u64,
    /// Entries of drive directories.
    pub drive_entries: u64,
    /// Blocks whose checksum was computed.
    pub payload_blocks: u64,
    /// Their bytes.
    pub payload_bytes: u64,
}

/// What an audit found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditReport {
    /// What is not as it should be.
    pub faults: Vec<Fault>,
    /// Faults that are not among them: there were too many. 0 for a region in use.
    pub unlisted: u64,
    /// What changed each time that it was looked at, or was too much to be looked at again: nothing is
    /// known of it.
    pub changing: u64,
    /// How much was checked.
    pub checked: Checked,
}

impl AuditReport {
    /// Whether bytes are not what was written.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.unlisted > 0 || self.faults.iter().any(|it| it.gravity() == Gravity::Damage)
    }

    fn find(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        } else {
            self.unlisted += 1;
        }
    }

    /// AUDIT-F2: what is not looked at again is no fault of a region in use.
    fn forget_unlisted(&mut self) {
        self.changing += std::mem::take(&mut self.unlisted);
    }
}

/// Checks a region.
#[derive(Debug)]
pub struct Audit<'f, F> {
    fabric: &'f F,
    layout: Layout,
    areas: Areas,
    in_use: bool,
}

impl<'f, F: Fabric> Audit<'f, F> {
    /// Of the region with this superblock. `in_use` says whether processes may use the region
    /// meanwhile.
    ///
    /// # Errors
    /// [`GeometryError`] when the region was not formatted for a cache of this version.
    pub fn new(
        fabric: &'f F,
        superblock: &Superblock,
        layout: &Layout,
        in_use: bool,
    ) -> Result<Self, GeometryError> {
        let areas = areas_of(superblock, layout)?;
        Ok(Self { fabric, layout: *layout, areas, in_use })
    }

    /// Checks all of it. `pause` waits between two looks at a fault, and `progress` learns how far the
    /// check is: step, done and all.
    pub fn run(
        &self,
        sample: PayloadSample,
        mut pause: impl FnMut(),
        mut progress: impl FnMut(AuditStep, u64, u64),
    ) -> AuditReport {
        let mut report = AuditReport::default();
        self.check_metadata(&mut report, &mut progress);
        let mut readable = Vec::new();
        for node in self.layout.nodes() {
            readable.extend(self.check_blocks(node, &mut report, &mut progress));
            self.check_told(node, &mut report, &mut progress);
            self.check_drives(node, &mut report, &mut progress);
        }
        self.check_payload(sample, &readable, &mut report, &mut progress);
        if self.in_use {
            report.forget_unlisted();
            self.look_again(&mut report, &mut pause, &mut progress);
        }
        report
    }

    /// AUDIT-F2.
    fn look_again(
        &self,
        report: &mut AuditReport,
        pause: &mut impl FnMut(),
        progress: &mut impl FnMut(AuditStep, u64, u64),
    ) {
        // A fault, and in how many looks in a row it was the same.
        let mut suspects: Vec<_> =
            std::mem::take(&mut report.faults).into_iter().map(|fault| (fault, 0)).collect();
        for round in 0..LOOKS_AGAIN {
            if suspects.is_empty() {
                break;
            }
            pause();
            progress(AuditStep::Faults, round.into(), LOOKS_AGAIN.into());
            let again = |(fault, same): (Fault, u32)| {
                let now = self.again(&fault)?;
                Some(if now == fault { (fault, same + 1) } else { (now, 0) })
            };
            suspects = suspects.into_iter().filter_map(again).collect();
        }
        for (fault, same) in suspects {
            if same == LOOKS_AGAIN {
                report.faults.push(fault);
            } else {
                report.changing += 1;
            }
        }
    }

    /// What is wrong where `fault` was, freshly read.
    fn again(&self, fault: &Fault) -> Option<Fault> {
        match *fault {
            Fault::MetadataDamaged { at, .. }
            | Fault::CopyDamaged { at, .. }
            | Fault::ChunkUnreadable { at, .. }
            | Fault::ChunkOwnerImpossible { at, .. }
            | Fault::ChunkFailed { at, .. }
            | Fault::UpdateOpen { at, .. }
            | Fault::NodeAbandoned { at, .. } => self.metadata_again(at),
            Fault::TablesWordDamaged { node, .. } => self.tables_word_fault(node),
            Fault::DescriptorDamaged { node, slot, .. }
            | Fault::BlockMisplaced { node, slot, .. }
            | Fault::BlockUnfinished { node, slot, .. } => self.slot_again(node, slot),
            Fault::BlocksOverlap { node, slots, .. } => self.overlap_again(node, slots),
            Fault::BlockHidden { node, slot, .. } => self.hidden_again(node, slot),
            Fault::LogEntryDamaged { node, number, of_drives, .. } => {
                self.log_again(node, number, of_drives)
            }
            Fault::HoldsLeft { node, .. } => self.holds_fault(node).0,
            Fault::DirectiveDamaged { node, number, .. } => self.directive_fault(node, number),
            Fault::AnswerImpossible { node, asking, .. } => {
                self.answer_fault(node, asking).or_else(|| self.drive_answer_fault(node, asking))
            }
            Fault::SummaryDamaged { node, .. } => self.summary_fault(node),
            Fault::AgentDamaged { node, .. } => self.agent_fault(node),
            Fault::DriveEntryDamaged { node, slot, .. } => self.drive_entry_again(node, slot),
            Fault::RequestDamaged { node, asked, number, .. } => {
                self.request_fault(node, asked, number)
            }
            Fault::PayloadDamaged { node, slot, .. } | Fault::PayloadFailed { node, slot, .. } => {
                self.payload_fault(node, slot).ok()?
            }
        }
    }

    /// Drops lines from this host's caches: the next look sees what the device has (MEM-M3).
    fn read_anew(&self, lines: LineRange) {
        self.fabric.refresh(lines);
    }

    /// Whether no process of `node` is there, as its line says, or nobody uses the region (AUDIT-F3).
    fn is_quiet(&self, node: NodeId) -> bool {
        let line = self.layout.node_line(node);
        let state = || line.cached(self.fabric).ok().and_then(|line| line.state());
        !self.in_use || state().is_some_and(NodeState::is_vacant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspicions_that_are_not_looked_at_again_are_no_damage_of_a_region_in_use() {
        let mut report = AuditReport::default();
        let left = Fault::BlockUnfinished { node: NodeId(0), slot: 1, at: 64 };
        assert_eq!(left.gravity(), Gravity::Left);
        (0..FAULTS_MAX + 7).for_each(|_| report.find(left));
        assert_eq!((report.faults.len(), report.unlisted), (FAULTS_MAX, 7));
        assert!(report.is_damaged(), "nobody uses it: the others may be damage");
        report.forget_unlisted();
        assert_eq!((report.unlisted, report.changing, report.is_damaged()), (0, 7, false));
    }
}
