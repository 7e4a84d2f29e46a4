//! The proof: the same requests without a pool give the same tokens, and a block that was damaged
//! in the pool is noticed, counted and computed again.

use anyhow::{Context, Result, bail, ensure};
use cxl_shm::clock::SystemClock;
use cxl_shm::units::Extent;
use demo::KvGeometry;
use indicatif::ProgressBar;
use rackline::dma::{DmaEngine, HostDma, LoadJob, StoreJob};

use super::protocol::{Event, Task};
use super::rack::Worker;
use super::serve::{Fleet, Served, generate, through_pool};
use crate::output::complain;
use crate::rack::OwnRegion;

/// Serves the requests again by one process without a pool, and enters its times. Returns whether
/// all tokens were equal.
pub(super) fn compare(
    alone: &mut Worker,
    served: &mut [Served],
    max_tokens: usize,
    bar: &ProgressBar,
) -> Result<bool> {
    let mut equal = true;
    for request in served {
        let task = Task::Alone { tokens: request.prompt.clone(), max_tokens };
        let answer = generate(alone, &task, &SystemClock::start(), true)?;
        request.ttft_cold_ms = answer.ttft_ms;
        if answer.tokens != request.answer {
            equal = false;
            complain!(
                "rackline: conversation {} turn {}: tokens differ: {:?} without the pool, {:?} \
                 through it",
                request.conversation + 1,
                request.turn + 1,
                answer.tokens,
                request.answer
            );
        }
        bar.inc(1);
    }
    Ok(equal)
}

/// Flips a bit in a block of the last request's prompt in the pool, serves the request again, and
/// returns how many damaged blocks the workers found. The tokens must be the same.
pub(super) fn damage(
    region: &OwnRegion,
    fleet: &mut Fleet,
    served: &[Served],
    max_tokens: usize,
) -> Result<u64> {
    let request = served.last().context("no request was served")?;
    let index = served.len();
    let (prefill, decode) = fleet.pair(index);
    let payload = locate(prefill, &request.prompt, 1)?;
    flip_bit(&HostDma::new(region.region.fabric().clone()), payload)?;
    let (_, answer) = through_pool(prefill, decode, &request.prompt, max_tokens, true)?;
    ensure!(answer.tokens == request.answer, "a damaged block changed the tokens of an answer");
    Ok(answer.moved.corrupt_blocks)
}

/// Flips a bit in a layer, counted from 0, of the last whole block of a prompt in the pool.
pub(super) fn damage_layer(
    region: &OwnRegion,
    locator: &mut Worker,
    prompt: &[u32],
    layer: usize,
    geometry: &KvGeometry,
) -> Result<()> {
    let payload = locate(locator, prompt, (prompt.len() - 1) / geometry.block_tokens - 1)?;
    let range = geometry.layer_range(layer);
    let (start, bytes) = (range.start as u64, range.len() as u64);
    let part = Extent::new(payload.offset() + start, bytes).context("the layer lies nowhere")?;
    flip_bit(&HostDma::new(region.region.fabric().clone()), part)
}

/// Where a block of a prompt lies in the region.
fn locate(locator: &mut Worker, prompt: &[u32], block: usize) -> Result<Extent> {
    locator.give(&Task::Locate { tokens: prompt.to_vec(), block })?;
    let Event::Located { offset, bytes } = locator.next()? else {
        bail!("the worker {} answered out of turn", locator.name());
    };
    Extent::new(offset, bytes).context("the block lies nowhere")
}

fn flip_bit(dma: &HostDma, payload: Extent) -> Result<()> {
    let mut bytes = vec![0; usize::try_from(payload.bytes())?];
    let parts = vec![bytes.as_mut_slice()];
    for outcome in dma.load(&mut [LoadJob { payload, parts }]) {
        outcome?;
    }
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    for outcome in dma.store(&[StoreJob { payload, parts: &[&bytes] }]) {
        outcome?;
    }
    Ok(())
}
