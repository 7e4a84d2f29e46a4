//! A cache that holds nothing but names: which requests would have hit.

use std::fmt;
use std::str::FromStr;

use kv_cache::evict::policy::{EvictionPolicy, Newcomer, PolicyKind};

use super::trace::Trace;

/// In which order a request uses its blocks, as far as eviction can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Touch {
    /// All at one moment, and the deeper leave first: the pool's way.
    #[default]
    LeafFirst,
    /// One after the other from the root on, so that the root leaves first and makes what builds
    /// on it useless: the way of a cache that does not know of prefixes.
    RootFirst,
}

impl Touch {
    /// All orders.
    pub const ALL: [Self; 2] = [Self::LeafFirst, Self::RootFirst];

    /// Its name: `leaf-first` or `root-first`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeafFirst => "leaf-first",
            Self::RootFirst => "root-first",
        }
    }
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such order.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no order \"{0}\"; there are leaf-first and root-first")]
pub struct UnknownTouch(pub String);

impl FromStr for Touch {
    type Err = UnknownTouch;

    fn from_str(name: &str) -> Result<Self, UnknownTouch> {
        let known = Self::ALL.into_iter().find(|touch| touch.name() == name);
        known.ok_or_else(|| UnknownTouch(name.to_owned()))
    }
}

/// What came of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Requests replayed.
    pub requests: u64,
    /// Their blocks.
    pub block_refs: u64,
    /// Blocks that were in the cache, as were all blocks before them in the request.
    pub hits: u64,
    /// Blocks that had to leave.
    pub evictions: u64,
}

impl Outcome {
    /// Hits as a share of all blocks, from 0 to 1; 0 when there were none.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share for people, and traces are not that long"
    )]
    pub fn hit_rate(&self) -> f64 {
        if self.block_refs == 0 { 0.0 } else { self.hits as f64 / self.block_refs as f64 }
    }
}

/// A replay under way: one request after the other.
#[derive(Debug)]
pub struct Simulation<'t> {
    trace: &'t Trace,
    capacity: Option<u32>,
    touch: Touch,
    policy: Box<dyn EvictionPolicy>,
    /// Where each block of the trace lies.
    slots: Vec<Option<u32>>,
    /// Which block lies in each slot that was ever used.
    blocks: Vec<u32>,
    tick: u64,
    next: usize,
    outcome: Outcome,
}

impl<'t> Simulation<'t> {
    /// A replay of `trace` through an empty cache of `capacity` blocks; `None` is no limit.
    ///
    /// # Panics
    /// When the capacity is 0.
    #[must_use]
    pub fn new(trace: &'t Trace, capacity: Option<u32>, policy: PolicyKind, touch: Touch) -> Self {
        assert_ne!(capacity, Some(0), "a cache holds at least one block");
        Self {
            trace,
            capacity,
            touch,
            policy: policy.build(),
            slots: vec![None; trace.unique_blocks() as usize],
            blocks: Vec::new(),
            tick: 0,
            next: 0,
            outcome: Outcome::default(),
        }
    }

    /// Replays the next request. `false` when there is none.
    pub fn step(&mut self) -> bool {
        let Some(request) = self.trace.requests().get(self.next) else {
            return false;
        };
        self.next += 1;
        let hits = request.iter().take_while(|block| self.slots[**block as usize].is_some());
        self.outcome.hits += hits.count() as u64;
        self.outcome.requests += 1;
        self.outcome.block_refs += request.len() as u64;
        self.tick += 1;
        let root_to_leaf = 0..request.len();
        match self.touch {
            Touch::LeafFirst => root_to_leaf.rev().for_each(|depth| self.use_block(depth, request)),
            Touch::RootFirst => {
                for depth in root_to_leaf {
                    self.tick += 1;
                    self.use_block(depth, request);
                }
            }
        }
        true
    }

    fn use_block(&mut self, depth: usize, request: &[u32]) {
        let block = request[depth];
        if let Some(slot) = self.slots[block as usize] {
            self.policy.touched(slot, self.tick);
            return;
        }
        let slot = self.free_slot();
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        self.slots[block as usize] = Some(slot);
        self.blocks[slot as usize] = block;
        self.policy.inserted(slot, Newcomer { key: block.into(), depth, tick: self.tick });
    }

    fn free_slot(&mut self) -> u32 {
        let used = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        if self.capacity.is_none_or(|capacity| used < capacity) {
            self.blocks.push(0);
            return used;
        }
        let victims = self.policy.victims(1, &mut |_| true);
        let slot = *victims.first().expect("a full cache has a block, and every block may leave");
        self.policy.removed(slot);
        self.slots[self.blocks[slot as usize] as usize] = None;
        self.outcome.evictions += 1;
        slot
    }

    /// Replays all that is left.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while self.step() {}
        self.outcome
    }

    /// Whether a block is there.
    #[must_use]
    pub fn has(&self, block: u32) -> bool {
        self.slots[block as usize].is_some()
    }

    /// Blocks in the cache.
    #[must_use]
    pub fn resident_blocks(&self) -> u32 {
        u32::try_from(self.policy.len()).unwrap_or(u32::MAX)
    }

    /// What came of it so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }
}
