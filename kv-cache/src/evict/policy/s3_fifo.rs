//! S3-FIFO: newcomers wait in a small queue; only those that are used again reach the main one.

use std::collections::{HashMap, VecDeque};

use super::queue::Queue;
use super::{EvictionPolicy, Newcomer};

/// The small queue's share of all blocks is one in so many.
const SMALL_ONE_IN: usize = 10;
/// Uses that are counted; as many rounds a block stays in the main queue.
const USES_MAX: u8 = 3;
/// Uses that take a block from the small queue to the main one.
const USES_TO_STAY: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Block {
    key: u64,
    depth: u32,
    uses: u8,
}

/// S3-FIFO (Yang et al., SOSP 2023), with both queues by tick and leaf first.
///
/// A block that comes back soon after it left the small queue goes straight to the main one. That
/// memory is of keys alone, one for each block in the main queue.
#[derive(Debug, Default)]
pub struct S3Fifo {
    /// By slot; a slot without a block stands in neither queue.
    blocks: Vec<Block>,
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
    now: u64,
}

impl S3Fifo {
    fn join_main(&mut self, slots: &[u32]) {
        for slot in slots {
            self.main.push(*slot, self.blocks[*slot as usize].depth, self.now);
        }
    }

    fn victim_from_small(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        while let Some(slot) = self.small.pop() {
            let block = &mut self.blocks[slot as usize];
            if block.uses < USES_TO_STAY && may_evict(slot) {
                return Some(slot);
            }
            block.uses = 0;
            self.join_main(&[slot]);
        }
        None
    }

    fn victim_from_main(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut victim = None;
        // In each round every block loses a use; the last round finds none left.
        for _ in 0..=USES_MAX {
            let mut kept = Vec::new();
            while victim.is_none()
                && let Some(slot) = self.main.pop()
            {
                let uses = &mut self.blocks[slot as usize].uses;
                if *uses == 0 && may_evict(slot) {
                    victim = Some(slot);
                } else {
                    *uses = uses.saturating_sub(1);
                    kept.push(slot);
                }
            }
            self.join_main(&kept);
        }
        victim
    }
}

impl EvictionPolicy for S3Fifo {
    fn inserted(&mut self, slot: u32, block: Newcomer) {
        self.removed(slot);
        self.now = self.now.max(block.tick);
        let Newcomer { key, depth, .. } = block;
        let index = slot as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, Block { key: 0, depth: 0, uses: 0 });
        }
        self.blocks[index] = Block { key, depth, uses: 0 };
        if self.ghosts.take(key) {
            self.join_main(&[slot]);
        } else {
            self.small.push(slot, depth, self.now);
        }
    }

    fn touched(&mut self, slot: u32, tick: u64) {
        self.now = self.now.max(tick);
        if let Some(block) = self.blocks.get_mut(slot as usize) {
            block.uses = USES_MAX.min(block.uses + 1);
        }
    }

    fn removed(&mut self, slot: u32) {
        let _ = self.small.take(slot) || self.main.take(slot);
    }

    fn victims(&mut self, want: usize, may_evict: &mut dyn FnMut(u32) -> bool) -> Vec<u32> {
        let small_target = (self.len() / SMALL_ONE_IN).max(1);
        let ghosts_max = self.len() - small_target.min(self.len());
        let mut victims = Vec::new();
        // A queue in which all were refused is not asked again.
        let mut main_refused = false;
        while victims.len() < want {
            let try_small_first = self.small.len() >= small_target || main_refused;
            if try_small_first && let Some(slot) = self.victim_from_small(may_evict) {
                self.ghosts.push(self.blocks[slot as usize].key, ghosts_max);
                victims.push(slot);
            } else if main_refused {
                break;
            } else if let Some(slot) = self.victim_from_main(may_evict) {
                victims.push(slot);
            } else {
                main_refused = true;
            }
        }
        self.join_main(&victims);
        victims
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }
}

/// Keys of blocks that left the small queue, the oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    /// With the number of its latest entry in the order.
    keys: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    number: u64,
}

impl Ghosts {
    /// Remembers `key`, and no more than `max` in all.
    fn push(&mut self, key: u64, max: usize) {
        self.number += 1;
        self.keys.insert(key, self.number);
        self.order.push_back((key, self.number));
        // Keys that were taken stay in the order; it must not grow by them without end.
        while self.keys.len() > max || self.order.len() > 2 * max {
            let Some((key, number)) = self.order.pop_front() else {
                break;
            };
            if self.keys.get(&key) == Some(&number) {
                self.keys.remove(&key);
            }
        }
    }

