//! Pieces of the pool come and go while threads copy, where few may be registered at once.

use anyhow::{Result, anyhow, ensure};
use cxl_shm::fabric::ReadBack;
use cxl_shm::units::Extent;

use crate::device::Device;
use crate::streams;

const PIECE_BYTES: u64 = 2 << 20;
/// Less than the payload of one call touches.
const LIMIT_BYTES: u64 = 2 * PIECE_BYTES;
const PAYLOAD_BYTES: u64 = 5 << 20;
const THREADS: u64 = 4;
const THREAD_BYTES: u64 = 32 << 20;
const ROUNDS: u64 = 8;

/// Stores and loads with an engine of its own, across pieces.
pub(crate) fn check(device: &Device, gpu: usize) -> Result<String> {
    let dma = device.another_with(gpu, ReadBack::NotNeeded, |options| {
        options.registered_bytes_max = Some(LIMIT_BYTES);
        options.registered_piece_bytes = PIECE_BYTES;
        options.register_at_start = false;
    })?;
    let work = |thread| -> Result<()> {
        for round in 0..ROUNDS {
            let offset = thread * THREAD_BYTES + round * (THREAD_BYTES - PAYLOAD_BYTES) / ROUNDS;
            let payload = Extent::new(offset / 64 * 64, PAYLOAD_BYTES);
            let payload = payload.expect("it lies at the start of the file");
            streams::turn(&dma, payload, 7000 + thread * 100 + round)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    let figures = dma.figures();
    if dma.reach().bounced_because().is_some() {
        return Ok("through the buffer, byte for byte".into());
    }
    ensure!(
        figures.registered_bytes <= LIMIT_BYTES,
        "more is registered than allowed: {figures:?}"
    );
    ensure!(
        figures.registered_bytes == (figures.registrations - figures.unregistrations) * PIECE_BYTES,
        "registrations are not what is registered: {figures:?}"
    );
    if figures.refused_registrations > 0 {
        return Ok(format!("some through the buffer, byte for byte: {figures:?}"));
    }
    ensure!(figures.unregistrations > 0, "nothing was unregistered: {figures:?}");
    ensure!(figures.registrations_over_limit > 0, "no call took more than the limit: {figures:?}");
    ensure!(figures.bounced_bytes == 0, "payload bounced: {figures:?}");
    Ok(format!(
        "{THREADS} threads, {} pieces registered and {} unregistered meanwhile, byte for byte",
        figures.registrations, figures.unregistrations
    ))
}
