//! Copies of one layer after the other.

use std::collections::VecDeque;

use cudarc::driver::{CudaEvent, CudaStream, DriverError};
use cxl_shm::fabric::Fabric;
use cxl_shm::units::Extent;

use super::bounce::Bounce;
use super::copies::{Copies, Copy};
use super::engine::{CudaDma, Way, length};
use super::memory::{DeviceDestination, DeviceSource};
use super::registration::Registration;
use super::turn::DrainOnDrop;
use crate::dma::checksum::RunningChecksum;
use crate::dma::host::LayeredStore;
use crate::dma::job::{check_layer, check_layers};
use crate::dma::layers::store_each;
use crate::dma::{Checksum, DmaError, LayeredSource, Layers, LoadJob, lock};

/// The way of the layers of a store.
enum Down<'d> {
    Straight(&'d Registration),
    Bounced(&'d Bounce, LayeredStore<'d>),
}

/// A payload, and the checksum of what was copied of it.
type UnderWay = Result<(Extent, RunningChecksum), DmaError>;

impl CudaDma {
    /// [`DmaEngine::load_by_layers`](crate::dma::DmaEngine::load_by_layers).
    pub(super) fn load_layers(
        &self,
        jobs: &[LoadJob<DeviceDestination<'_>>],
        layers: &Layers,
        arrived: &mut dyn FnMut(usize),
    ) -> Vec<Result<Checksum, DmaError>> {
        let payloads: Vec<_> = jobs.iter().map(|job| job.payload).collect();
        let region_bytes = self.inner.host.fabric().bytes();
        let loading = jobs.iter().map(|job| {
            let payload = job.check_layers(layers, region_bytes)?;
            Ok((payload, RunningChecksum::new()))
        });
        let mut loading: Vec<UnderWay> = loading.collect();
        let mut reporter = ArrivalReporter { next: 0, arrived };
        let results = self.in_turn(
            &self.inner.up,
            &payloads,
            |figures| &mut figures.loaded_bytes,
            |stream| {
                match &self.inner.way {
                    Way::Straight(pool) => {
                        self.load_straight(stream, jobs, &mut loading, layers, pool, &mut reporter);
                    }
                    Way::Bounced { up, .. } => {
                        self.load_layers_bounced(
                            stream,
                            jobs,
                            &mut loading,
                            layers,
                            up,
                            &mut reporter,
                        );
                    }
                }
                loading.into_iter().map(finished).collect()
            },
        );
        // Those of payloads that failed, all of them.
        reporter.up_to(layers.count());
        results
    }

    fn load_straight(
        &self,
        stream: &CudaStream,
        jobs: &[LoadJob<DeviceDestination<'_>>],
        loading: &mut [UnderWay],
        layers: &Layers,
        pool: &Registration,
        reporter: &mut ArrivalReporter<'_>,
    ) {
        let mut under_way = VecDeque::with_capacity(layers.count());
        for layer in 0..layers.count() {
            let mut copies = Copies::default();
            for (loading, job) in loading.iter_mut().zip(jobs) {
                let Ok((payload, checksum)) = loading else { continue };
                let lines = layers.read_with(*payload, layer);
                // MEM-M9: the refresh for the checksum comes before the copy, which may find the
                // lines in this host's caches: they are new then.
                self.inner.host.read(lines, checksum, |_| ());
                self.inner.add_up(&mut copies, lines, parts_of(job, lines), pool);
                tell_done(&mut under_way, reporter);
            }
            match self.hand_over(stream, &copies) {
                Ok(done) => under_way.push_back(done),
                Err(error) => self.fail_all(loading, error),
            }
        }
        for done in under_way {
            if let Err(error) = done.synchronize() {
                return self.fail_all(loading, error);
            }
            reporter.one_more();
        }
    }

    fn load_layers_bounced(
        &self,
        stream: &CudaStream,
        jobs: &[LoadJob<DeviceDestination<'_>>],
        loading: &mut [UnderWay],
        layers: &Layers,
        bounce: &Bounce,
        reporter: &mut ArrivalReporter<'_>,
    ) {
        for layer in 0..layers.count() {
            for (loading, job) in loading.iter_mut().zip(jobs) {
                let Ok((payload, checksum)) = loading else { continue };
                let lines = layers.read_with(*payload, layer);
                if let Err(error) = self.load_lines_bounced(stream, job, lines, checksum, bounce) {
                    *loading = Err(error);
                }
            }
            reporter.one_more();
        }
    }

    fn load_lines_bounced(
        &self,
        stream: &CudaStream,
        job: &LoadJob<DeviceDestination<'_>>,
        lines: Extent,
        checksum: &mut RunningChecksum,
        bounce: &Bounce,
    ) -> Result<(), DmaError> {
        let failed = |error| self.failed(job.payload, error);
        let mut buffer = bounce.take(length(lines)).map_err(failed)?;
        // Also when a copy fails, before another call has the buffer.
        let _drain = DrainOnDrop(stream);
        let mut rest = buffer.bytes().map_err(failed)?;
        self.inner.host.read(lines, checksum, |bytes| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            rest = later;
        });
        let mut copies = Copies::default();
        let mut from = buffer.address().map_err(failed)?;
        for (to, bytes) in parts_of(job, lines) {
            copies.add(Copy { to, from, bytes });
            from += bytes as u64;
        }
        self.hand_over(stream, &copies).and_then(|done| done.synchronize()).map_err(failed)
    }

    /// [`DmaEngine::store_by_layers`](crate::dma::DmaEngine::store_by_layers). Nobody else's copies
    /// wait while a layer is waited for that was not said to be ready; of one that was, they wait
    /// for the work that computes it, as behind any copy that was begun before.
    pub(super) fn store_layers(
        &self,
        payloads: &[Extent],
        layers: &Layers,
        source: &mut dyn LayeredSource<Self>,
    ) -> Option<Vec<Result<Checksum, DmaError>>> {
        let region_bytes = self.inner.host.fabric().bytes();
        let storing = payloads.iter().map(|payload| {
            let payload = check_layers(*payload, layers, region_bytes)?;
            Ok((payload, RunningChecksum::new()))
        });
        let mut storing: Vec<UnderWay> = storing.collect();
        let mut way = match &self.inner.way {
            Way::Straight(pool) => Down::Straight(pool),
            Way::Bounced { down, .. } => {
                Down::Bounced(down, self.inner.host.begin_layers(payloads, layers))
            }
        };
        let stored = store_each(layers, payloads.len(), source, &mut |layer, parts| {
            for (storing, parts) in storing.iter_mut().zip(parts) {
                if let Ok((payload, _)) = storing
                    && let Err(error) = check_layer(*payload, layers.layer_bytes(layer), parts)
                {
                    *storing = Err(error);
                }
            }
            match &mut way {
                Down::Straight(pool) => {
                    self.store_straight(&mut storing, layers, layer, parts, pool);
                }
                Down::Bounced(bounce, into) => {
                    let done = self.with_layer_bounced(&storing, parts, bounce, |bytes| {
                        into.store(layer, bytes);
                    });
                    if let Err(error) = done {
                        self.fail_all(&mut storing, error);
                    }
                }
            }
        });
        if !stored {
            return None;
        }
        let results: Vec<_> = match way {
            Down::Straight(_) => storing.into_iter().map(finished).collect(),
            Down::Bounced(_, into) => {
                let each = storing.into_iter().zip(into.finish());
                each.map(|(storing, stored)| storing.and(stored)).collect()
            }
        };
        self.count(payloads, &results, |figures| &mut figures.stored_bytes);
        Some(results)
    }

    fn store_straight(
        &self,
        storing: &mut [UnderWay],
        layers: &Layers,
        layer: usize,
        parts: &[Vec<DeviceSource<'_>>],
        pool: &Registration,
    ) {
        let mut copies = Copies::default();
        for (storing, parts) in storing.iter().zip(parts) {
            let Ok((payload, _)) = storing else { continue };
            let parts = parts.iter().map(|part| (part.address, part.bytes));
            self.inner.add_down(&mut copies, layers.of(*payload, layer), parts, pool);
        }
        if storing.iter().all(Result::is_err) {
            return;
        }
        if let Err(error) = self.copy_down(|stream| self.copied(stream, &copies)) {
            self.fail_all(storing, error);
        }
        for (payload, checksum) in storing.iter_mut().flatten() {
            // The refresh of each line flushes what the copy may have left in this host's caches,
            // and reading it then tells that it has arrived (MEM-M2).
            self.inner.host.read(layers.complete_with(*payload, layer), checksum, |_| ());
        }
    }

    /// One layer of all payloads, by way of the buffer: `store` gets it from there.
    fn with_layer_bounced(
        &self,
        storing: &[UnderWay],
        parts: &[Vec<DeviceSource<'_>>],
        bounce: &Bounce,
        store: impl FnOnce(&[Vec<&[u8]>]),
    ) -> Result<(), DriverError> {
        let wanted = || storing.iter().zip(parts).filter(|(storing, _)| storing.is_ok());
        if wanted().next().is_none() {
            store(&vec![vec![]; parts.len()]);
            return Ok(());
        }
        let lengths = wanted().flat_map(|(_, parts)| parts.iter().map(|part| part.bytes));
        let mut buffer = None;
        // The buffer is taken inside of the turn: whole stores have the stream first, too.
        let mut rest = self.copy_down(|stream| {
            let buffer = buffer.insert(bounce.take(lengths.sum())?);
            let mut copies = Copies::default();
            let mut to = buffer.address()?;
            for part in wanted().flat_map(|(_, parts)| parts) {
                copies.add(Copy { to, from: part.address, bytes: part.bytes });
                to += part.bytes as u64;
            }
            self.copied(stream, &copies)?;
            Ok(&*buffer.bytes()?)
        })?;
        let bytes: Vec<_> = storing
            .iter()
            .zip(parts)
            .map(|(storing, parts)| {
                // Of what failed nothing is stored any more.
                let length = storing.iter().flat_map(|_| parts).map(|part| part.bytes).sum();
                let (now, later) = rest.split_at(length);
                rest = later;
                vec![now]
            })
            .collect();
        store(&bytes);
        Ok(())
    }

    /// Has `copy` copy in a turn of its own, after the work of the engine's streams.
    fn copy_down<T>(
        &self,
        copy: impl FnOnce(&CudaStream) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let stream = lock(&self.inner.down);
        let _turn = self.begin(&stream)?;
        copy(&stream)
    }

    /// Copies, and waits for it.
    fn copied(&self, stream: &CudaStream, copies: &Copies) -> Result<(), DriverError> {
        let _drain = DrainOnDrop(stream);
        self.hand_over(stream, copies)?.synchronize()
    }

    fn fail_all(&self, under_way: &mut [UnderWay], error: DriverError) {
        for payload in under_way {
            if let Ok((extent, _)) = payload {
                *payload = Err(self.failed(*extent, error));
            }
        }
    }
}

/// Reports layers to the caller, each once, in their order.
struct ArrivalReporter<'t> {
    next: usize,
    arrived: &'t mut dyn FnMut(usize),
}

impl ArrivalReporter<'_> {
    fn one_more(&mut self) {
        (self.arrived)(self.next);
        self.next += 1;
    }

    fn up_to(&mut self, count: usize) {
        while self.next < count {
            self.one_more();
        }
    }
}

/// Tells of layers whose copies are done, without waiting.
fn tell_done(under_way: &mut VecDeque<CudaEvent>, reporter: &mut ArrivalReporter<'_>) {
    // One that failed says so again when it is waited for.
    while under_way.front().is_some_and(CudaEvent::is_complete) {
        under_way.pop_front();
        reporter.one_more();
    }
}

fn finished(under_way: UnderWay) -> Result<Checksum, DmaError> {
    under_way.map(|(_, checksum)| checksum.finish())
}

/// Address and length of what is to be filled from `lines` of the payload of `job`.
fn parts_of(
    job: &LoadJob<DeviceDestination<'_>>,
    lines: Extent,
) -> impl Iterator<Item = (u64, usize)> {
    let start = lines.offset() - job.payload.offset();
    let end = start + lines.bytes();
    let mut at = 0;
    job.parts.iter().filter_map(move |part| {
        let (from, to) = (at, at + part.bytes as u64);
        at = to;
        let (first, last) = (from.max(start), to.min(end));
        let bytes = last.checked_sub(first).filter(|bytes| *bytes > 0)?;
        Some((part.address + (first - from), usize::try_from(bytes).expect("a part is memory")))
    })
}
