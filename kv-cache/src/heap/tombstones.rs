//! Tombstones at which searches end (INDEX-S2).
//!
//! A tombstone can end searches when no block in the slots after it has its home at it or before
//! it. Next to a slot where searches end that is known at once, when a block is freed. But inserts
//! take such slots, and above half load they take more than frees make: once the last is gone none
//! could be made again. So the owner looks at all tombstones in turn, a part at each upkeep, and at
//! the homes of the blocks after them.

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::node::Backend;

use super::{Directory, LockedHeap, SlotWord};
use crate::format::{OwnSegment, PROBE_SLOTS, SlotContent, Tables};

/// Slots that are looked at under one hold of the heap lock, and tombstones that are cleaned up
/// between two looks of a reclaimer (ORPHAN-W2).
const PART_SLOTS: u32 = 1024;

/// What a host knows of the slots of a segment that it may write.
pub(crate) trait SearchedSlots {
    /// How they are divided.
    fn tables(&self) -> Tables;
    /// Whether a search ends at this slot.
    fn ends_search(&self, slot: u32) -> bool;
    /// Whether this slot is a tombstone that searches pass over.
    fn is_open(&self, slot: u32) -> bool;
    /// The tombstone in this slot ends searches from now on.
    fn set_ending(&self, slot: u32);
}

impl<W: HostMemory> SearchedSlots for Directory<W> {
    fn tables(&self) -> Tables {
        self.tables()
    }

    fn ends_search(&self, slot: u32) -> bool {
        self.slot(slot).ends_search()
    }

    fn is_open(&self, slot: u32) -> bool {
        matches!(self.slot(slot), SlotWord::Free { ends: false, .. })
    }

    fn set_ending(&self, slot: u32) {
        if let SlotWord::Free { generation, .. } = self.slot(slot) {
            self.set_slot(slot, SlotWord::Free { generation, ends: true });
        }
    }
}

/// The slots of a segment as its lines tell: for a reclaimer, which has no directory of them.
#[derive(Debug)]
pub(crate) struct LinesOf<'f, F> {
    pub(crate) fabric: &'f F,
    pub(crate) segment: OwnSegment,
    pub(crate) tables: Tables,
}

impl<F: Fabric> SearchedSlots for LinesOf<'_, F> {
    fn tables(&self) -> Tables {
        self.tables
    }

    fn ends_search(&self, slot: u32) -> bool {
        matches!(
            self.segment.own(self.fabric, slot),
            Ok(SlotContent::Blank | SlotContent::Free { ends_search: true, .. })
        )
    }

    fn is_open(&self, slot: u32) -> bool {
        let content = self.segment.own(self.fabric, slot);
        matches!(content, Ok(SlotContent::Free { ends_search: false, .. }))
    }

    // The line says so.
    fn set_ending(&self, _: u32) {}
}

/// Lets searches end at tombstones that nothing can be found after (INDEX-S2): at each of `freed`,
/// and those before it, after which a search ends. Of all of them a part at most: upkeep, of this
/// life or of the next, cleans up the others.
pub(crate) fn end_searches_at<F: Fabric>(
    fabric: &F,
    segment: &OwnSegment,
    slots: &impl SearchedSlots,
    freed: impl Iterator<Item = u32>,
) {
    let mut batch = PublishBatch::new(fabric);
    let mut cleaned = 0;
    for freed in freed {
        let (table, mut slot) = (slots.tables().of(freed), freed);
        while cleaned < PART_SLOTS && slots.ends_search(table.after(slot)) && slots.is_open(slot) {
            // What cannot be read stays as it is: searches pass over it.
            let Ok(line) = segment.line(slot).own(fabric) else { break };
            batch.line(segment.line(slot), &line.ending());
            slots.set_ending(slot);
            slot = table.before(slot);
            cleaned += 1;
        }
    }
    // Apart from the tombstones themselves: after a loss of power no search must end before a block
    // that came back.
    batch.publish();
    if cleaned > 0 {
        crash::reach(CrashPoint::TombstonesCleaned);
    }
}

impl<B: Backend> LockedHeap<'_, B> {
    pub(super) fn clean_tombstones(&self, freed: impl Iterator<Item = u32>) {
        end_searches_at(self.fabric(), &self.segment, &self.directory, freed);
    }

    /// Looks at the tombstones of the next part of the segment, and lets searches end at those that
    /// nothing can be found after (INDEX-S2).
    pub(crate) fn end_searches(&mut self) {
        let first = self.directory.next_tombstone();
        let table = self.directory.tables().of(first);
        let part = PART_SLOTS.min(table.start + table.slots - first);
        self.directory.set_next_tombstone((first + part) % self.directory.slots_in_use());
        let at = |offset: u32| table.at(first - table.start + offset);
        let is_open = |offset: u32| {
            matches!(self.directory.slot(at(offset)), SlotWord::Free { ends: false, .. })
        };
        let Some(lowest) = (0..part).find(|offset| is_open(*offset)) else { return };
        // From the last slot that can matter backwards: the lowest home of the blocks that were
        // passed.
        let reach = PROBE_SLOTS.min(table.slots) - 1;
        let mut lowest_home = u32::MAX;
        let mut batch = PublishBatch::new(self.fabric());
        let mut cleaned = false;
        for offset in (lowest..part + reach).rev() {
            let slot = at(offset);
            match self.directory.slot(slot) {
                SlotWord::Writing { .. } | SlotWord::Ready { .. } => {
                    let home = offset.saturating_sub(self.distance_from_home(slot, reach));
                    lowest_home = lowest_home.min(home);
                }
                SlotWord::Free { generation, ends: false }
                    if offset < part && lowest_home > offset =>
                {
                    // What cannot be read stays as it is: searches pass over it.
                    let Ok(line) = self.segment.line(slot).own(self.fabric()) else { continue };
                    batch.line(self.segment.line(slot), &line.ending());
                    self.directory.set_slot(slot, SlotWord::Free { generation, ends: true });
                    cleaned = true;
                }
                SlotWord::Blank | SlotWord::Free { .. } => {}
            }
        }
        batch.publish();
        if cleaned {
            crash::reach(CrashPoint::TombstonesCleaned);
        }
    }

    /// How many slots after its home the block in `slot` is; as many as there can be when its
    /// descriptor cannot be read.
    fn distance_from_home(&self, slot: u32, most: u32) -> u32 {
        match self.segment.own(self.fabric(), slot) {
            Ok(SlotContent::Block(block)) => {
                self.directory.tables().of(slot).distance(block.key, slot).min(most)
            }
            Ok(_) | Err(_) => most,
        }
    }
}
