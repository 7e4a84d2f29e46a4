//! Blocks of the GPU's memory, as transfers know them.
#![expect(unsafe_code, reason = "a transfer knows memory of a GPU by its address")]

use std::sync::Arc;

use anyhow::Result;
use connector::dma::cuda::{DeviceDestination, DeviceSource};
use connector::transfer::{GpuDestination, GpuSource};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::BLOCK_BYTES;

/// A block of the GPU's memory, in two parts.
pub(super) struct OnGpu {
    pub(super) memory: CudaSlice<u8>,
    address: u64,
}

impl OnGpu {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let memory = stream.alloc_zeros::<u8>(BLOCK_BYTES)?;
        let address = {
            let (address, _recorded) = memory.device_ptr(stream);
            address
        };
        Ok(Self { memory, address })
    }

    fn halves(&self) -> [(u64, usize); 2] {
        let half = self.memory.len() / 2;
        [(self.address, half), (self.address + half as u64, self.memory.len() - half)]
    }
}

impl GpuSource for OnGpu {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: it is memory of the GPU that the check is given, which this owns, and who
            // transfers it names the one stream that writes it.
            unsafe { DeviceSource::new(address, bytes) }
        };
        self.halves().map(part).into()
    }
}

impl GpuDestination for OnGpu {
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: as above, and nobody else touches it before it is given back.
            unsafe { DeviceDestination::new(address, bytes) }
        };
        self.halves().map(part).into()
    }
}
