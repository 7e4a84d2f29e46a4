//! The blocks of one node: what its descriptors say, and how hot its chunks are.
//!
//! The heat of a block is its place in the order of use of its owner. A use on any node is
//! a fetch, or another publication. The clock of uses is the owner's log, so an age is a number of blocks that the owner has
//! published or removed since. A block is
//!
//! - *hot* when fewer entries came since its last use than a sixteenth of the owner's blocks;
//! - *warm* when fewer came than half of them;
//! - *cold* when more came;
//! - *unused* when no node has used it since it was published.

use std::collections::BTreeMap;

use anyhow::Result;
use cxl_shm::fabric::MappedFabric;
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::units::NodeId;
use kv_cache::{BlockUse, BlockUses, Descriptor, SlotContent};
use rackline::identity_in;
use serde::Serialize;

use super::tenants::TenantBlocks;

/// First blocks of prompts that are kept of each node.
const PREFIXES_MAX: usize = 8;
/// Ages are counted by powers of two.
const AGES: usize = u32::BITS as usize + 1;

/// What the descriptors of a node say.
#[derive(Debug, Default)]
pub(crate) struct NodeBlocks {
    /// Blocks that can be read.
    pub(crate) readable: u64,
    /// Bytes of their payload.
    pub(crate) bytes: u64,
    /// Descriptors that are in use, also of blocks that are being written.
    pub(crate) descriptors: u64,
    /// Descriptors that cannot be read.
    pub(crate) damaged: u64,
    /// Texts of the identities that the node has in its memory.
    pub(crate) identities: Vec<String>,
    /// By chunk; empty when nobody asked for the heat.
    pub(crate) chunks: BTreeMap<u32, ChunkHeat>,
    /// By tag of the namespace, without identities.
    pub(crate) tenants: BTreeMap<u16, TenantBlocks>,
    /// The first blocks of prompts that most nodes have used, and of these the latest used ones.
    pub(crate) prefixes: Vec<HotPrefix>,
}

/// The blocks of a chunk by their heat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct ChunkHeat {
    /// Bytes of payload.
    pub(crate) bytes: u64,
    pub(crate) hot: u64,
    pub(crate) warm: u64,
    pub(crate) cold: u64,
    pub(crate) unused: u64,
}

impl ChunkHeat {
    pub(crate) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.hot += other.hot;
        self.warm += other.warm;
        self.cold += other.cold;
        self.unused += other.unused;
    }
}

/// The first block of prompts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct HotPrefix {
    /// The first 8 bytes of the key, in hexadecimal digits.
    pub(crate) key: String,
    /// The node that has the block.
    pub(crate) owner: u16,
    /// The tag of its namespace: no name of a tenant is in the region.
    pub(crate) namespace: u16,
    /// Nodes that have used the block.
    pub(crate) nodes: u16,
    /// Entries of the owner's log since the last use.
    pub(crate) age: u32,
}

impl HotPrefix {
    /// Hotter ones first.
    pub(crate) fn order(&self, other: &Self) -> std::cmp::Ordering {
        other.nodes.cmp(&self.nodes).then(self.age.cmp(&other.age)).then(self.key.cmp(&other.key))
    }
}

/// Bytes of a chunk, and its blocks by age; the last place is for unused ones.
type Ages = (u64, [u64; AGES + 1]);

impl NodeBlocks {
    /// Reads all descriptors of `node` freshly. The heat is that of uses on the nodes `readers`; without
    /// any nobody asks for it.
    pub(crate) fn scan(
        fabric: &MappedFabric,
        superblock: &Superblock,
        layout: &Layout,
        node: NodeId,
        readers: &[NodeId],
    ) -> Result<Self> {
        let uses = match readers {
            [] => None,
            readers => Some(BlockUses::look(fabric, superblock, layout, node, readers)?),
        };
        let (mut blocks, mut ages) = (Self::default(), BTreeMap::new());
        kv_cache::segment_of(superblock, layout, node)?.scan(
            fabric,
            |slot, content| match content {
                Ok(SlotContent::Block(descriptor)) => {
                    blocks.descriptors += 1;
                    if descriptor.is_readable() {
                        blocks.readable += 1;
                        blocks.bytes += descriptor.payload.bytes();
                        let identity = identity_in(fabric, &descriptor);
                        if identity.is_none() {
                            blocks.count_tenant(&descriptor);
                            if let Some(uses) = &uses {
                                blocks.count(layout, &descriptor, uses.of(fabric, slot), &mut ages);
                            }
                        }
                        blocks.identities.extend(identity);
                    }
                }
                Ok(_) => {}
                Err(_) => blocks.damaged += 1,
            },
        );
        blocks.chunks = classify(&ages, blocks.readable);
        Ok(blocks)
    }

