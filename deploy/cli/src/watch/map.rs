//! The chunks of a region as cells: a bounded number, whatever the size of the region.

use std::collections::BTreeMap;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{ChunkState, Layout};
use cxl_shm::units::ChunkId;
use serde::Serialize;

use super::blocks::{ChunkHeat, NodeBlocks};

/// Cells of a map: with more chunks a cell stands for several.
const CELLS_MAX: u32 = 768;

/// Chunks beside each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Cell {
    /// The number of its first chunk.
    pub(crate) first: u32,
    pub(crate) chunks: u32,
    pub(crate) free: u32,
    /// Chunks that are out of use, because their memory failed.
    pub(crate) failed: u32,
    /// Chunks whose entries cannot be read: out of use, too.
    pub(crate) unreadable: u32,
    /// The node that owns most of them; none when nobody owns any.
    pub(crate) owner: Option<u16>,
    /// Nodes that own some.
    pub(crate) owners: u16,
    pub(crate) heat: ChunkHeat,
}

/// What a node has of all chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct OwnerHeat {
    pub(crate) node: u16,
    pub(crate) chunks: u32,
    pub(crate) heat: ChunkHeat,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct ChunkMap {
    /// How many chunks a cell has, but for the last.
    pub(crate) chunks_per_cell: u32,
    pub(crate) cells: Vec<Cell>,
    pub(crate) owners: Vec<OwnerHeat>,
}

impl ChunkMap {
    /// The table of chunks, freshly read, with the heat of `blocks`, the blocks of each node.
    pub(crate) fn look(layout: &Layout, fabric: &impl Fabric, blocks: &[NodeBlocks]) -> Self {
        fabric.refresh(layout.chunk_table());
        let states: Vec<_> = (0..layout.chunks())
            .map(|chunk| layout.chunk_entry(ChunkId(chunk)).cached(fabric).ok()?.state())
            .collect();
        let mut heat: BTreeMap<u32, ChunkHeat> = BTreeMap::new();
        for (chunk, its) in blocks.iter().flat_map(|node| &node.chunks) {
            heat.entry(*chunk).or_default().add(its);
        }
        Self::new(&states, &heat)
    }

    fn new(states: &[Option<ChunkState>], heat: &BTreeMap<u32, ChunkHeat>) -> Self {
        let count = u32::try_from(states.len()).unwrap_or(u32::MAX);
        let chunks_per_cell = count.div_ceil(CELLS_MAX).max(1);
        let (mut cells, mut owners) = (Vec::new(), BTreeMap::<u16, OwnerHeat>::new());
        let mut first = 0;
        for part in states.chunks(chunks_per_cell as usize) {
            let (mut free, mut failed, mut unreadable) = (0, 0, 0);
            let mut its = BTreeMap::<u16, u32>::new();
            let mut sum = ChunkHeat::default();
            for (chunk, state) in (first..).zip(part) {
                match state {
                    Some(ChunkState::Free) => free += 1,
                    Some(ChunkState::Failed) => failed += 1,
                    None => unreadable += 1,
                    Some(ChunkState::Owned { owner, .. }) => {
                        let heat = heat.get(&chunk).copied().unwrap_or_default();
                        *its.entry(owner.0).or_default() += 1;
                        sum.add(&heat);
                        let owner = owners
                            .entry(owner.0)
                            .or_insert_with(|| OwnerHeat { node: owner.0, ..Default::default() });
                        owner.chunks += 1;
                        owner.heat.add(&heat);
                    }
                }
            }
            // Of equal numbers the lowest node.
            let most = its.iter().max_by_key(|(node, count)| (**count, u16::MAX - **node));
            cells.push(Cell {
                first,
                chunks: u32::try_from(part.len()).unwrap_or(u32::MAX),
                free,
                failed,
                unreadable,
                owner: most.map(|(node, _)| *node),
                owners: u16::try_from(its.len()).unwrap_or(u16::MAX),
                heat: sum,
            });
            first += chunks_per_cell;
        }
        Self { chunks_per_cell, cells, owners: owners.into_values().collect() }
    }
}

#[cfg(test)]
mod tests {
    use cxl_shm::units::{Incarnation, NodeId};

    use super::*;

    fn owned(node: u16) -> Option<ChunkState> {
        let incarnation = Incarnation(1);
        Some(ChunkState::Owned { owner: NodeId(node), incarnation, purpose: 0 })
    }

    #[test]
    fn a_terabyte_has_no_more_cells_than_a_screen_has_room_for() {
        let states: Vec<_> = (0..16_384u16)
            .map(|chunk| match chunk % 8 {
                0 => Some(ChunkState::Free),
                1 => None,
                at => owned(at % 3),
            })
            .collect();
        let hot = ChunkHeat { bytes: 10, hot: 1, ..Default::default() };
        let heat = (0..16_384).map(|chunk| (chunk, hot)).collect();
        let map = ChunkMap::new(&states, &heat);
        assert_eq!((map.chunks_per_cell, map.cells.len()), (22, 745));
        let sum = |of: fn(&Cell) -> u32| map.cells.iter().map(of).sum::<u32>();
        assert_eq!((sum(|it| it.chunks), sum(|it| it.free)), (16_384, 2048));
        assert_eq!(sum(|it| it.unreadable), 2048);
        assert_eq!(map.owners.iter().map(|it| it.chunks).sum::<u32>(), 16_384 - 4096);
        assert_eq!(map.owners.iter().map(|it| it.heat.hot).sum::<u64>(), 16_384 - 4096);
        assert_eq!((map.cells[1].first, map.cells[744].chunks), (22, 16));
    }

    #[test]
    fn a_cell_of_a_small_region_is_a_chunk() {
        let states = [owned(2), Some(ChunkState::Free), None, Some(ChunkState::Failed)];
        let map = ChunkMap::new(&states, &BTreeMap::new());
        let owners: Vec<_> = map.cells.iter().map(|it| it.owner).collect();
        assert_eq!((map.chunks_per_cell, owners), (1, vec![Some(2), None, None, None]));
        assert_eq!((map.cells[1].free, map.cells[2].unreadable, map.cells[3].failed), (1, 1, 1));
    }
}
