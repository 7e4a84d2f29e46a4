//! What it takes to register a pool: time, memory of the kernel, and memory of the GPU.

#![expect(clippy::disallowed_methods, reason = "this is what the machine takes, not the protocol")]

use std::fmt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use cudarc::driver::result;
use cxl_shm::fabric::{Mapping, ReadBack};
use cxl_shm::units::Extent;
use rackline::cuda::{CudaDma, CudaOptions};
use rackline::dma::{DmaEngine, StoreJob};
use serde::Serialize;

use crate::device::Device;

/// Pieces whose first use is measured.
const FIRST_USES: u64 = 8;
const PAYLOAD_BYTES: usize = 64 << 10;
const TOUCHED_BYTES: u64 = 64 << 20;
const OUT_OF_BYTES: u64 = 100 << 30;

/// What was measured. Memory is what the machine and the GPU have less of afterwards: other
/// processes may have taken or freed some.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) piece_bytes: u64,
    /// Of a call that touches a piece first, whose pages have memory.
    pub(crate) first_use_ms: f64,
    pub(crate) pool_bytes: u64,
    /// To register all of it when the GPU is opened, by several threads.
    pub(crate) pool_s: f64,
    pub(crate) kernel_bytes: u64,
    pub(crate) gpu_bytes: u64,
    /// The same for 100 GiB, by rule of three.
    pub(crate) seconds_of_100_gib: f64,
    pub(crate) kernel_bytes_of_100_gib: u64,
    pub(crate) gpu_bytes_of_100_gib: u64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the first use of {} takes {:.1} ms; all {} at once {:.2} s; 100 GiB would take {:.0} s, \
             {} of the kernel and {} of the GPU",
            ByteSize(self.piece_bytes),
            self.first_use_ms,
            ByteSize(self.pool_bytes),
            self.pool_s,
            self.seconds_of_100_gib,
            ByteSize(self.kernel_bytes_of_100_gib),
            ByteSize(self.gpu_bytes_of_100_gib),
        )
    }
}

/// Measures with engines of its own; `None` where the driver does not register the file.
///
/// # Errors
/// Also where it does not register all of it at once.
pub(crate) fn measure(device: &Device, gpu: usize) -> Result<Option<Cost>> {
    if device.dma.reach().bounced_because().is_some() {
        return Ok(None);
    }
    touch(device)?;
    let open = |at_start| {
        let began = Instant::now();
        let dma = device.another_with(gpu, ReadBack::NotNeeded, |options| {
            options.registered_bytes_max = None;
            options.register_at_start = at_start;
        })?;
        anyhow::Ok((dma, began.elapsed().as_secs_f64()))
    };
    let (dma, open_s) = open(false)?;
    let piece_bytes = CudaOptions::default().registered_piece_bytes;
    let first_use_ms = first_use_ms(device, &dma, piece_bytes)?;
    drop(dma);

    let (kernel_before, gpu_before) = (free_memory()?, free_gpu_memory(device)?);
    let (dma, open_all_s) = open(true)?;
    let (kernel_after, gpu_after) = (free_memory()?, free_gpu_memory(device)?);
    let registered_bytes = dma.figures().registered_bytes;
    drop(dma);
    ensure!(
        registered_bytes == device.bytes,
        "the driver registers {} of {} at once",
        ByteSize(registered_bytes),
        ByteSize(device.bytes)
    );
    // Both times the first piece was registered.
    let pool_s = (open_all_s - open_s).max(0.0) + first_use_ms / 1e3;
    let kernel_bytes = kernel_before.saturating_sub(kernel_after);
    let gpu_bytes = gpu_before.saturating_sub(gpu_after);
    let scale = OUT_OF_BYTES as f64 / device.bytes as f64;
    let scaled = |bytes: u64| {
        let scaled = u128::from(bytes) * u128::from(OUT_OF_BYTES) / u128::from(device.bytes);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    Ok(Some(Cost {
        piece_bytes,
        first_use_ms,
        pool_bytes: device.bytes,
        pool_s,
        kernel_bytes,
        gpu_bytes,
        seconds_of_100_gib: pool_s * scale,
        kernel_bytes_of_100_gib: scaled(kernel_bytes),
        gpu_bytes_of_100_gib: scaled(gpu_bytes),
    }))
}

/// Puts memory behind the file, so that it is not counted.
fn touch(device: &Device) -> Result<()> {
    let mapping = Mapping::shared(&device.file, device.bytes)?;
    let mut offset = 0;
    while offset < device.bytes {
        let bytes = TOUCHED_BYTES.min(device.bytes - offset);
        let part = Extent::new(offset, bytes).context("a part of the file")?;
        mapping.prefault(part).context("no memory for the file")?;
        offset = part.end();
    }
    Ok(())
}

fn first_use_ms(device: &Device, dma: &CudaDma, piece_bytes: u64) -> Result<f64> {
    let memory = device.stream.alloc_zeros::<u8>(PAYLOAD_BYTES)?;
    let before = dma.figures();
    // Not the first piece, which is registered.
    for piece in (1..device.bytes / piece_bytes).take(usize::try_from(FIRST_USES)?) {
        let payload = Extent::new(piece * piece_bytes, PAYLOAD_BYTES as u64);
        let payload = payload.context("a piece of the file")?;
        let parts = [dma.source(&memory, &device.stream)?];
        dma.store(&[StoreJob { payload, parts: &parts }]).remove(0)?;
    }
    let after = dma.figures();
    let registered = after.registrations - before.registrations;
    let ns = after.registering_ns - before.registering_ns;
    Ok(ns as f64 / registered.max(1) as f64 / 1e6)
}

/// Bytes of this machine that nobody uses, caches aside.
fn free_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("/proc/meminfo")?;
    Ok(kib.trim().parse::<u64>()? << 10)
}

fn free_gpu_memory(device: &Device) -> Result<u64> {
    device.dma.context().bind_to_thread()?;
    let (free, _all) = result::mem_get_info()?;
    Ok(free as u64)
}
