//! The lower bound of a choice for some of the requests.

use crate::placement::memory::BUFFERS;
use crate::placement::{Batch, MemoryModel};

/// What some of the requests offload, layer by layer.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Blocks that are due at a layer, by layer.
    due_blocks: Vec<u64>,
    /// Requests that offload a layer, and rest while it executes.
    resting: Vec<u16>,
    /// Requests that offload anything.
    streams: u16,
    /// Blocks that are not on the GPU.
    pub(super) freed_blocks: u64,
    /// Blocks of the buffers that the requests have of their own (PLAN-M3).
    own_buffers_blocks: u64,
}

/// What holds for every choice that completes a partial one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bound {
    /// Its stall is at least that.
    pub(super) stall_ticks: u64,
    /// Its prefetch buffer is at least that large.
    pub(super) buffer_blocks: u64,
}

impl Load {
    /// Nobody offloads anything.
    pub(super) fn none(layers: u16) -> Self {
        let layers = usize::from(layers) + 1;
        Self {
            due_blocks: vec![0; layers],
            resting: vec![0; layers],
            streams: 0,
            freed_blocks: 0,
            own_buffers_blocks: 0,
        }
    }

    /// Sets this to `other`, and a request of so many blocks a layer that offloads these layers.
    pub(super) fn set(&mut self, other: &Self, blocks: u64, offloaded: &[u16]) {
        self.due_blocks.copy_from_slice(&other.due_blocks);
        self.resting.copy_from_slice(&other.resting);
        for &layer in offloaded {
            self.due_blocks[usize::from(layer)] += blocks;
            self.resting[usize::from(layer)] += 1;
        }
        self.streams = other.streams + u16::from(!offloaded.is_empty());
        self.freed_blocks = other.freed_blocks + blocks * offloaded.len() as u64;
        self.own_buffers_blocks = other.own_buffers_blocks + own_buffers_blocks(blocks, offloaded);
    }

    /// The bound (PLAN-S1) of this, and a request of so many blocks a layer that offloads these
    /// layers.
    pub(super) fn bound(
        &self,
        batch: &Batch,
        memory: MemoryModel,
        blocks: u64,
        offloaded: &[u16],
    ) -> Bound {
        let (layer_ticks, block_ticks) = (batch.layer_ticks(), batch.block_ticks());
        let streams = self.streams + u16::from(!offloaded.is_empty());
        let own_buffers_blocks = self.own_buffers_blocks + own_buffers_blocks(blocks, offloaded);
        let mut offloaded = offloaded.iter().copied().map(usize::from).peekable();
        let mut bound = Bound { stall_ticks: 0, buffer_blocks: 0 };
        let (mut work, mut link) = (0, 0);
        for layer in 1..self.due_blocks.len() {
            let uses = u16::from(offloaded.next_if_eq(&layer).is_some());
            let due = self.due_blocks[layer] + blocks * u64::from(uses);
            work += due * block_ticks;
            bound.stall_ticks = bound.stall_ticks.max(work.saturating_sub(link));
            bound.buffer_blocks = bound.buffer_blocks.max(due);
            if self.resting[layer] + uses < streams {
                link += layer_ticks;
            }
        }
        if memory == MemoryModel::Buffers {
            bound.buffer_blocks = own_buffers_blocks;
        }
        bound
    }
}

fn own_buffers_blocks(blocks: u64, offloaded: &[u16]) -> u64 {
    blocks * offloaded.len().min(BUFFERS) as u64
}
