//! A copy comes after what its stream was given before the call, and not after what it is given
//! later.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaStream, sys};
use rackline::cuda::{CudaDma, CudaError, DeviceSource, GpuError};
use rackline::{AsyncSession, NewBlock, PublishOutcome, Source};

use super::on_gpu::OnGpu;
use super::{BLOCK_BYTES, BLOCKS, blocks, hash, taken_up};
use crate::content::{content, difference};
use crate::streams::{keep_busy, scratch};

/// Work that becomes part of a graph is done who knows when.
pub(super) fn a_capture_is_refused(
    session: &AsyncSession,
    engine: &Arc<CudaStream>,
    gpu: usize,
) -> Result<()> {
    engine.synchronize()?;
    engine.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let refused = session.on_gpu(gpu, (&**engine).into());
    drop(engine.end_capture(sys::CUgraphInstantiate_flags(0))?);
    ensure!(
        matches!(refused, Err(GpuError::Stream(CudaError::Capturing))),
        "copies behind a stream that is captured: {refused:?}"
    );
    Ok(())
}

/// What is published is written by a stream that has much to do before that; what is fetched goes
/// where that stream is still to write something else.
pub(super) fn behind_late_work(
    session: &AsyncSession,
    engine: &Arc<CudaStream>,
    gpu: usize,
) -> Result<()> {
    let mut scratch = scratch(engine)?;
    let contents: Vec<_> = (0..u64::from(BLOCKS)).map(|seed| content(seed, BLOCK_BYTES)).collect();
    let written = contents.iter().map(|bytes| engine.clone_htod(bytes));
    let written: Vec<_> = written.collect::<Result<_, _>>()?;
    let other = engine.clone_htod(&content(99, BLOCK_BYTES))?;
    let mut from = blocks(engine)?;
    engine.synchronize()?;

    keep_busy(engine, &mut scratch)?;
    for (block, written) in from.iter_mut().zip(&written) {
        engine.memcpy_dtod(written, &mut block.bytes.memory)?;
    }
    let publish = taken_up(session.on_gpu(gpu, (&**engine).into())?.publish(from))?;
    let published = publish.wait()?;
    let report = published.report?;
    ensure!(report.published() == usize::from(BLOCKS), "not published: {:?}", report.outcomes());

    let mut to: Vec<_> = published.blocks.into_iter().map(|block| block.bytes).collect();
    keep_busy(engine, &mut scratch)?;
    for block in &mut to {
        engine.memcpy_dtod(&other, &mut block.memory)?;
    }
    let hashes: Vec<_> = (0..u32::from(BLOCKS)).map(hash).collect();
    let held = session.lookup_and_hold(hashes)?.wait()??;
    let fetch = taken_up(session.on_gpu(gpu, (&**engine).into())?.fetch(held.blocks(), to))?;
    let fetched = fetch.wait()?;
    let report = fetched.report?;
    ensure!(report.valid_blocks() == usize::from(BLOCKS), "not fetched: {:?}", report.stop());
    for (number, (block, expected)) in fetched.destinations.iter().zip(&contents).enumerate() {
        let found = engine.clone_dtoh(&block.memory)?;
        if let Some(difference) = difference(&found, expected) {
            anyhow::bail!("block {number} did not come after the stream's work: {difference}");
        }
    }
    Ok(())
}

/// A block whose thread of the pool waits for a word before it copies.
struct Gated {
    gate: Mutex<Receiver<()>>,
    bytes: OnGpu,
}

impl Source<CudaDma> for Gated {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        // Who drops the other end has given up.
        let _ = self.gate.lock().map(|gate| gate.recv());
        self.bytes.parts()
    }
}

/// A publish that waited in its queue while the stream was given more, and another call named it:
/// it is done when the stream has come to where it was at its own call.
pub(super) fn not_behind_later_work(
    session: &AsyncSession,
    engine: &Arc<CudaStream>,
    gpu: usize,
) -> Result<()> {
    let mut scratch = scratch(engine)?;
    let expected = content(70, BLOCK_BYTES);
    let written = engine.clone_htod(&expected)?;
    for (round, times) in (200..).zip([1, 4, 16]) {
        let publish = |depth, bytes| {
            let (open, gate) = channel();
            let bytes = Gated { gate: Mutex::new(gate), bytes };
            let blocks = vec![NewBlock { hash: hash(depth), depth, bytes }];
            let publish = taken_up(session.on_gpu(gpu, (&**engine).into())?.publish(blocks))?;
            anyhow::Ok((publish, open))
        };
        let [mut early, late] = [OnGpu::new(engine)?, OnGpu::new(engine)?];
        engine.memcpy_dtod(&written, &mut early.memory)?;
        let (early, open_early) = publish(round, early)?;
        for _ in 0..times {
            keep_busy(engine, &mut scratch)?;
        }
        let later = engine.record_event(None)?;
        let (late, open_late) = publish(round + 100, late)?;
        open_early.send(()).context("nobody publishes")?;
        let published = early.wait()?;
        let in_time = !later.is_complete();
        open_late.send(()).context("nobody publishes")?;
        ensure!(late.wait()?.report?.published() == 1, "the later call is not published");
        ensure!(later.is_complete(), "the later call did not wait for its stream");
        ensure!(published.report?.published() == 1, "the earlier call is not published");
        arrived(session, engine, gpu, round, &expected)?;
        if in_time {
            return Ok(());
        }
        // The GPU may have been faster than this thread: once more, with more to do.
    }
    anyhow::bail!("a copy waited for what its stream was given after the call")
}

/// What is in the pool already is not copied, and waits for no stream.
pub(super) fn not_behind_work_for_nothing(
    session: &AsyncSession,
    engine: &Arc<CudaStream>,
    gpu: usize,
) -> Result<()> {
    let mut scratch = scratch(engine)?;
    for times in [1, 4, 16] {
        let blocks = blocks(engine)?;
        for _ in 0..times {
            keep_busy(engine, &mut scratch)?;
        }
        let publish = taken_up(session.on_gpu(gpu, (&**engine).into())?.publish(blocks))?;
        let later = engine.record_event(None)?;
        // With its blocks, whose end waits for the stream.
        let published = publish.wait()?;
        let in_time = !later.is_complete();
        let report = published.report?;
        let there = report.outcomes().iter().all(|it| *it == PublishOutcome::AlreadyThere);
        ensure!(there, "blocks were published anew: {:?}", report.outcomes());
        if in_time {
            return Ok(());
        }
        // The GPU may have been faster than this thread: once more, with more to do.
    }
    anyhow::bail!("a publish of blocks that are there waited for the stream")
}

/// That the block is in the pool.
fn arrived(
    session: &AsyncSession,
    engine: &Arc<CudaStream>,
    gpu: usize,
    number: u32,
    expected: &[u8],
) -> Result<()> {
    let found = session.lookup_and_hold(vec![hash(number)])?.wait()??;
    let to = vec![OnGpu::new(engine)?];
    let fetch = taken_up(session.on_gpu(gpu, (&**engine).into())?.fetch(found.blocks(), to))?;
    let fetched = fetch.wait()?;
    ensure!(fetched.report?.valid_blocks() == 1, "block {number} is not fetched");
    let bytes = engine.clone_dtoh(&fetched.destinations[0].memory)?;
    match difference(&bytes, expected) {
        Some(difference) => anyhow::bail!("block {number}: {difference}"),
        None => Ok(()),
    }
}
