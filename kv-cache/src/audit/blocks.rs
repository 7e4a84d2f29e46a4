//! Descriptors: whether they read, where their payload lies, and whether searches find them.

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::ChunkState;
use cxl_shm::units::{NodeId, PAGE_BYTES};

use super::{Audit, AuditReport, AuditStep, Fault};
use crate::format::{
    BlockState, Descriptor, DescriptorError, PROBE_SLOTS, SlotContent, Tables, tables_in_use,
    used_word,
};
use crate::heap::SlotSize;

/// A block that was seen.
struct Seen {
    slot: u32,
    payload: u64,
    bytes: u64,
    /// How many slots it is after its home.
    distance: u32,
}

/// A readable block, to be sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readable {
    pub(super) node: NodeId,
    pub(super) slot: u32,
    pub(super) bytes: u64,
}

impl<F: Fabric> Audit<'_, F> {
    /// Checks the descriptors of `node`; its readable blocks.
    pub(super) fn check_blocks(
        &self,
        node: NodeId,
        report: &mut AuditReport,
        progress: &mut impl FnMut(AuditStep, u64, u64),
    ) -> Vec<Readable> {
        report.faults.extend(self.tables_word_fault(node));
        self.read_anew(self.layout.chunk_table());
        let segment = self.areas.segment(node);
        let tables = self.areas.geometry().tables();
        let slots = segment.slots_in_use(self.fabric);
        let (mut seen, mut readable) = (Vec::new(), Vec::new());
        let mut ends = vec![false; slots as usize];
        const STEP: u32 = 4096;
        for first in (0..slots).step_by(STEP as usize) {
            let end = slots.min(first + STEP);
            self.read_anew(segment.ranges(first, end - first));
            for slot in first..end {
                let content = segment.cached(self.fabric, slot);
                ends[slot as usize] = ends_search(&content);
                let mut fault = self.slot_fault(node, slot, &content);
                // Its chunk may have been taken behind the look at the chunk table.
                if self.in_use && matches!(fault, Some(Fault::BlockMisplaced { .. })) {
                    fault = self.slot_again(node, slot);
                }
                if let Some(fault) = fault {
                    report.find(fault);
                }
                let Ok(SlotContent::Block(block)) = content else { continue };
                report.checked.blocks += 1;
                let bytes = block.payload.bytes();
                if block.is_readable() {
                    readable.push(Readable { node, slot, bytes });
                }
                if block.state != BlockState::Spilled {
                    let distance = tables.of(slot).distance(block.key, slot);
                    seen.push(Seen { slot, payload: block.payload.offset(), bytes, distance });
                }
            }
            report.checked.descriptors += u64::from(end - first);
            progress(AuditStep::Blocks(node), end.into(), slots.into());
        }
        for block in &seen {
            if is_hidden(tables, block, |slot| ends.get(slot as usize).copied().unwrap_or(false)) {
                let at = self.descriptor_at(node, block.slot);
                report.find(Fault::BlockHidden { node, slot: block.slot, at });
            }
        }
        seen.sort_unstable_by_key(|block| (block.payload, block.slot));
        for pair in seen.windows(2) {
            let end = (pair[0].payload + pair[0].bytes).next_multiple_of(PAGE_BYTES);
            if pair[1].payload < end {
                let slots = [pair[0].slot, pair[1].slot];
                let at = self.descriptor_at(node, slots[1]);
                report.find(Fault::BlocksOverlap { node, slots, at });
            }
        }
        readable
    }

    pub(super) fn tables_word_fault(&self, node: NodeId) -> Option<Fault> {
        let word = self.areas.tables_word(node);
        self.read_anew(word.range());
        let tables = self.areas.geometry().tables();
        let value = word.cached(self.fabric);
        let right = value == 0 || value == used_word(tables_in_use(value, tables));
        let at = word.range().start().bytes();
        (!right).then_some(Fault::TablesWordDamaged { node, at })
    }

    /// What is wrong with a slot by itself. The chunk table is in this host's caches.
    fn slot_fault(
        &self,
        node: NodeId,
        slot: u32,
        content: &Result<SlotContent, DescriptorError>,
    ) -> Option<Fault> {
        let at = self.descriptor_at(node, slot);
        match content {
            Err(error) => {
                let torn = matches!(error, DescriptorError::Torn(_));
                Some(Fault::DescriptorDamaged { node, slot, at, torn })
            }
            Ok(SlotContent::Blank | SlotContent::Free { .. }) => None,
            Ok(SlotContent::Block(block)) if block.state == BlockState::Spilled => None,
            Ok(SlotContent::Block(block)) if self.is_misplaced(node, block) => {
                let payload = block.payload.offset();
                Some(Fault::BlockMisplaced { node, slot, at, payload })
            }
            Ok(SlotContent::Block(block)) => {
                let is_left = block.state == BlockState::Writing && self.is_quiet(node);
                is_left.then_some(Fault::BlockUnfinished { node, slot, at })
            }
        }
    }

    /// Whether the payload is in no slot of a chunk of `node` (BLOCK-P1). Where the entry of the chunk
    /// does not read, nothing says so.
    fn is_misplaced(&self, node: NodeId, block: &Descriptor) -> bool {
        let Some(chunk) = self.layout.chunk_of(block.payload) else { return true };
        let entry = self.layout.chunk_entry(chunk).cached(self.fabric);
        let Some(state) = entry.ok().and_then(|entry| entry.state()) else { return false };
        let ChunkState::Owned { owner, purpose, .. } = state else { return true };
        let chunk = self.layout.chunk(chunk);
        let Some(size) = SlotSize::from_purpose(purpose, chunk.bytes()) else { return true };
        let from_start = block.payload.offset() - chunk.offset();
        owner != node
            || !from_start.is_multiple_of(size.bytes())
            || block.payload.bytes() > size.bytes()
    }

    /// A block as it is now, and what is wrong with its slot.
    pub(super) fn slot_again(&self, node: NodeId, slot: u32) -> Option<Fault> {
        let content = self.slot_fresh(node, slot);
        self.read_anew(self.layout.node_line(node).range());
        if let Ok(SlotContent::Block(block)) = &content
            && let Some(chunk) = self.layout.chunk_of(block.payload)
        {
            self.read_anew(self.layout.chunk_entry(chunk).range());
        }
        self.slot_fault(node, slot, &content)
    }

    pub(super) fn slot_fresh(
        &self,
        node: NodeId,
        slot: u32,
    ) -> Result<SlotContent, DescriptorError> {
        let segment = self.areas.segment(node);
        self.read_anew(segment.range(slot));
        segment.cached(self.fabric, slot)
    }

    pub(super) fn overlap_again(&self, node: NodeId, slots: [u32; 2]) -> Option<Fault> {
        let [first, second] = slots.map(|slot| match self.slot_fresh(node, slot) {
            Ok(SlotContent::Block(block)) => Some(block.payload),
            _ => None,
        });
        let (first, second) = (first?, second?);
        let end = first.end().next_multiple_of(PAGE_BYTES);
        let overlap = first.offset() <= second.offset() && second.offset() < end;
        let at = self.descriptor_at(node, slots[1]);
        overlap.then_some(Fault::BlocksOverlap { node, slots, at })
    }

    pub(super) fn hidden_again(&self, node: NodeId, slot: u32) -> Option<Fault> {
        let Ok(SlotContent::Block(block)) = self.slot_fresh(node, slot) else { return None };
        let tables = self.areas.geometry().tables();
        let (payload, bytes) = (block.payload.offset(), block.payload.bytes());
        let distance = tables.of(slot).distance(block.key, slot);
        let seen = Seen { slot, payload, bytes, distance };
        let at = self.descriptor_at(node, slot);
        is_hidden(tables, &seen, |slot| ends_search(&self.slot_fresh(node, slot)))
            .then_some(Fault::BlockHidden { node, slot, at })
    }

    pub(super) fn descriptor_at(&self, node: NodeId, slot: u32) -> u64 {
        self.areas.segment(node).range(slot).start().bytes()
    }
}

/// Whether a search ends before `block` (INDEX-S1, INDEX-S2).
fn is_hidden(tables: Tables, block: &Seen, ends: impl Fn(u32) -> bool) -> bool {
    let table = tables.of(block.slot);
    if block.distance >= PROBE_SLOTS.min(table.slots) {
        return true;
    }
    let mut slot = block.slot;
    (0..block.distance).any(|_| {
        slot = table.before(slot);
        ends(slot)
    })
}

fn ends_search(content: &Result<SlotContent, DescriptorError>) -> bool {
    matches!(content, Ok(SlotContent::Blank | SlotContent::Free { ends_search: true, .. }))
}
