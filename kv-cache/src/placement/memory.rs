//! How many blocks a choice of placements needs on the GPU. `offloaded` has the layers that each request
//! of the batch offloads.

use super::Batch;

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

/// Blocks that the GPU needs room for by PLAN-M1.
pub(super) fn paper_blocks(batch: &Batch, offloaded: &[&[u16]]) -> u64 {
    resident_blocks(batch, offloaded) + buffer_blocks(batch, offloaded)
}
