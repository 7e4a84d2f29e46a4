//! CLOCK: a block that was used since the hand passed it last gets another round.

use super::queue::Queue;
use super::{EvictionPolicy, Newcomer};

#[derive(Clone, Copy, Debug)]
struct Block {
    depth: u32,
    used: bool,
}

/// CLOCK, also known as second chance.
///
/// Touching a block sets a bit, which is why the pool uses this policy: readers on other hosts
/// leave nothing but reader words, and the owner looks at a reader word only when the hand comes
/// by. The hand goes by tick of arrival and leaf first; a used block joins again behind the newest.
#[derive(Debug, Default)]
pub struct Clock {
    /// By slot; a slot without a block does not stand in the queue.
    blocks: Vec<Block>,
    ring: Queue,
    now: u64,
}

impl Clock {
    fn join(&mut self, slots: &[u32]) {
        for slot in slots {
            self.ring.push(*slot, self.blocks[*slot as usize].depth, self.now);
        }
    }
}

impl EvictionPolicy for Clock {
    fn inserted(&mut self, slot: u32, block: Newcomer) {
        self.now = self.now.max(block.tick);
        let index = slot as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, Block { depth: 0, used: false });
        }
        self.blocks[index] = Block { depth: block.depth, used: false };
        self.ring.push(slot, block.depth, self.now);
    }

    fn touched(&mut self, slot: u32, tick: u64) {
        self.now = self.now.max(tick);
        if let Some(block) = self.blocks.get_mut(slot as usize) {
            block.used = true;
        }
    }

    fn removed(&mut self, slot: u32) {
        self.ring.take(slot);
    }

    fn victims(&mut self, want: usize, may_evict: &mut dyn FnMut(u32) -> bool) -> Vec<u32> {
        let mut victims = Vec::new();
        let mut kept = Vec::new();
        // Two rounds: the first takes the bits away, the second finds them gone. What is kept joins
        // again after a round, not before: it would come by at once when all came at one tick.
        for _ in 0..2 {
            while victims.len() < want
                && let Some(slot) = self.ring.pop()
            {
                let used = std::mem::take(&mut self.blocks[slot as usize].used);
                let leaves = !used && may_evict(slot);
                if leaves { &mut victims } else { &mut kept }.push(slot);
            }
            self.join(&kept);
            kept.clear();
        }
        self.join(&victims);
        victims
    }

    fn len(&self) -> usize {
        self.ring.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(_: u32) -> bool {
        true
    }

    fn newcomer(depth: u32, tick: u64) -> Newcomer {
        Newcomer { key: 0, depth, tick }
    }

    /// Slots 0 to 3 hold a chain that came at tick 1, slots 4 and 5 one that came at tick 2.
    fn two_chains() -> Clock {
        let mut clock = Clock::default();
        for depth in 0..4 {
            clock.inserted(depth, newcomer(depth, 1));
        }
        for depth in 0..2 {
            clock.inserted(4 + depth, newcomer(depth, 2));
        }
        clock
    }

    #[test]
    fn leaves_go_first_in_order_of_arrival() {
        assert_eq!(two_chains().victims(6, &mut any), [3, 2, 1, 0, 5, 4]);
    }

    #[test]
    fn a_used_block_gets_one_more_round() {
        let mut clock = two_chains();
        clock.touched(3, 3);
        clock.touched(2, 3);
        assert_eq!(clock.victims(3, &mut any), [1, 0, 5]);
        for slot in [1, 0, 5] {
            clock.removed(slot);
        }
        // Their bits are gone, and they stand behind slot 4.
        assert_eq!(clock.victims(3, &mut any), [4, 3, 2]);
    }

    #[test]
    fn when_all_were_used_the_second_round_finds_victims() {
        let mut clock = two_chains();
        for slot in 0..6 {
            clock.touched(slot, 3);
        }
        assert_eq!(clock.victims(2, &mut any).len(), 2);
    }

    #[test]
    fn what_may_not_be_evicted_counts_as_used() {
        let mut clock = two_chains();
        assert_eq!(clock.victims(1, &mut |slot| slot < 3), [2]);
        clock.removed(2);
        assert_eq!(clock.victims(9, &mut |slot| slot != 3), [1, 0, 5, 4]);
        assert!(clock.victims(9, &mut |_| false).is_empty());
        assert_eq!(clock.len(), 5);
    }

    #[test]
    fn a_victim_that_stayed_is_not_the_next_one_again() {
        let mut clock = two_chains();
        assert_eq!(clock.victims(1, &mut any), [3]);
        assert_eq!(clock.victims(1, &mut any), [2]);
    }

    #[test]
    fn what_is_not_there_is_ignored() {
        let mut clock = two_chains();
        clock.removed(3);
        clock.removed(3);
        clock.touched(3, 5);
        clock.touched(99, 5);
        clock.removed(99);
        clock.inserted(3, newcomer(7, 5));
        // The touch of the former block in slot 3 says nothing about the new one.
        assert_eq!(clock.victims(6, &mut any), [2, 1, 0, 5, 4, 3]);
    }
}
