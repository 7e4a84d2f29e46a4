//! What one thread copies in a call.
#![expect(unsafe_code, reason = "parts of one allocation are named by their addresses")]

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaSlice, DevicePtr};
use cxl_shm::units::Extent;
use rackline::cuda::{CudaDma, DeviceDestination, DeviceSource};
use rackline::dma::{CopyLayer, DmaEngine, LayeredSource, Layers, LoadJob, StoreJob};

use super::cases::{Case, How, Way};
use super::parts::Only;
use crate::device::Device;

/// Payloads, and the parts of each in GPU memory, with as much between two parts.
pub(super) struct Work {
    payloads: Vec<Extent>,
    _memory: CudaSlice<u8>,
    address: u64,
    part_bytes: u64,
    layers: Option<Layers>,
    only: Option<Only>,
}

impl Work {
    /// That of the thread with this number.
    pub(super) fn new(device: &Device, case: &Case, thread: u64) -> Result<Self> {
        let first = thread * case.payloads;
        let payload = |index| device.payload(first + index, case.payload_bytes);
        let payloads = (0..case.payloads).map(payload).collect::<Result<_>>()?;
        let bytes = usize::try_from(2 * case.payload_bytes * case.payloads)?;
        let memory = device.stream.alloc_zeros::<u8>(bytes)?;
        let address = {
            let (address, _recorded) = memory.device_ptr(&device.stream);
            address
        };
        let layers = case.payload_bytes / case.part_bytes;
        let layers = (0..layers).map(|_| case.part_bytes);
        let layers = case.by_layers.then(|| Layers::new(layers));
        let only = match case.how {
            How::Only(part) => Some(Only::new(device, case, part)?),
            How::AsUsual | How::ReadBack | How::CpuSums => None,
        };
        let part_bytes = case.part_bytes;
        Ok(Self { payloads, _memory: memory, address, part_bytes, layers, only })
    }

    /// The addresses of the parts of a payload.
    fn parts_of(&self, payload: usize) -> impl Iterator<Item = (u64, usize)> {
        let (part_bytes, parts) = (self.part_bytes, self.parts());
        let first = self.address + payload as u64 * parts * 2 * part_bytes;
        let bytes = usize::try_from(part_bytes).expect("it lies in memory of the GPU");
        (0..parts).map(move |part| (first + part * 2 * part_bytes, bytes))
    }

    fn parts(&self) -> u64 {
        self.payloads[0].bytes() / self.part_bytes
    }

    fn sources(&self, payload: usize) -> Vec<DeviceSource<'_>> {
        let parts = self.parts_of(payload);
        // SAFETY: it is memory of the GPU of the check, which this owns; nothing writes it meanwhile.
        parts.map(|(address, bytes)| unsafe { DeviceSource::new(address, bytes) }).collect()
    }

    fn destinations(&self, payload: usize) -> Vec<DeviceDestination<'_>> {
        let parts = self.parts_of(payload);
        // SAFETY: as above; nothing else touches it during the call, which has the only borrow.
        parts.map(|(address, bytes)| unsafe { DeviceDestination::new(address, bytes) }).collect()
    }

    /// One round of the thread with this number.
    pub(super) fn round(&mut self, dma: &CudaDma, way: Way, number: usize) -> Result<()> {
        let stores = way == Way::Store || (way == Way::Both && number.is_multiple_of(2));
        if let Some(only) = &mut self.only {
            let gap = 2 * self.part_bytes;
            let addresses = (0..).map(|payload| self.address + payload * gap);
            // SAFETY: it is memory of the GPU of the check, as long as a payload, which this owns.
            return unsafe {
                only.round(dma, stores, self.payloads.iter().copied().zip(addresses))
            };
        }
        if stores { self.store(dma) } else { self.load(dma) }
    }

    fn store(&mut self, dma: &CudaDma) -> Result<()> {
        let numbers = 0..self.payloads.len();
        let stored = if let Some(layers) = &self.layers {
            let parts: Vec<_> = numbers.map(|payload| self.sources(payload)).collect();
            let stored = dma.store_by_layers(&self.payloads, layers, &mut Ready(&parts));
            stored.context("the store broke off")?
        } else {
            let parts: Vec<_> = numbers.map(|payload| self.sources(payload)).collect();
            let jobs = self.payloads.iter().zip(&parts);
            let jobs = jobs.map(|(payload, parts)| StoreJob { payload: *payload, parts });
            dma.store(&jobs.collect::<Vec<_>>())
        };
        ensure!(stored.iter().all(Result::is_ok), "a store failed: {stored:?}");
        Ok(())
    }

    fn load(&mut self, dma: &CudaDma) -> Result<()> {
        let jobs = self.payloads.iter().enumerate();
        let job = |(number, payload): (_, &Extent)| LoadJob {
            payload: *payload,
            parts: self.destinations(number),
        };
        let mut jobs: Vec<_> = jobs.map(job).collect();
        let loaded = match &self.layers {
            Some(layers) => dma.load_by_layers(jobs, layers, &mut |_| ()),
            None => dma.load(&mut jobs),
        };
        ensure!(loaded.iter().all(Result::is_ok), "a load failed: {loaded:?}");
        Ok(())
    }
}

/// Payloads that are there, a part for each layer.
struct Ready<'a>(&'a [Vec<DeviceSource<'a>>]);

impl LayeredSource<CudaDma> for Ready<'_> {
    fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, CudaDma>) -> bool {
        let parts: Vec<_> = self.0.iter().map(|parts| vec![parts[layer]]).collect();
        copy(&parts);
        true
    }
}
