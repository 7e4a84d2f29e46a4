//! How many blocks a choice of placements needs on the GPU.

use super::Request;

/// Blocks that the requests keep on the GPU: those of all layers that are not offloaded.
pub(super) fn resident_blocks<'a>(
    layers: u16,
    requests: &[Request],
    offloaded: impl Iterator<Item = &'a [u16]>,
) -> u64 {
    let resident = |(request, offloaded): (&Request, &[u16])| {
        request.blocks_per_layer * (u64::from(layers) - offloaded.len() as u64)
    };
    requests.iter().zip(offloaded).map(resident).sum()
}

/// Blocks of the prefetch buffer by the paper's Eq. 1 (PLAN-M1).
///
/// The requests that offload a layer have so many blocks of it together, and no layer has more.
pub(super) fn buffer_blocks<'a>(
    layers: u16,
    requests: &[Request],
    offloaded: impl Iterator<Item = &'a [u16]>,
) -> u64 {
    let mut of_layer = vec![0; usize::from(layers) + 1];
    for (request, offloaded) in requests.iter().zip(offloaded) {
        for &layer in offloaded {
            of_layer[usize::from(layer)] += request.blocks_per_layer;
        }
    }
    of_layer.into_iter().max().unwrap_or(0)
}
