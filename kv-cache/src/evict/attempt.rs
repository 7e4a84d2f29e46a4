//! One batch of evictions, under the heap lock.

use std::collections::HashSet;

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;

use super::{BATCH, LOOKED_AT_MAX, Order};
use crate::broken::{Rule, is_broken};
use crate::cache::Cache;
use crate::descriptor::{BlockState, Descriptor, SlotContent};
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

/// What came of one hold of the heap lock.
enum Outcome {
    /// So many blocks are gone; none when there is none that could go.
    Gone(u64),
    /// None yet: the order is not complete, or too many had to stay.
    More,
}

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Evicts up to `want` blocks, at most [`BATCH`]: of `size`, or of any. Returns how many; 0 when
    /// all are held, or being written.
    ///
    /// Others have the heap lock in between, however many blocks are held (V3).
    pub(crate) fn evict(&self, clock: &impl Clock, size: Option<SlotSize>, want: usize) -> u64 {
        // What this call cannot evict: it comes to its end whatever the descriptors say.
        let mut stay = HashSet::new();
        // Others may publish as fast as we look.
        let slots = self.areas().geometry().descriptor_slots() as usize;
        for _ in 0..8 + 2 * slots / LOOKED_AT_MAX {
            let attempt = |heap: &mut LockedHeap<'_, F, H, L>| {
                heap.evict(self.local(), clock.now_ms(), size, want, &mut stay)
            };
            if let Outcome::Gone(blocks) = self.locked(clock, attempt) {
                return blocks;
            }
        }
        0
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    fn evict(
        &mut self,
        local: &Local,
        now_ms: u64,
        size: Option<SlotSize>,
        want: usize,
        stay: &mut HashSet<u32>,
    ) -> Outcome {
        // Who makes room for the rest of a prefix has just used its beginning.
        while self.flush_touches(local) {}
        let mut order = local.order();
        if !order.follow(self) {
            return Outcome::More;
        }
        let capacity_bytes = self.capacity_bytes();
        let want = want.min(BATCH) as u64;
        let (mut evicted, mut looked_at) = (0, 0);
        let mut spent = Vec::new();
        let mut spared_held = 0;
        let mut all_seen = false;
        while evicted < want && looked_at <= 2 * LOOKED_AT_MAX {
            let Some(kind) = order.next_kind(size, &spent, capacity_bytes) else {
                all_seen = true;
                break;
            };
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
                let used = order.used(slot, seen.used);
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
        if evicted > 0 || want == 0 || all_seen { Outcome::Gone(evicted) } else { Outcome::More }
    }

    /// Evicts one of the blocks in whose place a block with `key` could be found: the one that was
    /// used longest ago, the deepest of those. Returns whether there was one.
    pub(crate) fn evict_for(&mut self, local: &Local, now_ms: u64, key: BlockKey) -> bool {
        let mut order = local.order();
        // What it does not know yet counts as old.
        order.follow(self);
        let blocks = probe_sequence(key, self.directory.slots()).filter_map(|slot| {
            match self.segment.own(self.fabric(), slot) {
                Ok(SlotContent::Block(block)) if block.state == BlockState::Ready => Some(block),
                Ok(_) | Err(_) => None,
            }
        });
        let mut blocks: Vec<Descriptor> = blocks.collect();
        let head = self.log.head(self.fabric());
        let age = |block: &Descriptor| order.age(block.handle.slot(), head);
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
        self.segment.publish_as(self.fabric(), &blocks, BlockState::Evicting);
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
        if is_broken(Rule::OwnerLooksAgain) {
            return Decision { stay: Vec::new(), leave: blocks.to_vec() };
        }
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
        self.segment.publish_as(self.fabric(), &decision.stay, BlockState::Ready);
        crash::reach(CrashPoint::EvictDecided);
        self.free_evicted(&decision.leave)
    }
}
