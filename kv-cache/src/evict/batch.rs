//! One batch of evictions, under the heap lock.

use std::collections::HashSet;

use cxl_shm::node::Backend;

use super::{BATCH, LOOKED_AT_MAX, Order};
use crate::format::{BlockState, Descriptor, SlotContent};
use crate::heap::{LockedHeap, SlotSize, SlotWord};
use crate::identity::BlockKey;

/// What came of one hold of the heap lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    /// Blocks that are gone.
    pub(crate) evicted: u64,
    /// Blocks that stayed because a reader holds them.
    pub(crate) spared_held: u64,
    /// Another one may find more: the order is not complete, or too many had to stay.
    pub(crate) more: bool,
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Evicts up to `want` blocks, at most [`BATCH`]: of `size`, or of any; none of those in
    /// `stay`, to which it adds what it cannot evict.
    pub(crate) fn evict(
        &mut self,
        order: &mut Order,
        now_ms: u64,
        size: Option<SlotSize>,
        want: usize,
        stay: &mut HashSet<u32>,
    ) -> Batch {
        if !order.follow(self) {
            return Batch { evicted: 0, spared_held: 0, more: true };
        }
        let capacity_bytes = self.capacity_bytes();
        let want = want.min(BATCH) as u64;
        let (mut evicted, mut looked_at) = (0, 0);
        let mut spent = Vec::new();
        let mut spared_held = 0;
        let mut all_seen = false;
        while evicted < want && looked_at <= 2 * LOOKED_AT_MAX {
            let Some((kind, most)) = order.next_kind(size, &spent, capacity_bytes) else {
                all_seen = true;
                break;
            };
            let lacking = usize::try_from(want - evicted).unwrap_or(BATCH).min(most);
            let is_ready = |slot| matches!(self.directory.slot(slot), SlotWord::Ready { .. });
            let slots =
                order.victims(kind, lacking, |slot| is_ready(slot) && !stay.contains(&slot));
            if slots.is_empty() {
                spent.push(kind);
                continue;
            }
            looked_at += slots.len();
            let seen = self.look_at_reader_words(&mut order.watch, &slots, now_ms);
            let mut leaving = Vec::new();
            for (slot, seen) in slots.into_iter().zip(seen) {
                let used = order.used(slot, seen.used);
                if seen.held {
                    // EVICT-V1.
                    stay.insert(slot);
                    spared_held += 1;
                } else if !used || looked_at > LOOKED_AT_MAX {
                    // EVICT-V2, EVICT-V3.
                    leaving.push(slot);
                }
            }
            evicted += self.evict_all(order, now_ms, &leaving);
            if evicted < want {
                // The next kind depends on what is left.
                order.follow(self);
            }
            for slot in leaving {
                if !matches!(self.directory.slot(slot), SlotWord::Ready { .. }) {
                    continue;
                }
                stay.insert(slot);
                match self.segment.own(self.fabric(), slot) {
                    Ok(SlotContent::Block(block)) if block.state == BlockState::Ready => {
                        spared_held += 1;
                    }
                    // The directory says READY and the descriptor does not: damaged memory.
                    Ok(_) | Err(_) => self.doubt(),
                }
            }
        }
        Batch { evicted, spared_held, more: evicted == 0 && want > 0 && !all_seen }
    }

    /// Evicts one of the blocks in whose place a block with `key` could be found: the one that was
    /// used longest ago, the deepest of those. Returns whether there was one.
    pub(crate) fn evict_for(&mut self, order: &mut Order, now_ms: u64, key: BlockKey) -> bool {
        // What it does not know yet counts as old.
        order.follow(self);
        let (tables, used) = (self.directory.tables(), self.directory.tables_in_use());
        let slots: Vec<u32> = tables.probe(key, used).collect();
        let mut blocks = self.ready(&slots);
        let head = self.log.head(self.fabric());
        let age = |block: &Descriptor| order.age(block.handle.slot(), head);
        blocks.sort_by_key(|block| std::cmp::Reverse((age(block), block.depth)));
        blocks.iter().any(|block| self.evict_all(order, now_ms, &[block.handle.slot()]) == 1)
    }

    /// Payload that this node's chunks have room for, in bytes.
    fn capacity_bytes(&self) -> u64 {
        let chunks = self.directory.chunk_uses();
        chunks.iter().map(|chunk| chunk.size.bytes() * u64::from(chunk.slots)).sum()
    }

    /// Evicts those of `slots` that nobody holds, whatever their use. Returns how many.
    pub(crate) fn evict_all(&mut self, order: &mut Order, now_ms: u64, slots: &[u32]) -> u64 {
        let blocks = self.ready(slots);
        if blocks.is_empty() {
            return 0;
        }
        let writer = self.writer();
        let announced = writer.announce(blocks);
        let decision = writer.decide(&mut order.watch, announced, now_ms);
        writer.commit(&decision, |gone| self.forget_evicted(gone));
        decision.leave.len() as u64
    }

    /// Those blocks in `slots` that are READY.
    pub(crate) fn ready(&self, slots: &[u32]) -> Vec<Descriptor> {
        let ready = |slot: &u32| match self.segment.own(self.fabric(), *slot) {
            Ok(SlotContent::Block(block)) if block.state == BlockState::Ready => Some(block),
            Ok(_) | Err(_) => None,
        };
        slots.iter().filter_map(ready).collect()
    }
}
