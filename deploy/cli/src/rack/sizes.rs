//! How large a pool is made for a trace.

use std::num::{NonZeroU16, NonZeroU32};
use std::path::Path;

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use cxl_shm::layout::{CHUNK_BYTES_MIN, Layout, LockProtocol};
use cxl_shm::region::free_bytes;
use cxl_shm::units::PAGE_BYTES;
use kv_cache::CacheGeometry;
use rackline_replay::PoolShape;

use super::{Interrupt, OwnRegion};
use crate::format::{self, Descriptors, Drives, Plan};

/// Fewest chunks that are worth larger ones: with so many, what a capacity is rounded up to is at
/// most a 256th more.
const CHUNKS_FEW: u32 = 256;
/// Longest publication log that is of use: no process is ever so far behind.
const LOG_ENTRIES: u32 = 1 << 16;
const LOCKS: u32 = 16;

/// A pool for a replay, and the length of its blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) shape: PoolShape,
    pub(crate) block_bytes: u64,
    chunk_bytes: u64,
    /// What the drives of one node may take, where there are some.
    drive_bytes: Option<u64>,
}

impl Sizes {
    /// A pool with room for `capacity` blocks, rounded up to whole chunks; without a limit, for all
    /// `unique_blocks`.
    pub(crate) fn new(
        (nodes, workers_per_node): (NonZeroU16, NonZeroU16),
        capacity: Option<u32>,
        unique_blocks: u32,
        block_bytes: u64,
    ) -> Result<Self> {
        let largest = u64::from(u32::MAX);
        ensure!(
            (1..=largest).contains(&block_bytes),
            "blocks of {block_bytes} bytes: give --block-bytes from 1 to {largest}"
        );
        let slot_bytes = block_bytes.next_multiple_of(PAGE_BYTES);
        let blocks = u64::from(capacity.unwrap_or(unique_blocks).max(1));
        let mut chunk_bytes = slot_bytes.next_power_of_two().max(CHUNK_BYTES_MIN);
        while blocks.div_ceil(2 * chunk_bytes / slot_bytes) >= u64::from(CHUNKS_FEW) {
            chunk_bytes *= 2;
        }
        let chunk_blocks = chunk_bytes / slot_bytes;
        let mut chunks = blocks.div_ceil(chunk_blocks).max(nodes.get().into());
        if capacity.is_none() {
            // Each node leaves a part of its last chunk unused.
            chunks += u64::from(nodes.get());
        }
        let chunk_blocks = NonZeroU32::new(u32::try_from(chunk_blocks)?).unwrap_or(NonZeroU32::MIN);
        let chunks = u32::try_from(chunks)?;
        let shape = PoolShape { nodes, workers_per_node, chunks, chunk_blocks };
        Ok(Self { shape, block_bytes, chunk_bytes, drive_bytes: None })
    }

    /// The same with drives behind it, which may take so many bytes on each node.
    pub(crate) fn with_drives(self, drive_bytes: Option<u64>) -> Self {
        Self { drive_bytes, ..self }
    }

    /// Makes the pool in a file in memory, which has the name of the command in its name.
    pub(crate) fn make_region(&self, command: &str, interrupt: &Interrupt) -> Result<OwnRegion> {
        let (plan, bytes) = self.plan()?;
        let folder = Path::new("/dev/shm");
        if let Some(free) = free_bytes(folder)?
            && free < bytes
        {
            bail!(
                "a pool for {} blocks of {} takes {} in {}, where {} is free: give a smaller \
                 --block-bytes or --capacity-blocks",
                self.shape.blocks(),
                ByteSize(self.block_bytes),
                ByteSize(bytes),
                folder.display(),
                ByteSize(free)
            );
        }
        let path = folder.join(format!("rackline-{command}-{}", std::process::id()));
        OwnRegion::make(&path, bytes, &plan, interrupt)
    }

    /// What to format with, and how long the region has to be for exactly these chunks.
    pub(crate) fn plan(&self) -> Result<(Plan, u64)> {
        // Any node may come to own all blocks, and a segment takes three quarters of its slots.
        let slots = u32::try_from((2 * self.shape.blocks()).next_power_of_two().max(64))?;
        let cache = CacheGeometry::new(slots, LOG_ENTRIES)?;
        let nodes = self.shape.nodes.get();
        let plan = Plan {
            nodes,
            locks: LOCKS,
            lock_protocol: LockProtocol::Arbitrated,
            chunk_bytes: self.chunk_bytes,
            descriptors: Descriptors::Exactly(cache),
            drives: match self.drive_bytes {
                None => Drives::Nowhere,
                Some(bytes) => {
                    Drives::Of { drive_bytes: Some(bytes), block_bytes: self.block_bytes }
                }
            },
        };
        let chunks_in = |bytes| -> Result<u64> {
            let geometry = format::superblock(&plan, bytes)?.geometry;
            Ok(Layout::new(geometry)?.chunks().into())
        };
        let wanted = u64::from(self.shape.chunks);
        let payload_bytes = wanted * self.chunk_bytes;
        let areas_bytes = u64::from(nodes) * cache.area_bytes(nodes);
        let mut bytes = 2 * payload_bytes + areas_bytes + (64 << 20);
        // The tables of drives take more or less, by how much they may hold.
        while chunks_in(bytes)? < wanted {
            bytes *= 2;
        }
        // A chunk less needs no more metadata, so this ends, at the smallest region that has
        // enough.
        loop {
            let surplus = chunks_in(bytes)? - wanted;
            if surplus == 0 {
                return Ok((plan, bytes));
            }
            bytes -= surplus * self.chunk_bytes;
            while chunks_in(bytes)? < wanted {
                bytes += self.chunk_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(nodes: u16, capacity: Option<u32>, unique_blocks: u32, block_bytes: u64) -> Sizes {
        let nodes = NonZeroU16::new(nodes).unwrap();
        Sizes::new((nodes, NonZeroU16::MIN), capacity, unique_blocks, block_bytes).unwrap()
    }

    #[test]
    fn a_capacity_is_rounded_up_by_little() {
        for capacity in [1, 15, 95, 1000, 18_279, 200_000, 5_000_000] {
            let blocks = sizes(2, Some(capacity), 1, 4096).shape.blocks();
            let capacity = u64::from(capacity);
            assert!(blocks >= capacity, "{capacity}: {blocks}");
            assert!(blocks <= capacity + (capacity / 256).max(32), "{capacity}: {blocks}");
        }
    }

    #[test]
    fn without_a_limit_all_blocks_fit_however_they_fall() {
        let pool = sizes(3, None, 10_000, 4096).shape;
        let left_over = 3 * u64::from(pool.chunk_blocks.get() - 1);
        assert!(pool.blocks() - left_over >= 10_000);
    }

    #[test]
    fn the_region_has_exactly_the_chunks() {
        for (nodes, capacity, block_bytes) in
            [(1, 95, 4096), (2, 18_279, 4096), (4, 100, 368_640), (32, 7, 70_000)]
        {
            let sizes = sizes(nodes, Some(capacity), 1, block_bytes);
            let (plan, bytes) = sizes.plan().unwrap();
            let superblock = format::superblock(&plan, bytes).unwrap();
            let layout = Layout::new(superblock.geometry).unwrap();
            assert_eq!(layout.chunks(), sizes.shape.chunks);
        }
    }

    #[test]
    fn impossible_blocks_are_refused() {
        for bytes in [0, 1 << 33] {
            let nodes = NonZeroU16::MIN;
            assert!(Sizes::new((nodes, nodes), None, 1, bytes).is_err());
        }
    }
}
