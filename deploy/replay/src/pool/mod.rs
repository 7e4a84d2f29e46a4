//! What a real pool hits, to the block: nodes with rooms of their own, which take chunks as they
//! need them and evict in batches, as a publish does that finds no room.
//!
//! The policy alone ([`Simulation`](super::Simulation)) keeps one room for all, and one block
//! leaves for one that comes. In a pool a block lies where it was published, its owner evicts for
//! its own publishes only, uses are known by words that are looked at when the hand comes by, and
//! what a request has found stays while it publishes the rest. This follows each of these steps, so
//! that it and `rackline replay --live` agree exactly.

mod order;

use std::collections::HashSet;
use std::num::{NonZeroU16, NonZeroU32};

use self::order::{Entry, Order};
use super::simulation::Outcome;
use super::trace::Trace;
use kv_cache::evict::{BATCH, LOOKED_AT_MAX};

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

/// Where a block is.
#[derive(Clone, Copy, Debug)]
struct Place {
    node: u16,
    /// How long its owner's log was when it was used last.
    used: u64,
}

#[derive(Debug, Default)]
struct Node {
    log: Vec<Entry>,
    /// Room for so many more blocks in the chunks that it has.
    free: u64,
    /// One for each process.
    orders: Vec<Order>,
}

/// A replay through a pool under way: one request after the other.
#[derive(Debug)]
pub struct PoolSimulation<'t> {
    trace: &'t Trace,
    shape: PoolShape,
    free_chunks: u32,
    nodes: Vec<Node>,
    places: Vec<Option<Place>>,
    next: usize,
    outcome: Outcome,
    refused: u64,
}

impl<'t> PoolSimulation<'t> {
    /// A replay of `trace` through an empty pool.
    #[must_use]
    pub fn new(trace: &'t Trace, shape: PoolShape) -> Self {
        let orders = || (0..shape.workers_per_node.get()).map(|_| Order::default()).collect();
        let node = |_| Node { orders: orders(), ..Node::default() };
        Self {
            trace,
            shape,
            free_chunks: shape.chunks,
            nodes: (0..shape.nodes.get()).map(node).collect(),
            places: vec![None; trace.unique_blocks() as usize],
            next: 0,
            outcome: Outcome::default(),
            refused: 0,
        }
    }

    /// Replays the next request. `false` when there is none.
    pub fn step(&mut self) -> bool {
        let Some(request) = self.trace.requests().get(self.next) else {
            return false;
        };
        let (node, worker) = self.shape.server(self.next);
        self.next += 1;
        let heads: Vec<u64> = self.nodes.iter().map(|node| node.log.len() as u64).collect();
        let hits = request.iter().take_while(|block| self.places[**block as usize].is_some());
        let hits = hits.count();
        self.outcome.hits += hits as u64;
        self.outcome.requests += 1;
        self.outcome.block_refs += request.len() as u64;
        // Those behind a gap too: the publish finds them there.
        for block in request {
            if let Some(place) = &mut self.places[*block as usize] {
                place.used = place.used.max(heads[usize::from(place.node)]);
            }
        }
        let missing = (0..).zip(request).skip(hits);
        let missing = missing.filter(|(_, block)| self.places[**block as usize].is_none());
        let missing: Vec<(u32, u32)> = missing.map(|(depth, block)| (*block, depth)).collect();
        let held: HashSet<u32> = request[..hits].iter().copied().collect();
        self.publish(usize::from(node), usize::from(worker), &missing, &held);
        self.follow(usize::from(node), usize::from(worker));
        true
    }

    /// Publishes `blocks`, each with its depth, as far as there is room or room can be made.
    fn publish(&mut self, node: usize, worker: usize, blocks: &[(u32, u32)], held: &HashSet<u32>) {
        let mut reserved = 0;
        loop {
            let open = blocks.len() - reserved;
            let taken = self.nodes[node].free.min(open as u64);
            self.nodes[node].free -= taken;
            reserved += usize::try_from(taken).unwrap_or(open);
            if reserved == blocks.len() {
                break;
            }
            if self.free_chunks > 0 {
                self.free_chunks -= 1;
                self.nodes[node].free += u64::from(self.shape.chunk_blocks.get());
                continue;
            }
            match self.evict(node, worker, blocks.len() - reserved, held) {
                0 => break,
                evicted => self.nodes[node].free += evicted,
            }
        }
        self.refused += (blocks.len() - reserved) as u64;
        for (block, depth) in &blocks[..reserved] {
            let number = u16::try_from(node).unwrap_or(u16::MAX);
            self.places[*block as usize] = Some(Place { node: number, used: 0 });
            self.nodes[node].log.push(Entry::Published { block: *block, depth: *depth });
        }
    }

    /// One batch of evictions. Returns how many blocks left.
    fn evict(&mut self, node: usize, worker: usize, want: usize, held: &HashSet<u32>) -> u64 {
        self.follow(node, worker);
        let mut stay = HashSet::new();
        loop {
            let (evicted, all_seen) = self.look_for_victims(node, worker, want, held, &mut stay);
            if evicted > 0 || all_seen {
                self.outcome.evictions += evicted;
                return evicted;
            }
        }
    }

    /// What is done under one hold of the heap lock. Returns how many blocks left, and whether
    /// there is none that could leave besides.
    fn look_for_victims(
        &mut self,
        node: usize,
        worker: usize,
        want: usize,
        held: &HashSet<u32>,
        stay: &mut HashSet<u32>,
    ) -> (u64, bool) {
        let Node { orders, log, .. } = &mut self.nodes[node];
        let order = &mut orders[worker];
        let want = want.min(BATCH);
        let (mut evicted, mut looked_at) = (0, 0);
        while evicted < want && looked_at <= 2 * LOOKED_AT_MAX {
            let places = &self.places;
            let may_leave = |block| places[block as usize].is_some() && !stay.contains(&block);
            let victims = order.victims(want - evicted, may_leave);
            if victims.is_empty() {
                return (evicted as u64, true);
            }
            looked_at += victims.len();
            for block in victims {
                let place = &mut self.places[block as usize];
                let used = place.is_some_and(|place| order.used(block, place.used));
                if held.contains(&block) {
                    stay.insert(block);
                } else if !used || looked_at > LOOKED_AT_MAX {
                    *place = None;
                    log.push(Entry::Removed { block });
                    evicted += 1;
                }
            }
        }
        (evicted as u64, false)
    }

    fn follow(&mut self, node: usize, worker: usize) {
        let Node { orders, log, .. } = &mut self.nodes[node];
        let places = &self.places;
        let here = |block: u32| {
            places[block as usize].is_some_and(|place| usize::from(place.node) == node)
        };
        orders[worker].follow(log, here);
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
        self.places[block as usize].is_some()
    }

    /// Blocks that were not published, because all that their node had was held or new itself.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests;
