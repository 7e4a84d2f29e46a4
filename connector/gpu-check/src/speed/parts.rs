//! A part of what a transfer does, alone: where the time goes.
#![expect(unsafe_code, reason = "the GPU copies to and from memory of the pool")]

use std::sync::Arc;

use anyhow::{Context, Result};
use cudarc::driver::{CudaStream, sys};
use cxl_shm::fabric::Fabric;
use cxl_shm::units::{Extent, LineRange};
use rackline::cuda::CudaDma;

use super::cases::{Case, Part};
use super::plain::Plain;
use crate::device::Device;

/// That of one thread.
pub(super) enum Only {
    Flush,
    Copy(Arc<CudaStream>),
    Pinned(Plain),
}

impl Only {
    pub(super) fn new(device: &Device, case: &Case, part: Part) -> Result<Self> {
        Ok(match part {
            Part::Flush => Self::Flush,
            Part::Copy => Self::Copy(device.dma.context().new_stream()?),
            Part::Pinned => Self::Pinned(Plain::of_thread(device, case)?),
        })
    }

    /// Does it once with each payload and its place in GPU memory.
    ///
    /// # Safety
    /// As many bytes of GPU memory are there as the payload has, and nobody else uses them.
    pub(super) unsafe fn round(
        &mut self,
        dma: &CudaDma,
        stores: bool,
        mut payloads: impl Iterator<Item = (Extent, u64)>,
    ) -> Result<()> {
        match self {
            Self::Flush => {
                payloads
                    .for_each(|(payload, _)| dma.fabric().write_back(LineRange::covering(payload)));
                dma.fabric().fence();
                Ok(())
            }
            Self::Copy(stream) => {
                dma.context().bind_to_thread()?;
                let copied = payloads.try_for_each(|(payload, gpu)| {
                    let pool = dma.fabric().mapping().address(payload).context("no payload")?;
                    let pool = pool.expose_provenance() as u64;
                    let (to, from) = if stores { (pool, gpu) } else { (gpu, pool) };
                    let bytes = usize::try_from(payload.bytes())?;
                    // SAFETY: one side lies in the mapping, which the engine keeps, in a file of the
                    // check; the other is the caller's. The stream comes to its end below, also where a
                    // later copy is refused.
                    unsafe { sys::cuMemcpyAsync(to, from, bytes, stream.cu_stream()) }.result()?;
                    anyhow::Ok(())
                });
                stream.synchronize()?;
                copied
            }
            Self::Pinned(plain) => plain.round().map(drop),
        }
    }
}
