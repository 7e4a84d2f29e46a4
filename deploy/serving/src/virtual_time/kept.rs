//! What a system keeps, and where (RACK-S1 to RACK-S4).

use std::num::NonZeroU16;

use rackline_replay::{PoolModel, PoolPublished, PoolShape};

use super::Settings;
use crate::system::System;

/// The pools of a system. A *place* says which worker asks: its node, and which of the node's workers
/// it is.
#[derive(Debug)]
pub(super) struct Kept {
    system: System,
    /// Of each pool.
    shape: PoolShape,
    unique_blocks: u32,
    pools: Vec<PoolModel>,
}

impl Kept {
    pub(super) fn new(settings: &Settings, unique_blocks: u32) -> Self {
        let Settings { system, rack, pool, .. } = settings;
        let parts = match system {
            System::Rackline | System::RacklineDrives => 1,
            System::Direct => 0,
            System::HostCache => rack.prefill_nodes(),
            System::Store => rack.nodes(),
        };
        let shape = match parts {
            0 | 1 => *pool,
            parts => {
                let chunks = (pool.chunks / u32::from(parts)).max(1);
                PoolShape { chunks, nodes: NonZeroU16::MIN, ..*pool }
            }
        };
        let pools = (0..parts).map(|_| PoolModel::new(shape, unique_blocks)).collect();
        Self { system: *system, shape, unique_blocks, pools }
    }

    /// The blocks that each pool has to do with, and how the pool calls the worker.
    fn parts(&self, place: (u16, u16), blocks: &[u32]) -> Vec<(usize, (u16, u16), Vec<u32>)> {
        let (node, worker) = place;
        match self.system {
            System::Direct => Vec::new(),
            System::Rackline | System::RacklineDrives => vec![(0, place, blocks.to_vec())],
            System::HostCache => vec![(node.into(), (0, worker), blocks.to_vec())],
            System::Store => {
                let of = |pool: usize| {
                    let own = |block: &u32| self.home_of(*block) == pool;
                    (pool, (0, 0), blocks.iter().copied().filter(own).collect())
                };
                (0..self.pools.len()).map(of).collect()
            }
        }
    }

    /// The host of a block in a store.
    pub(super) fn home_of(&self, block: u32) -> usize {
        block as usize % self.pools.len().max(1)
    }

    /// Whether a worker there finds a block.
    pub(super) fn has(&self, (node, _): (u16, u16), block: u32) -> bool {
        match self.system {
            System::Direct => false,
            System::Rackline | System::RacklineDrives => self.pools[0].has(block),
            System::HostCache => self.pools[usize::from(node)].has(block),
            System::Store => self.pools[self.home_of(block)].has(block),
        }
    }

    /// How many of the first blocks a worker there finds. They are used by that.
    pub(super) fn look_up(&mut self, place: (u16, u16), blocks: &[u32]) -> usize {
        let hits = blocks.iter().take_while(|block| self.has(place, **block)).count();
        for (pool, _, part) in self.parts(place, &blocks[..hits]) {
            self.pools[pool].look_up(&part);
        }
        hits
    }

    /// A node has died (RACK-S8). `heir` takes over what it had in the pool that all share. Its part of a
    /// store begins empty; of what requests hold there, `held` has the blocks, once for each hold.
    pub(super) fn node_died(&mut self, node: u16, heir: u16, held: &[u32]) {
        match self.system {
            System::Direct | System::HostCache => {}
            System::Rackline | System::RacklineDrives => self.pools[0].take_over(node, heir),
            System::Store => {
                let part = usize::from(node);
                let own = held.iter().copied().filter(|block| self.home_of(*block) == part);
                let own: Vec<u32> = own.collect();
                let mut empty = PoolModel::new(self.shape, self.unique_blocks);
                empty.hold(&own);
                self.pools[part] = empty;
            }
        }
    }

    /// The node that has a block in the pool that all share.
    pub(super) fn owner(&self, block: u32) -> Option<u16> {
        self.pools[0].owner(block)
    }

    /// A node brings blocks with their depths back into the pool that all share.
    pub(super) fn restore(&mut self, node: u16, blocks: &[(u32, u32)]) {
        self.pools[0].restore((node, 0), blocks);
        self.pools[0].follow((node, 0));
    }

    pub(super) fn hold(&mut self, place: (u16, u16), blocks: &[u32]) {
        for (pool, _, part) in self.parts(place, blocks) {
            self.pools[pool].hold(&part);
        }
    }

    pub(super) fn release(&mut self, place: (u16, u16), blocks: &[u32]) {
        for (pool, _, part) in self.parts(place, blocks) {
            self.pools[pool].release(&part);
        }
    }

    /// Publishes what is not there of a prompt, behind its first `first` blocks.
    pub(super) fn publish(
        &mut self,
        place: (u16, u16),
        blocks: &[u32],
        first: usize,
    ) -> PoolPublished {
        let mut all = PoolPublished::default();
        if self.system == System::Store {
            // Depths are those within the host's blocks of the prompt: their order is the same.
            for (pool, place, part) in self.parts(place, blocks) {
                let before = blocks[..first].iter();
                let before = before.filter(|block| self.home_of(**block) == pool).count();
                add(&mut all, self.pools[pool].publish(place, &part, before));
                self.pools[pool].follow(place);
            }
            return all;
        }
        for (pool, place, part) in self.parts(place, blocks) {
            add(&mut all, self.pools[pool].publish(place, &part, first));
            self.pools[pool].follow(place);
        }
        all
    }
}

fn add(all: &mut PoolPublished, one: PoolPublished) {
    all.published += one.published;
    all.refused += one.refused;
}
