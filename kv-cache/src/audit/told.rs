//! What nodes tell each other: logs, directives and their answers, summaries, holds.

use cxl_shm::fabric::{Fabric, PeerWord};
use cxl_shm::units::{LINE_BYTES, LINE_WORDS, NodeId};

use super::{Audit, AuditReport, AuditStep, Fault};
use crate::SummarySeen;
use crate::format::{Answer, DIRECTIVES, PeerLog, ReaderWord};

impl<F: Fabric> Audit<'_, F> {
    pub(super) fn check_told(
        &self,
        node: NodeId,
        report: &mut AuditReport,
        progress: &mut impl FnMut(AuditStep, u64, u64),
    ) {
        self.check_log(node, false, report);
        progress(AuditStep::Told(node), 1, 2);
        let count = self.areas.directive_count(node);
        self.read_anew(count.range());
        let count = count.cached(self.fabric);
        for number in count.saturating_sub(DIRECTIVES) + 1..=count {
            report.faults.extend(self.directive_fault(node, number));
        }
        for asking in self.layout.nodes() {
            report.faults.extend(self.answer_fault(node, asking));
        }
        report.faults.extend(self.summary_fault(node));
        let (fault, words) = self.holds_fault(node);
        report.faults.extend(fault);
        report.checked.hold_words += words;
        progress(AuditStep::Told(node), 2, 2);
    }

    /// Checks the publication log of `node`, or the log of its drives.
    pub(super) fn check_log(&self, node: NodeId, of_drives: bool, report: &mut AuditReport) {
        let Some((head, log)) = self.log_of(node, of_drives) else { return };
        self.read_anew(head.range());
        let head = head.cached(self.fabric);
        let count = log.entries().min(head);
        let first = head - count;
        for range in log.ranges(first, count) {
            self.read_anew(range);
        }
        let mut is_read = false;
        for number in first..head {
            report.checked.log_entries += 1;
            let reads = log.cached(self.fabric, number).is_some();
            if is_read && !reads {
                let at = log.at_bytes(number);
                report.find(Fault::LogEntryDamaged { node, number, of_drives, at });
            }
            // Those before the first one that reads were passed over by the head (INDEX-G3).
            is_read |= reads;
        }
    }

    pub(super) fn log_again(&self, node: NodeId, number: u64, of_drives: bool) -> Option<Fault> {
        let (head, log) = self.log_of(node, of_drives)?;
        self.read_anew(head.range());
        let head = head.cached(self.fabric);
        if !(head.saturating_sub(log.entries())..head).contains(&number) {
            return None;
        }
        for range in log.ranges(number, 1) {
            self.read_anew(range);
        }
        let at = log.at_bytes(number);
        let reads = log.cached(self.fabric, number).is_some();
        (!reads).then_some(Fault::LogEntryDamaged { node, number, of_drives, at })
    }

    pub(super) fn log_of(&self, node: NodeId, of_drives: bool) -> Option<(PeerWord, PeerLog)> {
        if of_drives {
            let drives = self.areas.drives()?.of(node);
            return Some((drives.head(), drives.log()));
        }
        Some((self.areas.log_head(node), self.areas.log(node)))
    }

    pub(super) fn directive_fault(&self, node: NodeId, number: u64) -> Option<Fault> {
        let count = self.areas.directive_count(node);
        self.read_anew(count.range());
        let count = count.cached(self.fabric);
        if !(count.saturating_sub(DIRECTIVES) + 1..=count).contains(&number) {
            return None;
        }
        let line = self.areas.directives(node).line(number);
        self.read_anew(line.range());
        let reads = line.cached(self.fabric).is_ok_and(|line| line.may_be(number, count));
        let at = line.at().bytes();
        (!reads).then_some(Fault::DirectiveDamaged { node, number, at })
    }

    pub(super) fn answer_fault(&self, node: NodeId, asking: NodeId) -> Option<Fault> {
        let answer = self.areas.directives(node).answer(asking);
        self.read_anew(answer.range());
        let number = Answer::from_word(answer.cached(self.fabric)).number;
        // After the answer: a directive is counted before it is answered.
        let count = self.areas.directive_count(asking);
        self.read_anew(count.range());
        let at = answer.range().start().bytes();
        let impossible = number > count.cached(self.fabric);
        impossible.then_some(Fault::AnswerImpossible { node, asking, at })
    }

    pub(super) fn summary_fault(&self, node: NodeId) -> Option<Fault> {
        let summary = self.areas.summary(node);
        self.read_anew(summary.part.range());
        let at = summary.part.range().start().bytes();
        (summary.cached(self.fabric) == SummarySeen::Unreadable)
            .then_some(Fault::SummaryDamaged { node, at })
    }

    /// What `node` holds though no process of it is there, and how many words were read.
    pub(super) fn holds_fault(&self, node: NodeId) -> (Option<Fault>, u64) {
        self.read_anew(self.layout.node_line(node).range());
        if !self.is_quiet(node) {
            return (None, 0);
        }
        let range = self.areas.reader_words(node).range();
        self.read_anew(range);
        let (mut held, mut first) = (0, None);
        for line in range.iter() {
            let words = self.fabric.read_line(line);
            let here = words.iter().filter(|word| ReaderWord::from_word(**word).held).count();
            held += here as u64;
            first = first.or((here > 0).then_some(line.bytes()));
        }
        let fault = first.map(|at| Fault::HoldsLeft { node, words: held, at });
        (fault, range.lines() * LINE_WORDS as u64)
    }
}

const _: () = assert!(LINE_BYTES == LINE_WORDS as u64 * 8, "a line is its words");
