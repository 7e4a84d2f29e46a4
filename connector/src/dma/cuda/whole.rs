//! Copies of whole payloads.

use cudarc::driver::{CudaEvent, CudaStream};
use cxl_shm::fabric::Fabric;
use cxl_shm::units::Extent;

use super::bounce::Bounce;
use super::copies::{Copies, Copy};
use super::engine::{CudaDma, Way, length};
use super::memory::{DeviceDestination, DeviceSource};
use super::turn::DrainOnDrop;
use crate::dma::{Checksum, DmaEngine, DmaError, LayeredSource, Layers, LoadJob, StoreJob};

impl DmaEngine for CudaDma {
    type Source<'a> = DeviceSource<'a>;
    type Destination<'a> = DeviceDestination<'a>;

    fn is_of_gpu(&self) -> bool {
        true
    }

    fn store(&self, jobs: &[StoreJob<'_, DeviceSource<'_>>]) -> Vec<Result<Checksum, DmaError>> {
        let region_bytes = self.inner.host.fabric().bytes();
        let checked = jobs.iter().map(|job| (job.check(region_bytes), job));
        let payloads: Vec<_> = jobs.iter().map(|job| job.payload).collect();
        let copy = |stream: &CudaStream| match &self.inner.way {
            Way::Straight(registration) => {
                // All are under way before the first is waited for.
                let submitted: Vec<_> = checked
                    .map(|(payload, job)| {
                        let payload = payload?;
                        let copies = self.inner.down_copies(payload, job, registration);
                        self.submit(stream, payload, &copies).map(|done| (payload, done))
                    })
                    .collect();
                let arrived = submitted.into_iter().map(|submitted| {
                    let (payload, done) = submitted?;
                    done.synchronize().map_err(|error| self.failed(payload, error))?;
                    // The refresh of each line flushes what the copy may have left in this host's
                    // caches, and reading it then tells that it has arrived (MEM-M2).
                    Ok(self.inner.host.checksum(payload))
                });
                arrived.collect()
            }
            Way::Bounced { down, .. } => checked
                .map(|(payload, job)| self.store_bounced(stream, payload?, job, down))
                .collect(),
        };
        self.in_turn(&self.inner.down, &payloads, |figures| &mut figures.stored_bytes, copy)
    }

    fn load(&self, jobs: &mut [LoadJob<DeviceDestination<'_>>]) -> Vec<Result<Checksum, DmaError>> {
        let region_bytes = self.inner.host.fabric().bytes();
        let checked = jobs.iter().map(|job| (job.check(region_bytes), job));
        let payloads: Vec<_> = jobs.iter().map(|job| job.payload).collect();
        let copy = |stream: &CudaStream| match &self.inner.way {
            Way::Straight(registration) => {
                let submitted: Vec<_> = checked
                    .map(|(payload, job)| {
                        let payload = payload?;
                        // MEM-M9: the refresh for the checksum comes before the copy, which may
                        // find the lines in this host's caches: they are new then.
                        let checksum = self.inner.host.checksum(payload);
                        let copies = self.inner.up_copies(payload, job, registration);
                        let done = self.submit(stream, payload, &copies)?;
                        Ok((payload, checksum, done))
                    })
                    .collect();
                let arrived = submitted.into_iter().map(|submitted| {
                    let (payload, checksum, done) = submitted?;
                    done.synchronize().map_err(|error| self.failed(payload, error))?;
                    Ok(checksum)
                });
                arrived.collect()
            }
            Way::Bounced { up, .. } => {
                checked.map(|(payload, job)| self.load_bounced(stream, payload?, job, up)).collect()
            }
        };
        self.in_turn(&self.inner.up, &payloads, |figures| &mut figures.loaded_bytes, copy)
    }

    fn load_by_layers(
        &self,
        jobs: Vec<LoadJob<DeviceDestination<'_>>>,
        layers: &Layers,
        arrived: &mut dyn FnMut(usize),
    ) -> Vec<Result<Checksum, DmaError>> {
        self.load_layers(&jobs, layers, arrived)
    }

    fn store_by_layers(
        &self,
        payloads: &[Extent],
        layers: &Layers,
        source: &mut dyn LayeredSource<Self>,
    ) -> Option<Vec<Result<Checksum, DmaError>>> {
        self.store_layers(payloads, layers, source)
    }
}

impl CudaDma {
    fn submit(
        &self,
        stream: &CudaStream,
        payload: Extent,
        copies: &Copies,
    ) -> Result<CudaEvent, DmaError> {
        self.hand_over(stream, copies).map_err(|error| self.failed(payload, error))
    }

    fn store_bounced(
        &self,
        stream: &CudaStream,
        payload: Extent,
        job: &StoreJob<'_, DeviceSource<'_>>,
        bounce: &Bounce,
    ) -> Result<Checksum, DmaError> {
        let failed = |error| self.failed(payload, error);
        let mut buffer = bounce.take(length(payload)).map_err(failed)?;
        // Also when a copy fails, before another call has the buffer.
        let _drain = DrainOnDrop(stream);
        let mut copies = Copies::default();
        let mut to = buffer.address().map_err(failed)?;
        for part in job.parts {
            copies.add(Copy { to, from: part.address, bytes: part.bytes });
            to += part.bytes as u64;
        }
        let copied = self.submit(stream, payload, &copies)?;
        copied.synchronize().map_err(failed)?;
        let parts = &[&*buffer.bytes().map_err(failed)?];
        let mut stored = self.inner.host.store(&[StoreJob { payload, parts }]);
        stored.remove(0)
    }

    fn load_bounced(
        &self,
        stream: &CudaStream,
        payload: Extent,
        job: &LoadJob<DeviceDestination<'_>>,
        bounce: &Bounce,
    ) -> Result<Checksum, DmaError> {
        let failed = |error| self.failed(payload, error);
        let mut buffer = bounce.take(length(payload)).map_err(failed)?;
        // Also when a copy fails, before another call has the buffer.
        let _drain = DrainOnDrop(stream);
        let parts = vec![buffer.bytes().map_err(failed)?];
        let checksum = self.inner.host.load(&mut [LoadJob { payload, parts }]).remove(0)?;
        let mut copies = Copies::default();
        let mut from = buffer.address().map_err(failed)?;
        for part in &job.parts {
            copies.add(Copy { to: part.address, from, bytes: part.bytes });
            from += part.bytes as u64;
        }
        let copied = self.submit(stream, payload, &copies)?;
        copied.synchronize().map_err(failed)?;
        Ok(checksum)
    }
}
