//! How fast payload goes each way, beside plain copies to and from pinned memory in the same run.

mod cases;
mod measure;
mod plain;
mod work;

use anyhow::Result;
use cxl_shm::fabric::ReadBack;

use crate::device::Device;
use crate::report::Figure;
use cases::How;
pub(crate) use cases::Way;

/// Measures all cases, in turns with the plain copies.
pub(crate) fn measure(device: &Device, gpu: usize, rounds: u32) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for case in cases::all(device.bytes) {
        let another = match case.how {
            How::AsUsual => None,
            How::ReadBack => Some(device.another(gpu, ReadBack::Needed, true)?),
            How::CpuSums => Some(device.another(gpu, ReadBack::NotNeeded, false)?),
        };
        let dma = another.as_ref().unwrap_or(&device.dma);
        figures.push(measure::measure(device, dma, &case, rounds)?);
    }
    Ok(figures)
}
