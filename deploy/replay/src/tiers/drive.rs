//! A drive that holds nothing but names.

use kv_cache::Watermarks;
use kv_drive::policy::{LeafOrder, Oldest};

use super::TierOptions;

/// The blocks on a drive, and the order in which they leave: what a store does, over names.
#[derive(Debug)]
pub struct Drive {
    extent_bytes: u64,
    room_bytes: Option<u64>,
    watermarks: Watermarks,
    order: LeafOrder,
    /// By block of the trace: its number on the drive.
    numbers: Vec<Option<u32>>,
    /// By number on the drive: the block of the trace.
    blocks: Vec<u32>,
    /// By block of the trace: how many are before it in its prefix.
    depths: Vec<u16>,
}

impl Drive {
    pub(super) fn new(depths: Vec<u16>, options: &TierOptions) -> Self {
        Self {
            extent_bytes: options.extent_bytes(),
            room_bytes: options.room_bytes,
            watermarks: options.watermarks,
            order: LeafOrder::default(),
            numbers: vec![None; depths.len()],
            blocks: Vec::new(),
            depths,
        }
    }

    /// Whether a block is there.
    #[must_use]
    pub fn has(&self, block: u32) -> bool {
        self.numbers[block as usize].is_some()
    }

    /// Blocks that are there.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.order.len() as u64
    }

    /// Bytes that they take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks() * self.extent_bytes
    }

    /// A request uses these blocks; those that are not there are passed over.
    pub(super) fn used(&mut self, blocks: &[u32]) {
        self.order.tick();
        for block in blocks {
            if let Some(number) = self.numbers[*block as usize] {
                self.order.used(number);
            }
        }
    }

    /// Blocks come. Returns the bytes that they take.
    pub(super) fn write(&mut self, blocks: &[u32]) -> u64 {
        for block in blocks {
            let number = self.order.enter();
            if number as usize == self.blocks.len() {
                self.blocks.push(0);
            }
            self.blocks[number as usize] = *block;
            self.numbers[*block as usize] = Some(number);
        }
        blocks.len() as u64 * self.extent_bytes
    }

    /// Lets blocks leave when the drive is above its high watermark, and says which.
    pub(super) fn keep_room(&mut self) -> Vec<u32> {
        let Some(room) = self.room_bytes else { return Vec::new() };
        if !self.watermarks.is_above(self.bytes(), room) {
            return Vec::new();
        }
        let surplus = self.watermarks.surplus(self.bytes(), room).div_ceil(self.extent_bytes);
        let depth_of = |number: u32| self.depths[self.blocks[number as usize] as usize];
        let want = usize::try_from(surplus).unwrap_or(usize::MAX);
        let numbers = Oldest::of(&self.order, want, |_| true, depth_of);
        let leave = |number: u32| {
            self.order.leave(number);
            let block = self.blocks[number as usize];
            self.numbers[block as usize] = None;
            block
        };
        numbers.into_iter().map(leave).collect()
    }
}

/// How many blocks are before each of `unique_blocks` in its prefix.
#[must_use]
pub fn depths<'r>(unique_blocks: u32, requests: impl Iterator<Item = &'r [u32]>) -> Vec<u16> {
    let mut depths = vec![0; unique_blocks as usize];
    for request in requests {
        for (depth, block) in (0_u16..=u16::MAX).chain(std::iter::repeat(u16::MAX)).zip(request) {
            depths[*block as usize] = depth;
        }
    }
    depths
}
