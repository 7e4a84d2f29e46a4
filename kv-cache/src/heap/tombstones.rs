//! Tombstones at which searches end (S2).
//!
//! A tombstone can end searches when no block in the slots after it has its home at it or before it. Next
//! to a slot where searches end that is known at once, when a block is freed. But inserts take such slots,
//! and above half load they take more than frees make: once the last is gone none could be made again. So
//! the owner looks at all tombstones in turn, a part at each upkeep, and at the homes of the blocks after
//! them.

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::member::Liveness;

use super::{LockedHeap, SlotWord};
use crate::descriptor::SlotContent;
use crate::geometry::halves;
use crate::segment::PROBE_SLOTS;

/// Slots that are looked at under one hold of the heap lock.
const PART_SLOTS: u32 = 1024;

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    /// Lets searches end at tombstones that nothing can be found after (S2): at each of `freed`, and
    /// those before it, after which a search ends.
    pub(super) fn clean_tombstones(&mut self, freed: impl Iterator<Item = u32>) {
        let mask = self.directory.slots() - 1;
        let mut batch = PublishBatch::new(self.fabric());
        let mut cleaned = false;
        for freed in freed {
            let mut slot = freed;
            while self.directory.slot(slot.wrapping_add(1) & mask).ends_search()
                && let SlotWord::Free { generation, ends: false } = self.directory.slot(slot)
            {
                // What cannot be read stays as it is: searches pass over it.
                let Ok(line) = self.segment.line(slot).own(self.fabric()) else { break };
                batch.line(self.segment.line(slot), &line.ending());
                self.directory.set_slot(slot, SlotWord::Free { generation, ends: true });
                slot = slot.wrapping_sub(1) & mask;
                cleaned = true;
            }
        }
        // Apart from the tombstones themselves: after a loss of power no search must end before a
        // block that came back.
        batch.publish();
        if cleaned {
            crash::reach(CrashPoint::TombstonesCleaned);
        }
    }

    /// Looks at the tombstones of the next part of the segment, and lets searches end at those that
    /// nothing can be found after (S2).
    pub(crate) fn end_searches(&mut self) {
        let slots = self.directory.slots();
        let first = self.directory.next_tombstone();
        let part = PART_SLOTS.min(slots);
        self.directory.set_next_tombstone((first + part) % slots);
        let at = |offset: u32| (first + offset) & (slots - 1);
        let is_open = |offset: u32| {
            matches!(self.directory.slot(at(offset)), SlotWord::Free { ends: false, .. })
        };
        let Some(lowest) = (0..part).find(|offset| is_open(*offset)) else { return };
        // From the last slot that can matter backwards: the lowest home of the blocks that were passed.
        let reach = PROBE_SLOTS.min(slots) - 1;
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
                let (home, _) = halves(block.key.words()[0]);
                (slot.wrapping_sub(home) & (self.directory.slots() - 1)).min(most)
            }
            Ok(_) | Err(_) => most,
        }
    }
}
