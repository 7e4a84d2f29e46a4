//! A pool as its workers use it: they look up, hold, publish and release at any time.

use std::collections::HashSet;

use kv_cache::evict::{BATCH, LOOKED_AT_MAX};

use super::PoolShape;
use super::order::{Entry, Order};

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

/// What became of blocks that a worker published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolPublished {
    /// Blocks that are new.
    pub published: u64,
    /// Blocks that there was no room for: all that their node had was held or new itself.
    pub refused: u64,
}

/// A pool without bytes: names of blocks, where each lies, and which leaves next. Blocks are numbered
/// from 0.
#[derive(Debug)]
pub struct PoolModel {
    shape: PoolShape,
    free_chunks: u32,
    nodes: Vec<Node>,
    places: Vec<Option<Place>>,
    /// How often each block is held.
    held: Vec<u32>,
    evictions: u64,
}

impl PoolModel {
    /// An empty pool for blocks below `unique_blocks`.
    #[must_use]
    pub fn new(shape: PoolShape, unique_blocks: u32) -> Self {
        let orders = || (0..shape.workers_per_node.get()).map(|_| Order::default()).collect();
        let node = |_| Node { orders: orders(), ..Node::default() };
        Self {
            shape,
            free_chunks: shape.chunks,
            nodes: (0..shape.nodes.get()).map(node).collect(),
            places: vec![None; unique_blocks as usize],
            held: vec![0; unique_blocks as usize],
            evictions: 0,
        }
    }

    /// How many of the first blocks are there. They are used by that.
    pub fn look_up(&mut self, blocks: &[u32]) -> usize {
        let hits = blocks.iter().take_while(|block| self.has(**block)).count();
        self.touch(&blocks[..hits]);
        hits
    }

    /// Keeps blocks that are there from leaving, until they are released as often.
    pub fn hold(&mut self, blocks: &[u32]) {
        for block in blocks {
            self.held[*block as usize] += 1;
        }
    }

    /// Lets blocks that were held leave again.
    pub fn release(&mut self, blocks: &[u32]) {
        for block in blocks {
            let held = &mut self.held[*block as usize];
            *held = held.saturating_sub(1);
        }
    }

    /// Worker `worker` of `node` publishes what is not there of a prompt, from its block number `first`
    /// on, as far as there is room or room can be made.
    pub fn publish(
        &mut self,
        (node, worker): (u16, u16),
        blocks: &[u32],
        first: usize,
    ) -> PoolPublished {
        // Those behind a gap, too: the publish finds them there.
        self.touch(&blocks[first..]);
        let missing = (0..).zip(blocks).skip(first).filter(|(_, block)| !self.has(**block));
        let missing: Vec<(u32, u32)> = missing.map(|(depth, block)| (*block, depth)).collect();
        self.take_in((node, worker), &missing)
    }

    /// Worker `worker` of `node` brings blocks back that are not there, each with its depth, as far as
    /// there is room or room can be made.
    pub fn restore(&mut self, worker: (u16, u16), blocks: &[(u32, u32)]) -> PoolPublished {
        let missing = blocks.iter().copied().filter(|(block, _)| !self.has(*block));
        self.take_in(worker, &missing.collect::<Vec<_>>())
    }

    /// Blocks with their depths, none of which is there.
    fn take_in(&mut self, (node, worker): (u16, u16), missing: &[(u32, u32)]) -> PoolPublished {
        let (node, worker) = (usize::from(node), usize::from(worker));
        let mut reserved = 0;
        loop {
            let open = missing.len() - reserved;
            let taken = self.nodes[node].free.min(open as u64);
            self.nodes[node].free -= taken;
            reserved += usize::try_from(taken).unwrap_or(open);
            if reserved == missing.len() {
                break;
            }
            if self.free_chunks > 0 {
                self.free_chunks -= 1;
                self.nodes[node].free += u64::from(self.shape.chunk_blocks.get());
                continue;
            }
            match self.evict(node, worker, missing.len() - reserved) {
                0 => break,
                evicted => self.nodes[node].free += evicted,
            }
        }
        for (block, depth) in &missing[..reserved] {
            let number = u16::try_from(node).unwrap_or(u16::MAX);
            self.places[*block as usize] = Some(Place { node: number, used: 0 });
            self.nodes[node].log.push(Entry::Published { block: *block, depth: *depth });
        }
        PoolPublished { published: reserved as u64, refused: (missing.len() - reserved) as u64 }
    }

    /// A worker takes in what was published and removed on its node, as it does after each request.
    pub fn follow(&mut self, (node, worker): (u16, u16)) {
        self.follow_log(node.into(), worker.into());
    }

    /// A node has died: `heir` takes over what it had, with its room.
    pub fn take_over(&mut self, dead: u16, heir: u16) {
        let left = std::mem::take(&mut self.nodes[usize::from(dead)]);
        let heir_node = &mut self.nodes[usize::from(heir)];
        heir_node.free += left.free;
        for entry in left.log {
            let Entry::Published { block, .. } = entry else { continue };
            let place = &mut self.places[block as usize];
            if place.is_some_and(|place| place.node == dead) {
                *place = Some(Place { node: heir, used: 0 });
                heir_node.log.push(entry);
            }
        }
    }

    /// Whether a block is there.
    #[must_use]
    pub fn has(&self, block: u32) -> bool {
        self.places[block as usize].is_some()
    }

    /// The node that has a block.
    #[must_use]
    pub fn owner(&self, block: u32) -> Option<u16> {
        self.places[block as usize].map(|place| place.node)
    }

    /// Blocks that have left.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    fn touch(&mut self, blocks: &[u32]) {
        for block in blocks {
            if let Some(place) = &mut self.places[*block as usize] {
                let log = &self.nodes[usize::from(place.node)].log;
                place.used = place.used.max(log.len() as u64);
            }
        }
    }

    /// One batch of evictions. Returns how many blocks left.
    fn evict(&mut self, node: usize, worker: usize, want: usize) -> u64 {
        self.follow_log(node, worker);
        let mut stay = HashSet::new();
        loop {
            let (evicted, all_seen) = self.look_for_victims(node, worker, want, &mut stay);
            if evicted > 0 || all_seen {
                self.evictions += evicted;
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
                if self.held[block as usize] > 0 {
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

    fn follow_log(&mut self, node: usize, worker: usize) {
        let Node { orders, log, .. } = &mut self.nodes[node];
        let places = &self.places;
        let here = |block: u32| {
            places[block as usize].is_some_and(|place| usize::from(place.node) == node)
        };
        orders[worker].follow(log, here);
    }
}
