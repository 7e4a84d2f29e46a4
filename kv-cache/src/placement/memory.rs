//! How many blocks a choice of placements needs on the GPU. `offloaded` has the layers that each request
//! of the batch offloads.

use super::{Batch, MemoryModel};

/// Buffers of a request (PLAN-M3): one layer executes from the first while the second is filled.
pub(super) const BUFFERS: usize = 2;

/// Blocks that the requests keep on the GPU: those of all layers that are not offloaded.
pub(super) fn resident_blocks(batch: &Batch, offloaded: &[&[u16]]) -> u64 {
    let layers = u64::from(batch.layers());
    let kept =
        batch.requests().iter().zip(offloaded).map(|(request, offloaded)| {
            request.blocks_per_layer * (layers - offloaded.len() as u64)
        });
    kept.sum()
}

/// Blocks of the prefetch buffer by the paper's Eq. 1.
///
/// The requests that offload a layer have so many blocks of it together, and no layer has more.
fn buffer_blocks(batch: &Batch, offloaded: &[&[u16]]) -> u64 {
    let mut of_layer = vec![0; usize::from(batch.layers()) + 1];
    for (request, offloaded) in batch.requests().iter().zip(offloaded) {
        for &layer in *offloaded {
            of_layer[usize::from(layer)] += request.blocks_per_layer;
        }
    }
    of_layer.into_iter().max().unwrap_or(0)
}

/// Blocks of the buffers that each request has of its own (PLAN-M3).
fn own_buffers_blocks(batch: &Batch, offloaded: &[&[u16]]) -> u64 {
    let own =
        batch.requests().iter().zip(offloaded).map(|(request, offloaded)| {
            request.blocks_per_layer * offloaded.len().min(BUFFERS) as u64
        });
    own.sum()
}

/// Blocks that the GPU needs room for, where this is known without a simulation: not by PLAN-M2.
pub(super) fn planned_blocks(
    batch: &Batch,
    offloaded: &[&[u16]],
    memory: MemoryModel,
) -> Option<u64> {
    let buffers = match memory {
        MemoryModel::Paper => buffer_blocks(batch, offloaded),
        MemoryModel::Buffers => own_buffers_blocks(batch, offloaded),
        MemoryModel::Safe => return None,
    };
    Some(resident_blocks(batch, offloaded) + buffers)
}

/// How many layers a stream may have fetched that have not executed.
pub(super) const fn ahead(memory: MemoryModel) -> usize {
    match memory {
        MemoryModel::Buffers => BUFFERS,
        MemoryModel::Paper | MemoryModel::Safe => usize::MAX,
    }
}
