//! LRU: the block that was not used for longest leaves first.

use super::queue::Queue;
use super::{EvictionPolicy, Newcomer};

/// Least recently used, by tick of the last use and leaf first.
#[derive(Debug, Default)]
pub struct Lru {
    /// By slot; a slot without a block does not stand in the queue.
    depths: Vec<u32>,
    queue: Queue,
    now: u64,
}

impl Lru {
    fn join(&mut self, slots: &[u32]) {
        for slot in slots {
            self.queue.push(*slot, self.depths[*slot as usize], self.now);
        }
    }
}

impl EvictionPolicy for Lru {
    fn inserted(&mut self, slot: u32, block: Newcomer) {
        self.now = self.now.max(block.tick);
        let index = slot as usize;
        if self.depths.len() <= index {
            self.depths.resize(index + 1, 0);
        }
        self.depths[index] = block.depth;
        self.join(&[slot]);
    }

    fn touched(&mut self, slot: u32, tick: u64) {
        self.now = self.now.max(tick);
        if self.queue.take(slot) {
            self.join(&[slot]);
        }
    }

    fn removed(&mut self, slot: u32) {
        self.queue.take(slot);
    }

    fn victims(&mut self, want: usize, may_evict: &mut dyn FnMut(u32) -> bool) -> Vec<u32> {
        let mut victims = Vec::new();
        let mut kept = Vec::new();
        while victims.len() < want
            && let Some(slot) = self.queue.pop()
        {
            if may_evict(slot) { &mut victims } else { &mut kept }.push(slot);
        }
        self.join(&kept);
        self.join(&victims);
        victims
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_chains() -> Lru {
        let mut lru = Lru::default();
        for (slot, depth, tick) in [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 0, 2), (4, 1, 2)] {
            lru.inserted(slot, Newcomer { key: 0, depth, tick });
        }
        lru
    }

    #[test]
    fn leaves_go_first_in_order_of_the_last_use() {
        assert_eq!(two_chains().victims(9, &mut |_| true), [2, 1, 0, 4, 3]);
        let mut lru = two_chains();
        for slot in [0, 1, 2] {
            lru.touched(slot, 3);
        }
        assert_eq!(lru.victims(9, &mut |_| true), [4, 3, 2, 1, 0]);
    }

    #[test]
    fn what_may_not_be_evicted_counts_as_used() {
        let mut lru = two_chains();
        assert_eq!(lru.victims(1, &mut |slot| slot < 2), [1]);
        lru.removed(1);
        lru.touched(1, 9);
        // Slot 2 counts as used at tick 2, as slots 3 and 4 were, and is the deepest of them.
        assert_eq!(lru.victims(9, &mut |_| true), [0, 2, 4, 3]);
    }
}
