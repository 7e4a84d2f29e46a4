//! How fast payload goes each way, beside plain copies to pinned memory.

#![expect(clippy::disallowed_methods, reason = "this is what the machine takes, not the protocol")]

use std::time::Instant;

use anyhow::{Result, ensure};
use cudarc::driver::{CudaSlice, PinnedHostSlice};
use cxl_shm::units::Extent;
use rackline::dma::cuda::pinned_memory;
use rackline::dma::{DmaEngine, LoadJob, StoreJob};

use crate::device::Device;
use crate::report::Figure;

/// Bytes of a payload, and how many at a time.
const CASES: [(u64, u64, f64); 4] =
    [(64 << 10, 64, 0.85), (2 << 20, 1, 0.95), (2 << 20, 32, 0.95), (16 << 20, 8, 0.95)];

/// Measures each case in both directions, in turns with the plain copies.
pub(crate) fn measure(device: &Device, rounds: u32) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (bytes, batch, target) in CASES {
        let case = Case::new(device, bytes, batch)?;
        for way in [Way::Store, Way::Load] {
            figures.push(case.measure(device, way, rounds, target)?);
        }
    }
    Ok(figures)
}

#[derive(Clone, Copy)]
enum Way {
    Store,
    Load,
}

struct Case {
    bytes: u64,
    payloads: Vec<Extent>,
    memory: Vec<CudaSlice<u8>>,
    pinned: PinnedHostSlice<u8>,
}

impl Case {
    fn new(device: &Device, bytes: u64, batch: u64) -> Result<Self> {
        let payloads: Vec<_> =
            (0..batch).map(|index| device.payload(index, bytes)).collect::<Result<_>>()?;
        let memory = payloads
            .iter()
            .map(|_| {
                device.stream.clone_htod(&vec![1u8; usize::try_from(bytes)?]).map_err(Into::into)
            })
            .collect::<Result<_>>()?;
        let pinned = pinned_memory(device.dma.context(), usize::try_from(bytes)?)?;
        Ok(Self { bytes, payloads, memory, pinned })
    }

    fn measure(&self, device: &Device, way: Way, rounds: u32, target: f64) -> Result<Figure> {
        let mut case = self.again(device)?;
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        // The first round warms up, and is not counted.
        for round in 0..=rounds {
            let through_the_pool = case.through_the_pool(device, way)?;
            let through_pinned_memory = case.through_pinned_memory(device, way)?;
            if round > 0 {
                ours.push(through_the_pool);
                plain.push(through_pinned_memory);
            }
        }
        let all_bytes = (self.bytes * self.payloads.len() as u64) as f64;
        let gib_per_s = |seconds: f64| all_bytes / seconds / f64::from(1 << 30);
        let (ours, plain) = (gib_per_s(median(ours)), gib_per_s(median(plain)));
        Ok(Figure {
            way: match way {
                Way::Store => "store",
                Way::Load => "load",
            },
            payload_bytes: self.bytes,
            batch: self.payloads.len(),
            gib_per_s: ours,
            plain_gib_per_s: plain,
            ratio: ours / plain,
            target,
        })
    }

    /// One of its own for each way, as both write.
    fn again(&self, device: &Device) -> Result<Self> {
        Self::new(device, self.bytes, self.payloads.len() as u64)
    }

    fn through_the_pool(&mut self, device: &Device, way: Way) -> Result<f64> {
        device.stream.synchronize()?;
        let results;
        let started;
        match way {
            Way::Store => {
                let parts: Vec<_> = self
                    .memory
                    .iter()
                    .map(|memory| Ok([device.dma.source(memory, &device.stream)?]))
                    .collect::<Result<_>>()?;
                let jobs = self.payloads.iter().zip(&parts);
                let jobs: Vec<_> =
                    jobs.map(|(payload, parts)| StoreJob { payload: *payload, parts }).collect();
                started = Instant::now();
                results = device.dma.store(&jobs);
            }
            Way::Load => {
                let jobs = self.payloads.iter().zip(&mut self.memory);
                let mut jobs: Vec<_> = jobs
                    .map(|(payload, memory)| {
                        let parts = vec![device.dma.destination(memory, &device.stream)?];
                        Ok(LoadJob { payload: *payload, parts })
                    })
                    .collect::<Result<_>>()?;
                started = Instant::now();
                results = device.dma.load(&mut jobs);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        ensure!(results.iter().all(Result::is_ok), "a copy failed: {results:?}");
        Ok(seconds)
    }

    fn through_pinned_memory(&mut self, device: &Device, way: Way) -> Result<f64> {
        device.stream.synchronize()?;
        let started = Instant::now();
        for memory in &mut self.memory {
            match way {
                Way::Store => device.stream.memcpy_dtoh(memory, &mut self.pinned)?,
                Way::Load => device.stream.memcpy_htod(&self.pinned, memory)?,
            }
        }
        device.stream.synchronize()?;
        Ok(started.elapsed().as_secs_f64())
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
