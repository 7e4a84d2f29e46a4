//! Copies come after the work of the engine's streams, and threads do not get in each other's way.

use anyhow::{Result, anyhow, ensure};
use connector::dma::cuda::{CudaDma, DeviceDestination, DeviceSource};
use connector::dma::{Checksum, DmaEngine, LoadJob, StoreJob};
use cxl_shm::units::Extent;

use crate::content::{content, difference};
use crate::device::Device;

const THREADS: u64 = 4;
const ROUNDS: u64 = 16;
const BYTES: usize = 8 << 20;

/// Each thread has a stream of its own, and overwrites the memory that it stores from right before,
/// without waiting for that itself.
pub(crate) fn check(device: &Device) -> Result<String> {
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
    Ok(format!("{THREADS} threads, {ROUNDS} payloads each, each right after the work before it"))
}

fn turn(dma: &CudaDma, payload: Extent, seed: u64) -> Result<()> {
    let stream = dma.context().new_stream()?;
    let expected = content(seed, BYTES);
    let mut memory = stream.alloc_zeros::<u8>(BYTES)?;
    stream.memcpy_htod(&expected, &mut memory)?;
    dma.after((&*stream).into())?;
    let parts = [DeviceSource::of(&memory, &stream)];
    let stored = dma.store(&[StoreJob { payload, parts: &parts }]).remove(0)?;
    ensure!(stored == Checksum::of(&[&expected]), "a copy did not wait for the work before it");

    stream.memset_zeros(&mut memory)?;
    dma.after((&*stream).into())?;
    let parts = vec![DeviceDestination::of(&mut memory, &stream)];
    dma.load(&mut [LoadJob { payload, parts }]).remove(0)?;
    let found = stream.clone_dtoh(&memory)?;
    match difference(&found, &expected) {
        Some(difference) => Err(anyhow!("loaded beside other threads: {difference}")),
        None => Ok(()),
    }
}
