//! What a choice of placements costs.

use num_bigint::{BigInt, BigUint};
use num_rational::{BigRational, Ratio};

use super::edf;
use super::equal_share;
use super::exact::Exact;
use super::memory::{ahead, planned_blocks, resident_blocks};
use super::stream::Stream;
use super::timeline::{Unwatched, Watch};
use super::{Batch, Discipline, MemoryModel, Model, Placement, PlacementError, Request};

/// What one decode iteration costs with a choice of placements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evaluation {
    /// How long the GPU waits for KV, in times in which the link brings one block. Exact.
    pub stall_blocks: BigRational,
    /// Blocks that the link brings.
    pub moved_blocks: u64,
    /// Blocks that the batch needs on the GPU.
    pub memory_blocks: u64,
    /// Whether the GPU has room for them.
    pub feasible: bool,
}

/// Why placements cannot be evaluated for a batch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// There are not as many placements as requests.
    #[error("there are {placements} placements for {requests} requests: give one for each request")]
    Count {
        /// Placements.
        placements: usize,
        /// Requests.
        requests: usize,
    },
    /// A placement is not one of this model.
    #[error("placement of request {request}: {reason}")]
    Placement {
        /// The request, counted from 1.
        request: usize,
        /// What is wrong.
        reason: PlacementError,
    },
}

/// Simulates one decode iteration with these placements, one for each request.
///
/// # Errors
/// There is not one placement of this model for each request.
pub fn evaluate(
    batch: &Batch,
    placements: &[Placement],
    model: Model,
) -> Result<Evaluation, EvaluationError> {
    simulate(batch, placements, model, &mut Unwatched)
}

/// As [`evaluate`], with each interval told to `watch`.
pub(super) fn simulate<W: Watch>(
    batch: &Batch,
    placements: &[Placement],
    model: Model,
    watch: &mut W,
) -> Result<Evaluation, EvaluationError> {
    let (requests, layers) = (batch.requests(), batch.layers());
    if placements.len() != requests.len() {
        let (placements, requests) = (placements.len(), requests.len());
        return Err(EvaluationError::Count { placements, requests });
    }
    for (number, placement) in placements.iter().enumerate() {
        if let Some(&layer) = placement.offloaded().last().filter(|layer| **layer > layers) {
            let reason = PlacementError::NoSuchLayer { layer: layer.into(), layers };
            return Err(EvaluationError::Placement { request: number + 1, reason });
        }
    }
    let offloaded: Vec<_> = placements.iter().map(Placement::offloaded).collect();
    Ok(cost(batch, &offloaded, model, watch))
}

/// What these offloaded layers of each request cost. All are layers of the batch's model.
pub(super) fn cost<W: Watch>(
    batch: &Batch,
    offloaded: &[&[u16]],
    model: Model,
    watch: &mut W,
) -> Evaluation {
    let (stall_blocks, peak) = stall_and_peak(batch, offloaded, model, watch);
    let resident = resident_blocks(batch, offloaded);
    let planned = planned_blocks(batch, offloaded, model.memory);
    let memory_blocks = planned.unwrap_or(resident + peak);
    Evaluation {
        stall_blocks,
        moved_blocks: batch.all_blocks() - resident,
        memory_blocks,
        feasible: memory_blocks <= batch.gpu_blocks(),
    }
}

/// The stall in block-transfer times, and the peak of the buffer in `safe` mode.
fn stall_and_peak<W: Watch>(
    batch: &Batch,
    offloaded: &[&[u16]],
    model: Model,
    watch: &mut W,
) -> (BigRational, u64) {
    match model.discipline {
        Discipline::Edf => {
            let mut streams = edf_streams(batch, offloaded, model.memory);
            let taken = edf::iteration(batch, &mut streams, model.memory, watch);
            (blocks(batch, taken.stall.into(), 1_u32.into()), taken.buffer)
        }
        Discipline::EqualShare => {
            let taken = shared::<u128, _>(batch, offloaded, model.memory, &mut Unwatched);
            let taken = match taken {
                Some(taken) if !W::WATCHES => Some(taken),
                _ => shared::<BigUint, _>(batch, offloaded, model.memory, watch),
            };
            // Numbers of any length always have room.
            let taken = taken.unwrap_or_else(|| unreachable!("numbers of any length have room"));
            (blocks(batch, taken.stall, taken.parts), taken.buffer)
        }
    }
}

/// The streams of an iteration that begins, for a link that serves one at a time.
fn edf_streams<'a>(
    batch: &Batch,
    offloaded: &[&'a [u16]],
    memory: MemoryModel,
) -> Vec<Stream<'a, u64>> {
    let stream = |(request, layers): (&Request, &&'a [u16])| {
        let blocks = request.blocks_per_layer;
        Stream::new(layers, ahead(memory), blocks, blocks * batch.block_ticks())
    };
    batch.requests().iter().zip(offloaded).map(stream).collect()
}

pub(super) fn shared<'a, N: Exact, W: Watch>(
    batch: &Batch,
    offloaded: &[&'a [u16]],
    memory: MemoryModel,
    watch: &mut W,
) -> Option<equal_share::Taken> {
    let stream = |(request, layers): (&Request, &&'a [u16])| {
        let blocks = request.blocks_per_layer;
        Stream::new(layers, ahead(memory), blocks, N::of(blocks * batch.block_ticks()))
    };
    let mut streams: Vec<_> = batch.requests().iter().zip(offloaded).map(stream).collect();
    equal_share::iteration(batch, &mut streams, memory, watch)
}

/// A time of so many parts of ticks, in block-transfer times.
pub(super) fn blocks(batch: &Batch, time: BigUint, parts: BigUint) -> BigRational {
    BigRational::new(BigInt::from(time), BigInt::from(parts * batch.block_ticks()))
}

/// The nearest number that a picture can use.
pub(super) fn rounded(ratio: &Ratio<BigUint>) -> f64 {
    // A picture is a million parts wide at most.
    let millionths = ratio.numer() * 1_000_000_u64 / ratio.denom();
    u64::try_from(millionths).unwrap_or(u64::MAX) as f64 / 1e6
}
