//! Blocks of the GPU's memory, as transfers know them.
#![expect(unsafe_code, reason = "a transfer knows memory of a GPU by its address")]

use std::sync::{Arc, Mutex};

use anyhow::Result;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use rackline::cuda::{CudaDma, DeviceDestination, DeviceSource};
use rackline::{Destination, Source};

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

impl Source<CudaDma> for OnGpu {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: it is memory of the GPU that the check is given, which this owns, and who
            // transfers it names the one stream that writes it.
            unsafe { DeviceSource::new(address, bytes) }
        };
        self.halves().map(part).into()
    }
}

impl Destination<CudaDma> for OnGpu {
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: as above, and nobody else touches it before it is given back.
            unsafe { DeviceDestination::new(address, bytes) }
        };
        self.halves().map(part).into()
    }
}

/// A block of the GPU's memory of which each layer lies apart. Clones are of the same memory: who
/// has one gives streams work with it while a transfer has another.
#[derive(Clone)]
pub(super) struct InLayers(Vec<Layer>);

#[derive(Clone)]
pub(super) struct Layer {
    pub(super) memory: Arc<Mutex<CudaSlice<u8>>>,
    address: u64,
    bytes: usize,
}

impl InLayers {
    /// Layers of those lengths.
    pub(super) fn new(stream: &Arc<CudaStream>, lengths_bytes: &[usize]) -> Result<Self> {
        let layer = |bytes: &usize| {
            let memory = stream.alloc_zeros::<u8>(*bytes)?;
            let address = {
                let (address, _recorded) = memory.device_ptr(stream);
                address
            };
            Ok(Layer { memory: Arc::new(Mutex::new(memory)), address, bytes: *bytes })
        };
        Ok(Self(lengths_bytes.iter().map(layer).collect::<Result<_>>()?))
    }

    pub(super) fn layers(&self) -> &[Layer] {
        &self.0
    }
}

impl Source<CudaDma> for InLayers {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        (0..self.0.len()).flat_map(|layer| self.layer(layer)).collect()
    }

    fn layer(&self, layer: usize) -> Vec<DeviceSource<'_>> {
        let Layer { address, bytes, .. } = self.0[layer];
        // SAFETY: it is memory of the GPU that the check is given, kept by this, and the check says
        // that it is ready with the one stream that writes it.
        vec![unsafe { DeviceSource::new(address, bytes) }]
    }
}

impl Destination<CudaDma> for InLayers {
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>> {
        let part = |layer: &Layer| {
            // SAFETY: as above, and the check touches a layer only when it has arrived, except for
            // what it gave to the stream before that the transfer comes after.
            unsafe { DeviceDestination::new(layer.address, layer.bytes) }
        };
        self.0.iter().map(part).collect()
    }
}
