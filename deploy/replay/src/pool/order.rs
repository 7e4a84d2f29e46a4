//! In which order the blocks of a node leave, as one of its processes sees it: what the pool's own
//! order does, over names instead of descriptors.

use kv_cache::evict::policy::{Clock, EvictionPolicy, Newcomer};

/// What the log of a node says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// A block was published, with so many before it in its prefix.
    Published { block: u32, depth: u32 },
    /// A block was evicted.
    Removed { block: u32 },
}

/// The order, as far as the process has followed the log.
#[derive(Debug, Default)]
pub(super) struct Order {
    policy: Clock,
    /// When each block was used last, as far as this process has looked.
    ticks: Vec<u64>,
    position: usize,
    /// What the blocks of one prefix came with, and how deep the last of them was.
    run: (u64, u32),
}

impl Order {
    /// Takes in what the log says since the last call. A block that is gone by now, which
    /// `is_there` tells, is passed over.
    pub(super) fn follow(&mut self, log: &[Entry], is_there: impl Fn(u32) -> bool) {
        let new = &log[self.position..];
        for (number, entry) in (self.position as u64..).zip(new) {
            match *entry {
                Entry::Removed { block } => self.policy.removed(block),
                Entry::Published { block, depth } if is_there(block) => {
                    // Blocks of one prefix are announced one after the other, ever deeper.
                    if depth <= self.run.1 || self.run.0 == 0 {
                        self.run.0 = number + 1;
                    }
                    self.run.1 = depth;
                    let index = block as usize;
                    if self.ticks.len() <= index {
                        self.ticks.resize(index + 1, 0);
                    }
                    self.ticks[index] = number;
                    let newcomer = Newcomer { key: block.into(), depth, tick: self.run.0 };
                    self.policy.inserted(block, newcomer);
                }
                Entry::Published { .. } => {}
            }
        }
        self.position = log.len();
    }

    /// Up to `want` blocks that should leave, of those that `may_leave`.
    pub(super) fn victims(&mut self, want: usize, may_leave: impl Fn(u32) -> bool) -> Vec<u32> {
        self.policy.victims(want, &mut |block| may_leave(block))
    }

    /// Takes in when a block was last used. Whether that was since it was last looked at.
    pub(super) fn used(&mut self, block: u32, tick: u64) -> bool {
        let known = &mut self.ticks[block as usize];
        let later = tick > *known;
        *known = (*known).max(tick);
        later
    }
}
