//! How fast payload goes each way, beside plain copies to and from pinned memory in the same run.

mod cases;
mod measure;
mod parts;
mod plain;
mod work;

use anyhow::Result;
use cxl_shm::fabric::ReadBack;
use rackline::cuda::{CudaDma, PoolReach};

use crate::device::Device;
use crate::report::Figure;
pub(crate) use cases::{COPY_ONLY, Way};
use cases::{How, Part};

/// Measures all cases, in turns with the plain copies.
pub(crate) fn measure(device: &Device, gpu: usize, rounds: u32) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for case in cases::all(device.bytes) {
        if case.how == How::Only(Part::Copy) && !is_registered(&device.dma) {
            continue;
        }
        let another = match case.how {
            How::AsUsual | How::Only(_) => None,
            How::ReadBack => Some(device.another(gpu, ReadBack::Needed, true)?),
            How::CpuSums => Some(device.another(gpu, ReadBack::NotNeeded, false)?),
        };
        let dma = another.as_ref().unwrap_or(&device.dma);
        figures.push(measure::measure(device, dma, &case, rounds)?);
    }
    Ok(figures)
}

/// Whether all that was copied before is registered now. Copies to and from other memory are slower.
fn is_registered(dma: &CudaDma) -> bool {
    let figures = dma.figures();
    let is_reached = !matches!(dma.reach(), PoolReach::Bounced { .. });
    is_reached && figures.unregistrations == 0 && figures.refused_registrations == 0
}
