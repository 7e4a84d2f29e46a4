//! Checksums of payload.

use crc_fast::{CrcAlgorithm, Digest};
use cxl_shm::fabric::Fabric;
use cxl_shm::units::{Extent, LineRange, NodeId};

use super::blocks::Readable;
use super::{Audit, AuditReport, AuditStep, Fault};
use crate::format::{Descriptor, SlotContent, halves};

/// How many blocks have their checksums computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadSample {
    /// So many, evenly among all. The phase says which of them.
    Blocks {
        /// How many.
        count: u64,
        /// Other phases are other blocks.
        phase: u64,
    },
    /// All.
    All,
}

/// The block changed while it was read: it is another one by now.
pub(super) struct Changed;

impl<F: Fabric> Audit<'_, F> {
    pub(super) fn check_payload(
        &self,
        sample: PayloadSample,
        readable: &[Readable],
        report: &mut AuditReport,
        progress: &mut impl FnMut(AuditStep, u64, u64),
    ) {
        let chosen = chosen(sample, readable.len());
        let all: u64 = chosen.iter().filter_map(|at| readable.get(*at)).map(|it| it.bytes).sum();
        let mut done = 0;
        for Readable { node, slot, bytes } in chosen.iter().filter_map(|at| readable.get(*at)) {
            match self.payload_fault(*node, *slot) {
                Ok(fault) => {
                    report.checked.payload_blocks += 1;
                    report.checked.payload_bytes += bytes;
                    if let Some(fault) = fault {
                        report.find(fault);
                    }
                }
                // It left, as blocks do, and its bytes are another's.
                Err(Changed) => report.changing += 1,
            }
            done += bytes;
            progress(AuditStep::Payload, done, all);
        }
    }

    /// What is wrong with the payload of a block, if it is still there after it was read (READ-F2).
    pub(super) fn payload_fault(&self, node: NodeId, slot: u32) -> Result<Option<Fault>, Changed> {
        let before = self.block(node, slot).ok_or(Changed)?;
        let found = self.checksum(before.payload);
        let after = self.block(node, slot).ok_or(Changed)?;
        if (Descriptor { state: before.state, ..after }) != before {
            return Err(Changed);
        }
        let (at, bytes) = (before.payload.offset(), before.payload.bytes());
        if self.fabric.has_lost(before.payload) {
            return Ok(Some(Fault::PayloadFailed { node, slot, at }));
        }
        let expected = before.checksum;
        let fault = Fault::PayloadDamaged { node, slot, at, bytes, expected, found };
        Ok((found != expected).then_some(fault))
    }

    /// A block that may be read, freshly.
    fn block(&self, node: NodeId, slot: u32) -> Option<Descriptor> {
        match self.slot_fresh(node, slot) {
            Ok(SlotContent::Block(block)) if block.is_readable() => Some(block),
            _ => None,
        }
    }

    fn checksum(&self, payload: Extent) -> u32 {
        let lines = LineRange::covering(payload);
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let mut left = payload.bytes();
        let mut bytes = Vec::new();
        for part in lines.parts(PART_LINES) {
            self.read_anew(part);
            bytes.clear();
            for line in part.iter() {
                let words = self.fabric.read_line(line);
                bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            }
            let take = left.min(bytes.len() as u64);
            // Payload starts on a page, and its last line may be longer than it.
            digest.update(bytes.get(..usize::try_from(take).unwrap_or(0)).unwrap_or(&bytes));
            left -= take;
        }
        halves(digest.finalize()).0
    }
}

/// Lines that are refreshed together.
const PART_LINES: u64 = 1024;

/// Which of `blocks` blocks are in the sample.
fn chosen(sample: PayloadSample, blocks: usize) -> Vec<usize> {
    match sample {
        PayloadSample::All => (0..blocks).collect(),
        PayloadSample::Blocks { count, phase } => {
            let blocks = blocks as u128;
            let count = u128::from(count).min(blocks);
            // Evenly spread, also where `count` does not divide `blocks`: the next phase begins one
            // block further.
            let first = u128::from(phase) % blocks.max(1);
            let place = |index| usize::try_from((index * blocks / count + first) % blocks);
            let mut places: Vec<_> = (0..count).filter_map(|index| place(index).ok()).collect();
            places.sort_unstable();
            places
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_so_many_blocks_and_phases_reach_all() {
        assert_eq!(chosen(PayloadSample::All, 3), [0, 1, 2]);
        let sample = |count, phase| chosen(PayloadSample::Blocks { count, phase }, 10);
        assert_eq!(sample(0, 5), [0; 0]);
        assert_eq!(sample(20, 5), (0..10).collect::<Vec<_>>());
        let mut reached: Vec<_> = (0..5).flat_map(|phase| sample(2, phase)).collect();
        reached.sort_unstable();
        assert_eq!(reached, (0..10).collect::<Vec<_>>());
        assert_eq!(chosen(PayloadSample::Blocks { count: 4, phase: 9 }, 0), [0; 0]);
        // Also the last ones, where the count does not divide the blocks.
        for count in 1..=10 {
            let reached: std::collections::BTreeSet<_> = (0..10)
                .flat_map(|phase| {
                    let places = sample(count, phase);
                    assert_eq!(places.len() as u64, count);
                    assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
                    places
                })
                .collect();
            assert_eq!(reached.len(), 10, "{count}");
        }
    }
}