    /// Forgets `key`. Whether it was known.
    fn take(&mut self, key: u64) -> bool {
        self.keys.remove(&key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(_: u32) -> bool {
        true
    }

    /// Slots 0 to 19 with keys 0 to 19 that came at ticks 0 to 19.
    fn twenty() -> S3Fifo {
        let mut policy = S3Fifo::default();
        for slot in 0..20 {
            policy.inserted(slot, Newcomer { key: slot.into(), depth: 0, tick: slot.into() });
        }
        policy
    }

    fn evict(policy: &mut S3Fifo, want: usize) -> Vec<u32> {
        let victims = policy.victims(want, &mut any);
        victims.iter().for_each(|slot| policy.removed(*slot));
        victims
    }

    #[test]
    fn what_is_used_once_leaves_before_what_is_used_twice() {
        let mut policy = twenty();
        for slot in [0, 0, 1, 2, 2, 2] {
            policy.touched(slot, 20);
        }
        // One use in the small queue is not enough.
        assert_eq!(evict(&mut policy, 4), [1, 3, 4, 5]);
        assert_eq!(policy.main.len(), 2);
        assert_eq!(evict(&mut policy, 14), (6..20).collect::<Vec<_>>());
        assert_eq!(evict(&mut policy, 9), [0, 2]);
        assert!(policy.is_empty());
    }

    #[test]
    fn what_comes_back_goes_to_the_main_queue() {
        let mut policy = twenty();
        assert_eq!(evict(&mut policy, 2), [0, 1]);
        // Another slot, the same block; and the same slot, another block.
        policy.inserted(1, Newcomer { key: 0, depth: 0, tick: 30 });
        policy.inserted(0, Newcomer { key: 77, depth: 0, tick: 31 });
        assert_eq!(policy.main.len(), 1);
        assert_eq!(evict(&mut policy, 18), (2..20).collect::<Vec<_>>());
        assert_eq!(evict(&mut policy, 9), [0, 1]);
    }

    #[test]
    fn ghosts_are_no_more_than_blocks() {
        let mut policy = twenty();
        for round in 0u64..100 {
            assert_eq!(evict(&mut policy, 1).len(), 1);
            let free =
                (0..20).find(|slot| !policy.small.stands(*slot) && !policy.main.stands(*slot));
            // Every second round the block of two rounds ago comes back, and is forgotten as a
            // ghost.
            let key = if round % 2 == 0 { 1000 + round } else { 1000 + round - 1 };
            policy.inserted(free.unwrap(), Newcomer { key, depth: 0, tick: 100 + round });
            assert!(policy.ghosts.keys.len() <= 18 && policy.ghosts.order.len() <= 36);
        }
    }

    #[test]
    fn a_use_buys_a_round_in_the_main_queue() {
        let mut policy = twenty();
        evict(&mut policy, 3);
        for (slot, tick) in [(0, 40), (1, 41), (2, 42)] {
            policy.inserted(slot, Newcomer { key: slot.into(), depth: 0, tick });
        }
        policy.touched(0, 43);
        assert_eq!(evict(&mut policy, 16), (3..19).collect::<Vec<_>>());
        assert_eq!(evict(&mut policy, 4), [19, 1, 2, 0]);
    }

    #[test]
    fn three_uses_are_counted_and_no_more() {
        let mut policy = twenty();
        evict(&mut policy, 5);
        for slot in 0..5 {
            policy.inserted(slot, Newcomer { key: slot.into(), depth: 0, tick: 40 });
        }
        // Slots 0 to 4 came back and are in the main queue, with 5, 3, 2, 1 and no uses.
        for (slot, uses) in [(0, 5), (1, 3), (2, 2), (3, 1)] {
            (0..uses).for_each(|_| policy.touched(slot, 41));
        }
        (5..20).for_each(|slot| policy.removed(slot));
        assert_eq!(evict(&mut policy, 5), [4, 3, 2, 0, 1]);
    }

    #[test]
    fn when_all_are_used_the_last_round_finds_a_victim() {
        let mut policy = twenty();
        evict(&mut policy, 4);
        for slot in 0..4 {
            policy.inserted(slot, Newcomer { key: slot.into(), depth: slot, tick: 40 });
        }
        (4..20).for_each(|slot| policy.removed(slot));
        assert_eq!(policy.main.len(), 4);
        for slot in [0, 1, 2, 3].repeat(3) {
            policy.touched(slot, 41);
        }
        assert_eq!(evict(&mut policy, 1), [3]);
    }

    #[test]
    fn uses_in_the_small_queue_do_not_count_in_the_main_one() {
        let mut policy = twenty();
        for slot in [0, 0, 0] {
            policy.touched(slot, 20);
        }
        // Slot 0 goes to the main queue; block 1 comes back there after it.
        assert_eq!(evict(&mut policy, 1), [1]);
        policy.inserted(1, Newcomer { key: 1, depth: 0, tick: 30 });
        (2..20).for_each(|slot| policy.removed(slot));
        assert_eq!(evict(&mut policy, 2), [0, 1]);
    }

    #[test]
    fn a_ghost_is_as_old_as_its_last_departure() {
        let mut ghosts = Ghosts::default();
        for key in [1, 2] {
            ghosts.push(key, 2);
        }
        assert!(ghosts.take(1) && !ghosts.take(1));
        ghosts.push(1, 2);
        // The third key displaces the second, not the first, which left again after it.
        ghosts.push(3, 2);
        assert!(ghosts.take(1) && !ghosts.take(2) && ghosts.take(3));
    }

    #[test]
    fn ghosts_that_came_back_are_not_kept() {
        let mut ghosts = Ghosts::default();
        for key in 0..1000 {
            ghosts.push(key, 8);
            assert!(ghosts.take(key));
            assert!(ghosts.order.len() <= 16);
        }
    }

    #[test]
    fn what_may_not_be_evicted_stays_and_ends_the_search() {
        let mut policy = twenty();
        assert!(policy.victims(5, &mut |_| false).is_empty());
        assert_eq!(policy.len(), 20);
        assert_eq!(policy.victims(30, &mut |slot| slot % 2 == 0).len(), 10);
        assert_eq!(policy.len(), 20);
    }
}