    fn count_tenant(&mut self, descriptor: &Descriptor) {
        let its = TenantBlocks { blocks: 1, bytes: descriptor.payload.bytes() };
        self.tenants.entry(descriptor.namespace.get()).or_default().add(its);
    }

    fn count(
        &mut self,
        layout: &Layout,
        descriptor: &Descriptor,
        block_use: BlockUse,
        ages: &mut BTreeMap<u32, Ages>,
    ) {
        let Some(chunk) = layout.chunk_of(descriptor.payload) else { return };
        let (bytes, counts) = ages.entry(chunk.0).or_insert((0, [0; AGES + 1]));
        *bytes += descriptor.payload.bytes();
        counts[block_use.age.map_or(AGES, bucket)] += 1;
        if let (0, Some(age)) = (descriptor.depth, block_use.age) {
            let digits = descriptor.key.as_bytes()[..8].iter().map(|byte| format!("{byte:02x}"));
            self.keep(HotPrefix {
                key: digits.collect(),
                owner: descriptor.handle.owner().0,
                namespace: descriptor.namespace.get(),
                nodes: block_use.nodes,
                age,
            });
        }
    }

    fn keep(&mut self, prefix: HotPrefix) {
        let at = self.prefixes.partition_point(|other| other.order(&prefix).is_lt());
        if at < PREFIXES_MAX {
            self.prefixes.insert(at, prefix);
            self.prefixes.truncate(PREFIXES_MAX);
        }
    }
}

/// Ages from 2^(n-1) to 2^n - 1 are in bucket n.
fn bucket(age: u32) -> usize {
    age.checked_ilog2().map_or(0, |log| log as usize + 1)
}

fn classify(ages: &BTreeMap<u32, Ages>, blocks: u64) -> BTreeMap<u32, ChunkHeat> {
    let within = |part: u64| bucket(u32::try_from(blocks / part).unwrap_or(u32::MAX));
    let (hot, warm) = (within(16), within(2));
    let heat = |(bytes, counts): &Ages| {
        let mut heat = ChunkHeat { bytes: *bytes, ..Default::default() };
        for (at, count) in counts.iter().enumerate() {
            let place = match at {
                AGES => &mut heat.unused,
                at if at <= hot => &mut heat.hot,
                at if at <= warm => &mut heat.warm,
                _ => &mut heat.cold,
            };
            *place += count;
        }
        heat
    };
    ages.iter().map(|(chunk, ages)| (*chunk, heat(ages))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heat_of_a_block_is_its_place_in_the_order_of_use() {
        let mut counts = [0; AGES + 1];
        for age in [0, 1, 40, 63, 64, 300, 511, 512, 100_000] {
            counts[bucket(age)] += 1;
        }
        counts[AGES] = 7;
        let ages = BTreeMap::from([(3, (4096, counts))]);
        // Of 1,000 blocks: hot within 62 entries, warm within 500; in whole powers of two.
        let heat = classify(&ages, 1000)[&3];
        let expected = ChunkHeat { bytes: 4096, hot: 4, warm: 3, cold: 2, unused: 7 };
        assert_eq!(heat, expected);
        assert_eq!(bucket(u32::MAX), AGES - 1);
    }

    #[test]
    fn the_hottest_prefixes_are_kept_and_no_others() {
        let prefix = |nodes, age| HotPrefix {
            key: format!("{nodes:04}{age:04}"),
            owner: 0,
            namespace: 1,
            nodes,
            age,
        };
        let mut blocks = NodeBlocks::default();
        for turn in 0..100u16 {
            blocks.keep(prefix(turn % 5, u32::from(turn)));
        }
        let kept: Vec<_> = blocks.prefixes.iter().map(|it| (it.nodes, it.age)).collect();
        assert_eq!(kept, [4, 9, 14, 19, 24, 29, 34, 39].map(|age| (4, age)));
    }
}
