//! What a real pool hits, to the block: nodes with rooms of their own, which take chunks as they
//! need them and evict in batches, as a publish does that finds no room.
//!
//! The policy alone ([`Simulation`](super::Simulation)) keeps one room for all, and one block
//! leaves for one that comes. In a pool a block lies where it was published, its owner evicts for
//! its own publishes only, uses are known by words that are looked at when the hand comes by, and
//! what a request has found stays while it publishes the rest. This follows each of these steps, so
//! that it and `rackline replay --live` agree exactly.

mod model;
mod order;

use std::num::{NonZeroU16, NonZeroU32};

pub use self::model::{PoolModel, PoolPublished};

use super::simulation::Outcome;
use super::trace::Trace;

/// How a pool is divided, and which processes use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolShape {
    /// Nodes; requests go to each in turn.
    pub nodes: NonZeroU16,
    /// Processes of each node; the requests of a node go to each in turn.
    pub workers_per_node: NonZeroU16,
    /// Chunks of the pool, which nodes take one by one.
    pub chunks: u32,
    /// Blocks that a chunk has room for.
    pub chunk_blocks: NonZeroU32,
}

impl PoolShape {
    /// Blocks that the pool has room for.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.chunk_blocks.get())
    }

    /// Which node serves request number `request`, and which of its processes.
    #[must_use]
    pub fn server(&self, request: usize) -> (u16, u16) {
        let nodes = usize::from(self.nodes.get());
        let worker = request / nodes % usize::from(self.workers_per_node.get());
        let in_16_bits = |number| u16::try_from(number).unwrap_or(u16::MAX);
        (in_16_bits(request % nodes), in_16_bits(worker))
    }
}

/// A replay through a pool under way: one request after the other.
#[derive(Debug)]
pub struct PoolSimulation<'t> {
    trace: &'t Trace,
    pool: PoolModel,
    shape: PoolShape,
    next: usize,
    outcome: Outcome,
    refused: u64,
}

impl<'t> PoolSimulation<'t> {
    /// A replay of `trace` through an empty pool.
    #[must_use]
    pub fn new(trace: &'t Trace, shape: PoolShape) -> Self {
        let pool = PoolModel::new(shape, trace.unique_blocks());
        Self { trace, pool, shape, next: 0, outcome: Outcome::default(), refused: 0 }
    }

    /// Replays the next request. `false` when there is none.
    pub fn step(&mut self) -> bool {
        let Some(request) = self.trace.requests().get(self.next) else {
            return false;
        };
        let server = self.shape.server(self.next);
        self.next += 1;
        let hits = self.pool.look_up(request);
        self.outcome.hits += hits as u64;
        self.outcome.requests += 1;
        self.outcome.block_refs += request.len() as u64;
        let found = &request[..hits];
        self.pool.hold(found);
        self.refused += self.pool.publish(server, request, hits).refused;
        self.pool.release(found);
        self.pool.follow(server);
        self.outcome.evictions = self.pool.evictions();
        true
    }

    /// Replays all that is left.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while self.step() {}
        self.outcome
    }

    /// What came of it so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether a block is there.
    #[must_use]
    pub fn has(&self, block: u32) -> bool {
        self.pool.has(block)
    }

    /// Blocks that were not published, because all that their node had was held or new itself.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests;
