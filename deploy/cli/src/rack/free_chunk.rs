//! Whether a pool has room that no node has taken.

use cxl_shm::fabric::Fabric as _;
use cxl_shm::layout::ChunkState;
use cxl_shm::units::ChunkId;
use rackline::LocalCache;

/// Whether a chunk is free. Where none is, a publish waits for one in vain.
pub(crate) fn has_free_chunk(cache: &LocalCache<'_>) -> bool {
    let (layout, fabric) = (cache.member().layout(), cache.member().fabric());
    fabric.refresh(layout.chunk_table());
    (0..layout.chunks()).map(ChunkId).any(|chunk| {
        let entry = layout.chunk_entry(chunk).cached(fabric);
        entry.is_ok_and(|entry| entry.state() == Some(ChunkState::Free))
    })
}
