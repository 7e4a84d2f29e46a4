//! What hosts say of their drives: directories, logs, requests and their answers.

use cxl_shm::fabric::Fabric;
use cxl_shm::units::NodeId;

use super::{Audit, AuditReport, AuditStep, Fault};
use crate::format::{PeerDrives, answered_number, answered_outcome};

/// Entries that are refreshed together.
const STEP: u32 = 8192;

impl<F: Fabric> Audit<'_, F> {
    pub(super) fn check_drives(
        &self,
        node: NodeId,
        report: &mut AuditReport,
        progress: &mut impl FnMut(AuditStep, u64, u64),
    ) {
        let Some(areas) = self.areas.drives() else { return };
        let drives = areas.of(node);
        report.faults.extend(self.agent_fault(node));
        self.check_log(node, true, report);
        let slots = areas.plan.geometry.slots();
        for first in (0..slots).step_by(STEP as usize) {
            let end = slots.min(first + STEP);
            self.read_anew(drives.entries(first, end - first));
            for slot in first..end {
                if let Some(fault) = self.drive_entry_fault(node, &drives, slot) {
                    report.find(fault);
                }
            }
            report.checked.drive_entries += u64::from(end - first);
            progress(AuditStep::Drives(node), end.into(), slots.into());
        }
        for asked in self.layout.nodes() {
            let count = drives.requests(asked);
            self.read_anew(count.range());
            let count = count.cached(self.fabric);
            for number in count.saturating_sub(areas.plan.ring()) + 1..=count {
                report.faults.extend(self.request_fault(node, asked, number));
            }
            report.faults.extend(self.drive_answer_fault(node, asked));
        }
    }

    pub(super) fn agent_fault(&self, node: NodeId) -> Option<Fault> {
        let drives = self.areas.drives()?.of(node);
        self.read_anew(drives.states());
        let at = drives.states().start().bytes();
        let bad = drives.has_lived(self.fabric) && drives.agent_cached(self.fabric).is_none();
        bad.then_some(Fault::AgentDamaged { node, at })
    }

    /// An entry that is neither zeros nor reads.
    fn drive_entry_fault(&self, node: NodeId, drives: &PeerDrives, slot: u32) -> Option<Fault> {
        let is_bad = drives.entry(self.fabric, slot).is_none()
            && drives.entry_words(slot).any(|word| word.cached(self.fabric) != 0);
        let at = drives.entries(slot & !1, 2).start().bytes();
        is_bad.then_some(Fault::DriveEntryDamaged { node, slot, at })
    }

    pub(super) fn drive_entry_again(&self, node: NodeId, slot: u32) -> Option<Fault> {
        let drives = self.areas.drives()?.of(node);
        self.read_anew(drives.entries(slot & !1, 2));
        self.drive_entry_fault(node, &drives, slot)
    }

    pub(super) fn request_fault(&self, node: NodeId, asked: NodeId, number: u64) -> Option<Fault> {
        let areas = self.areas.drives()?;
        let drives = areas.of(node);
        let count = drives.requests(asked);
        self.read_anew(count.range());
        let count = count.cached(self.fabric);
        if !(count.saturating_sub(areas.plan.ring()) + 1..=count).contains(&number) {
            return None;
        }
        let line = drives.request(asked, number);
        self.read_anew(line.range());
        let at = line.at().bytes();
        let reads = line.cached(self.fabric).is_ok_and(|line| line.request(number).is_some());
        (!reads).then_some(Fault::RequestDamaged { node, asked, number, at })
    }

    /// An answer of `node` to a request that `asking` never made, or with no outcome.
    pub(super) fn drive_answer_fault(&self, node: NodeId, asking: NodeId) -> Option<Fault> {
        let areas = self.areas.drives()?;
        let ring = areas.plan.ring();
        for index in 0..ring {
            let answer = areas.of(node).answer(asking, index);
            self.read_anew(answer.range());
            let word = answer.cached(self.fabric);
            // After the answer: a request is counted before it is answered.
            let count = areas.of(asking).requests(node);
            self.read_anew(count.range());
            let number = answered_number(word);
            let is_right = number <= count.cached(self.fabric)
                && number % ring == index
                && answered_outcome(word).is_some();
            if word != 0 && !is_right {
                let at = answer.range().start().bytes();
                return Some(Fault::AnswerImpossible { node, asking, at });
            }
        }
        None
    }
}
