//! One batch of evictions, under the heap lock.

use std::collections::HashSet;

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::member::Liveness;

use super::{BATCH, LOOKED_AT_MAX, Order};
use crate::descriptor::{BlockState, Descriptor, DescriptorLine, SlotContent};
use crate::heap::{LockedHeap, SlotSize, SlotWord};
use crate::hold::HoldWatch;
use crate::key::BlockKey;
use crate::local::Local;
use crate::segment::probe_sequence;

/// What becomes of blocks whose descriptors say EVICTING.
#[derive(Debug)]
pub(crate) struct Decision {
    /// Those that somebody holds.
    pub(crate) stay: Vec<Descriptor>,
    /// The others.
    pub(crate) leave: Vec<Descriptor>,
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    /// Evicts up to `want` blocks, at most [`BATCH`]: of `size`, or of any. Returns how many.
    pub(crate) fn evict(
        &mut self,
        local: &Local,
        now_ms: u64,
        size: Option<SlotSize>,
        want: usize,
    ) -> u64 {
        // Who makes room for the rest of a prefix has just used its beginning.
        while self.flush_touches(local) {}
        let mut order = local.order();
        while !order.follow(self) {}
        let capacity_bytes = self.capacity_bytes();
        let want = want.min(BATCH) as u64;
        let (mut evicted, mut looked_at) = (0, 0);
        let mut spent = Vec::new();
        // What this call cannot evict: it comes to its end whatever the descriptors say.
        let mut stay: HashSet<u32> = HashSet::new();
        let mut spared_held = 0;
        while evicted < want
            && let Some(kind) = order.next_kind(size, &spent, capacity_bytes)
        {
            let lacking = usize::try_from(want - evicted).unwrap_or(BATCH);
            let is_ready = |slot| matches!(self.directory.slot(slot), SlotWord::Ready { .. });
            let slots =
                order.victims(kind, lacking, |slot| is_ready(slot) && !stay.contains(&slot));
            if slots.is_empty() {
                spent.push(kind);
                continue;
            }
            looked_at += slots.len();
            let seen = self.look_at_stamps(&mut order.watch, &slots, now_ms);
            let mut leaving = Vec::new();
            for (slot, seen) in slots.into_iter().zip(seen) {
                let used = order.used(slot, seen.tick);
                if seen.held {
                    stay.insert(slot);
                    spared_held += 1;
                } else if !used || looked_at > LOOKED_AT_MAX {
                    // V2, V3.
                    leaving.push(slot);
                }
            }
            evicted += self.attempt(&mut order, &leaving, now_ms);
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
        local.count(|metrics| {
            metrics.evicted_blocks += evicted;
            metrics.spared_held += spared_held;
        });
        evicted
    }

    /// Evicts one of the blocks in whose place a block with `key` could be found: the one that was
    /// used longest ago, the deepest of those. Returns whether there was one.
    pub(super) fn evict_for(&mut self, local: &Local, now_ms: u64, key: BlockKey) -> bool {
        let mut order = local.order();
        while !order.follow(self) {}
        let blocks = probe_sequence(key, self.directory.slots()).filter_map(|slot| {
            match self.segment.own(self.fabric(), slot) {
                Ok(SlotContent::Block(block)) if block.state == BlockState::Ready => Some(block),
                Ok(_) | Err(_) => None,
            }
        });
        let mut blocks: Vec<Descriptor> = blocks.collect();
        let (head, _) = crate::geometry::halves(self.log.head(self.fabric()));
        let age = |block: &Descriptor| head.wrapping_sub(order.tick(block.handle.slot()));
        blocks.sort_by_key(|block| std::cmp::Reverse((age(block), block.depth)));
        let evicted = blocks.iter().any(|block| {
            let slot = block.handle.slot();
            self.attempt(&mut order, &[slot], now_ms) == 1
        });
        local.count(|metrics| metrics.evicted_blocks += u64::from(evicted));
        evicted
    }

    /// Evicts those of `slots` that nobody holds, whatever their use. Returns how many.
    pub(crate) fn evict_all(&mut self, local: &Local, now_ms: u64, slots: &[u32]) -> u64 {
        let mut order = local.order();
        let evicted = self.attempt(&mut order, slots, now_ms);
        local.count(|metrics| metrics.evicted_blocks += evicted);
        evicted
    }

    /// Payload that this node's chunks have room for, in bytes.
    fn capacity_bytes(&self) -> u64 {
        let chunks = self.directory.chunk_uses();
        chunks.iter().map(|chunk| chunk.size.bytes() * u64::from(chunk.slots)).sum()
    }

    /// The owner's part of H1, for those of `slots` that are READY. Returns how many are gone.
    fn attempt(&mut self, order: &mut Order, slots: &[u32], now_ms: u64) -> u64 {
        let blocks = self.announce(slots);
        if blocks.is_empty() {
            return 0;
        }
        let decision = self.decide(&mut order.watch, &blocks, now_ms);
        self.carry_out(&decision)
    }

    /// Says that blocks are to leave: those of `slots` that are READY, which it returns.
    pub(crate) fn announce(&mut self, slots: &[u32]) -> Vec<Descriptor> {
        let ready = slots.iter().filter_map(|slot| match self.segment.own(self.fabric(), *slot) {
            Ok(SlotContent::Block(block)) if block.state == BlockState::Ready => Some(block),
            Ok(_) | Err(_) => None,
        });
        let blocks: Vec<Descriptor> = ready.collect();
        // H1: before the look.
        self.publish_as(&blocks, BlockState::Evicting);
        crash::reach(CrashPoint::EvictAnnounced);
        blocks
    }

    /// Looks who holds what of the announced blocks.
    pub(crate) fn decide(
        &self,
        watch: &mut HoldWatch,
        blocks: &[Descriptor],
        now_ms: u64,
    ) -> Decision {
        let slots: Vec<u32> = blocks.iter().map(|block| block.handle.slot()).collect();
        let seen = self.look_at_stamps(watch, &slots, now_ms);
        let (mut stay, mut leave) = (Vec::new(), Vec::new());
        for (block, seen) in blocks.iter().zip(seen) {
            if seen.held { &mut stay } else { &mut leave }.push(*block);
        }
        Decision { stay, leave }
    }

    /// Makes what stays READY again, and frees the rest. Returns how many are gone.
    pub(crate) fn carry_out(&mut self, decision: &Decision) -> u64 {
        // H6.
        self.publish_as(&decision.stay, BlockState::Ready);
        crash::reach(CrashPoint::EvictDecided);
        self.free_evicted(&decision.leave)
    }

    #[track_caller]
    fn publish_as(&self, blocks: &[Descriptor], state: BlockState) {
        let mut batch = PublishBatch::new(self.fabric());
        for block in blocks {
            let line = DescriptorLine::block(&Descriptor { state, ..*block });
            batch.line(self.segment.line(block.handle.slot()), &line);
        }
        batch.publish();
    }
}
