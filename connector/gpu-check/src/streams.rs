//! Copies come after the work of the engine's streams, and threads do not get in each other's way.

use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use cudarc::driver::{CudaSlice, CudaStream};
use cxl_shm::units::Extent;
use rackline::cuda::CudaDma;
use rackline::dma::{Checksum, DmaEngine, LoadJob, StoreJob};

use crate::content::{content, difference};
use crate::device::Device;

const THREADS: u64 = 4;
const ROUNDS: u64 = 8;
const BYTES: usize = 8 << 20;
/// Work that takes a GPU longer than anything that a copy does before it begins: milliseconds.
const WORK_BYTES: usize = 32 << 20;
const WORK_TIMES: usize = 150;

/// Copies from and into memory that a stream is about to write, and one that another stream is.
pub(crate) fn check(device: &Device) -> Result<String> {
    late_work(device)?;
    let work = |thread| -> Result<()> {
        let payload = device.payload(thread, BYTES as u64)?;
        (0..ROUNDS).try_for_each(|round| turn(&device.dma, payload, thread * 1000 + round))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(format!("{THREADS} threads, {ROUNDS} payloads each, right after work that takes long"))
}

/// What is stored is written on the GPU by a stream that has much to do before that; then the same
/// memory is loaded into, which that stream is still to fill.
fn late_work(device: &Device) -> Result<()> {
    let (dma, payload) = (device.dma.with_own_order(), device.payload(7, BYTES as u64)?);
    // What a clone is told holds for the handle.
    let told = dma.clone();
    let (engine, other) = (dma.context().new_stream()?, dma.context().new_stream()?);
    let (first, second) = (content(1, BYTES), content(2, BYTES));
    let written = [engine.clone_htod(&first)?, engine.clone_htod(&second)?];
    let mut memory = engine.alloc_zeros::<u8>(BYTES)?;
    let mut scratch = scratch(&engine)?;
    engine.synchronize()?;

    write_late(&engine, &mut scratch, &written[0], &mut memory)?;
    // Named by another stream: what is known to have written it counts too.
    let parts = [told.source(&memory, &other)?];
    let stored = dma.store(&[StoreJob { payload, parts: &parts }]).remove(0)?;
    ensure!(stored == Checksum::of(&[&first]), "a store did not wait for the work before it");

    write_late(&engine, &mut scratch, &written[1], &mut memory)?;
    let parts = vec![told.destination(&mut memory, &other)?];
    dma.load(&mut [LoadJob { payload, parts }]).remove(0)?;
    engine.synchronize()?;
    match difference(&other.clone_dtoh(&memory)?, &first) {
        Some(difference) => {
            Err(anyhow!("a load did not wait for the work before it: {difference}"))
        }
        None => Ok(()),
    }
}

/// Memory that a stream is kept busy with.
pub(crate) fn scratch(stream: &Arc<CudaStream>) -> Result<CudaSlice<u8>> {
    Ok(stream.alloc_zeros::<u8>(WORK_BYTES)?)
}

/// Gives `stream` much to do.
pub(crate) fn keep_busy(stream: &Arc<CudaStream>, scratch: &mut CudaSlice<u8>) -> Result<()> {
    Ok((0..WORK_TIMES).try_for_each(|_| stream.memset_zeros(scratch))?)
}

fn write_late(
    stream: &Arc<CudaStream>,
    scratch: &mut CudaSlice<u8>,
    from: &CudaSlice<u8>,
    to: &mut CudaSlice<u8>,
) -> Result<()> {
    keep_busy(stream, scratch)?;
    Ok(stream.memcpy_dtod(from, to)?)
}

/// Stores and loads a payload right after work that writes its memory.
pub(crate) fn turn(dma: &CudaDma, payload: Extent, seed: u64) -> Result<()> {
    let stream = dma.context().new_stream()?;
    let bytes = usize::try_from(payload.bytes())?;
    let expected = content(seed, bytes);
    let mut memory = stream.alloc_zeros::<u8>(bytes)?;
    stream.memcpy_htod(&expected, &mut memory)?;
    let parts = [dma.source(&memory, &stream)?];
    let stored = dma.store(&[StoreJob { payload, parts: &parts }]).remove(0)?;
    ensure!(stored == Checksum::of(&[&expected]), "beside other threads: what was stored is not");

    stream.memset_zeros(&mut memory)?;
    let parts = vec![dma.destination(&mut memory, &stream)?];
    dma.load(&mut [LoadJob { payload, parts }]).remove(0)?;
    let found = stream.clone_dtoh(&memory)?;
    match difference(&found, &expected) {
        Some(difference) => Err(anyhow!("loaded beside other threads: {difference}")),
        None => Ok(()),
    }
}
