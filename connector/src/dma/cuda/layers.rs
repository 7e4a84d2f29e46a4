//! Copies of one layer after the other.
#![expect(unsafe_code, reason = "the GPU reads memory that the caller vouches for")]

use std::collections::VecDeque;
use std::ops::Range;

use cudarc::driver::{CudaEvent, DriverError};
use cxl_shm::fabric::Fabric;
use cxl_shm::units::Extent;

use super::copies::Copies;
use super::engine::{CudaDma, Direction, Way, length};
use super::lanes::Lane;
use super::memory::{DeviceDestination, DeviceSource};
use super::registration::Pins;
use super::sums::{Pieces, Summing};
use super::turn::wait_for_event;
use super::whole::sum_behind;
use crate::dma::checksum::RunningChecksum;
use crate::dma::host::LayeredStore;
use crate::dma::job::{check_layer, check_layers};
use crate::dma::layers::store_each;
use crate::dma::{Checksum, DmaError, LayeredSource, Layers, LoadJob};

/// The way of the layers of a store.
enum Down<'d> {
    Straight(&'d Pins),
    Bounced(LayeredStore<'d>),
}

/// A payload, and the checksum of what was copied of it.
type UnderWay = Result<(Extent, RunningChecksum), DmaError>;

/// Why a layer was not copied.
enum Failure {
    Failed(DriverError),
    /// It may still be under way to the pool.
    Unfinished(DriverError),
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::Failed(error)
    }
}

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
        let way = self.way(loading.iter().flatten().map(|(payload, _)| *payload));
        let results = self.in_lane(Direction::Load, &way, &payloads, |lane| {
            match &way {
                Way::Straight(pool) => {
                    self.load_straight_by_layers(
                        lane,
                        jobs,
                        &mut loading,
                        layers,
                        pool,
                        &mut reporter,
                    );
                }
                Way::Bounced => {
                    self.load_layers_bounced(lane, jobs, &mut loading, layers, &mut reporter);
                }
            }
            loading.into_iter().map(finished).collect()
        });
        // Those of payloads that failed, all of them.
        reporter.up_to(layers.count());
        results
    }

    fn load_straight_by_layers(
        &self,
        lane: &mut Lane,
        jobs: &[LoadJob<DeviceDestination<'_>>],
        loading: &mut [UnderWay],
        layers: &Layers,
        pool: &Pins,
        reporter: &mut ArrivalReporter<'_>,
    ) {
        let Lane { copies: stream, sums, .. } = lane;
        // Of each layer, those of each payload.
        let total = loading.iter().flatten().map(|(payload, _)| payload.bytes()).sum();
        let mut pieces = Pieces::of_about(total);
        let numbers: Vec<Vec<Range<usize>>> = (0..layers.count())
            .map(|layer| {
                let each = loading.iter().zip(jobs).map(|(loading, job)| match loading {
                    Ok((payload, _)) => {
                        pieces.add(parts_of(job, layers.read_with(*payload, layer)))
                    }
                    Err(_) => pieces.add(std::iter::empty()),
                });
                each.collect()
            })
            .collect();
        let mut summing = match self.begin_sums(sums.as_mut(), pieces) {
            Ok(summing) => summing,
            Err(error) => return self.fail_all(loading, Failure::Failed(error)),
        };
        let mut under_way = VecDeque::with_capacity(layers.count());
        for (layer, numbers) in numbers.iter().enumerate() {
            let mut copies = Copies::default();
            if summing.is_some() {
                // MEM-M9: the copy may find lines in this host's caches.
                let each = loading.iter().flatten();
                self.inner.host.refresh(each.map(|(payload, _)| layers.read_with(*payload, layer)));
            }
            for (loading, job) in loading.iter_mut().zip(jobs) {
                let Ok((payload, checksum)) = loading else { continue };
                let lines = layers.read_with(*payload, layer);
                if summing.is_none() {
                    // MEM-M9: the refresh for the checksum comes before the copy, which may find the
                    // lines in this host's caches: they are new then.
                    self.inner.host.read(lines, checksum, |_| ());
                }
                let parts = parts_of(job, lines);
                self.inner.add(Direction::Load, &mut copies, lines, parts, pool);
                tell_done(&mut under_way, reporter);
            }
            let handed_over = match &summing {
                None => self.hand_over_with_event(stream, &copies),
                Some(summing) => self.hand_over(stream, &copies).and_then(|()| {
                    let of_layer = span(numbers);
                    // SAFETY: nobody else touches a layer before it is said to have arrived.
                    unsafe { sum_behind(summing, stream, of_layer) }?;
                    summing.launched()
                }),
            };
            match handed_over {
                Ok(done) => under_way.push_back(done),
                Err(error) => return self.fail_all(loading, Failure::Failed(error)),
            }
        }
        for done in under_way {
            if let Err(error) = wait_for_event(&done) {
                return self.fail_all(loading, Failure::Failed(error));
            }
            reporter.one_more();
        }
        let Some(summing) = &mut summing else { return };
        let added = add_layers(summing, loading, &numbers);
        if let Err(error) = added {
            self.fail_all(loading, Failure::Failed(error));
        }
    }

    fn load_layers_bounced(
        &self,
        lane: &mut Lane,
        jobs: &[LoadJob<DeviceDestination<'_>>],
        loading: &mut [UnderWay],
        layers: &Layers,
        reporter: &mut ArrivalReporter<'_>,
    ) {
        for layer in 0..layers.count() {
            for (number, job) in jobs.iter().enumerate() {
                let Ok((payload, checksum)) = &mut loading[number] else { continue };
                let lines = layers.read_with(*payload, layer);
                if let Err(error) = self.load_lines_bounced(lane, job, lines, checksum) {
                    loading[number] = Err(self.failed(job.payload, error));
                    // The GPU may still use the buffer.
                    if let Err(error) = lane.wait() {
                        return self.fail_all(loading, Failure::Failed(error));
                    }
                }
            }
            reporter.one_more();
        }
    }

    fn load_lines_bounced(
        &self,
        lane: &mut Lane,
        job: &LoadJob<DeviceDestination<'_>>,
        lines: Extent,
        checksum: &mut RunningChecksum,
    ) -> Result<(), DriverError> {
        let Lane { copies: stream, sums, bounce } = lane;
        let mut buffer = bounce.take(length(lines))?;
        let mut rest = buffer.bytes()?;
        let mut of_none = RunningChecksum::new();
        let by_cpu = if self.inner.kernel.is_some() { &mut of_none } else { &mut *checksum };
        self.inner.host.read(lines, by_cpu, |bytes| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            rest = later;
        });
        let parts = parts_of(job, lines);
        let copies = Copies::with_buffer(Direction::Load, buffer.address()?, parts);
        self.copied(stream, &copies)?;
        // SAFETY: nobody else touches the destinations before the layer is said to have arrived.
        unsafe { self.add_now(sums.as_mut(), parts_of(job, lines), checksum) }.map(drop)
    }

    /// [`DmaEngine::store_by_layers`](crate::dma::DmaEngine::store_by_layers). No lane is taken while a
    /// layer is waited for that was not said to be ready.
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
        // For all layers, also while one is waited for: a piece that cannot be registered is known
        // before the first is copied.
        let way = self.way(storing.iter().flatten().map(|(payload, _)| *payload));
        let mut down = match &way {
            Way::Straight(pool) => Down::Straight(pool),
            Way::Bounced => Down::Bounced(self.inner.host.begin_layers(payloads, layers)),
        };
        let stored = store_each(layers, payloads.len(), source, &mut |layer, parts| {
            for (storing, parts) in storing.iter_mut().zip(parts) {
                if let Ok((payload, _)) = storing
                    && let Err(error) = check_layer(*payload, layers.layer_bytes(layer), parts)
                {
                    *storing = Err(error);
                }
            }
            if storing.iter().all(Result::is_err) {
                return;
            }
            let done = self.on_lane(&way, |lane| match &mut down {
                Down::Straight(pool) => {
                    self.store_layer(lane, &mut storing, layers, layer, parts, pool)
                }
                Down::Bounced(into) => {
                    self.store_layer_bounced(lane, &mut storing, parts, |bytes| {
                        into.store(layer, bytes);
                    })
                }
            });
            let done = done.map(|()| {
                if let Way::Straight(_) = way {
                    self.write_back_layer(&mut storing, layers, layer);
                }
            });
            if let Err(failure) = done {
                self.fail_all(&mut storing, failure);
            }
        });
        let is_unfinished =
            |storing: &UnderWay| matches!(storing, Err(DmaError::Unfinished { .. }));
        if !stored && !storing.iter().any(is_unfinished) {
            return None;
        }
        let by_gpu = self.inner.kernel.is_some();
        let results: Vec<_> = match down {
            Down::Straight(_) => storing.into_iter().map(finished).collect(),
            Down::Bounced(into) => {
                let each = storing.into_iter().zip(into.finish());
                let one = |(storing, stored): (UnderWay, Result<Checksum, DmaError>)| {
                    let (of_source, of_buffer) = (finished(storing)?, stored?);
                    Ok(if by_gpu { of_source } else { of_buffer })
                };
                each.map(one).collect()
            }
        };
        self.count(Direction::Store, &way, payloads, &results);
        Some(results)
    }

    fn store_layer(
        &self,
        lane: &mut Lane,
        storing: &mut [UnderWay],
        layers: &Layers,
        layer: usize,
        parts: &[Vec<DeviceSource<'_>>],
        pool: &Pins,
    ) -> Result<(), DriverError> {
        let Lane { copies: stream, sums, .. } = lane;
        // On the lane: the driver says to the current context alone where an allocation ends.
        let mut copies = Copies::default();
        for (storing, parts) in storing.iter().zip(parts) {
            let Ok((payload, _)) = storing else { continue };
            let payload = layers.of(*payload, layer);
            self.inner.add(Direction::Store, &mut copies, payload, named(parts), pool);
        }
        let total = storing.iter().flatten().map(|_| layers.layer_bytes(layer)).sum();
        let mut pieces = Pieces::of_about(total);
        let numbers = storing.iter().zip(parts).map(|(storing, parts)| match storing {
            Ok(_) => pieces.add(named(parts)),
            Err(_) => pieces.add(std::iter::empty()),
        });
        let numbers = [numbers.collect::<Vec<_>>()];
        let mut summing = self.begin_sums(sums.as_mut(), pieces)?;
        let copied = self.hand_over_with_event(stream, &copies)?;
        let summed = summing.as_ref().map(|summing| {
            // SAFETY: nobody writes the sources during the call, and the lane ends before it.
            unsafe { summing.launch(span(&numbers[0])) }?;
            summing.launched()
        });
        let summed = summed.transpose()?;
        wait_for_event(&copied)?;
        if let (Some(summing), Some(summed)) = (&mut summing, summed) {
            wait_for_event(&summed)?;
            add_layers(summing, storing, &numbers)?;
        }
        Ok(())
    }

    /// Has what is complete with a layer arrive at the memory.
    fn write_back_layer(&self, storing: &mut [UnderWay], layers: &Layers, layer: usize) {
        let complete = storing.iter_mut().flatten();
        let complete = complete.map(|(payload, sum)| (layers.complete_with(*payload, layer), sum));
        if self.inner.kernel.is_some() {
            // MEM-M9: the copy may have left lines in this host's caches.
            let lines: Vec<_> = complete.map(|(lines, _)| lines).collect();
            lines.iter().for_each(|lines| self.inner.host.write_back(*lines));
            self.inner.host.arrive(lines.iter().copied());
        } else {
            // The refresh of each line flushes what the copy may have left in this host's caches, and
            // reading it then tells that it has arrived (MEM-M2).
            complete.for_each(|(lines, sum)| self.inner.host.read(lines, sum, |_| ()));
        }
    }

    /// One layer of all payloads, by way of the buffer: `store` gets it from there.
    fn store_layer_bounced(
        &self,
        lane: &mut Lane,
        storing: &mut [UnderWay],
        parts: &[Vec<DeviceSource<'_>>],
        store: impl FnOnce(&[Vec<&[u8]>]),
    ) -> Result<(), DriverError> {
        let bytes_of = |parts: &[DeviceSource<'_>]| parts.iter().map(|part| part.bytes).sum();
        let Lane { copies: stream, sums, bounce } = lane;
        let wanted = || storing.iter().zip(parts).filter(|(storing, _)| storing.is_ok());
        let total = wanted().map(|(_, parts)| bytes_of(parts)).sum();
        let mut buffer = bounce.take(total)?;
        let all = wanted().flat_map(|(_, parts)| named(parts));
        let copies = Copies::with_buffer(Direction::Store, buffer.address()?, all);
        self.copied(stream, &copies)?;
        for (storing, parts) in storing.iter_mut().zip(parts) {
            let Ok((_, checksum)) = storing else { continue };
            // SAFETY: nobody writes the sources during the call.
            unsafe { self.add_now(sums.as_mut(), named(parts), checksum) }?;
        }
        let mut rest = &*buffer.bytes()?;
        let bytes = storing.iter().zip(parts).map(|(storing, parts)| {
            // Of what failed nothing is stored any more.
            let length = if storing.is_ok() { bytes_of(parts) } else { 0 };
            let (now, later) = rest.split_at(length);
            rest = later;
            vec![now]
        });
        store(&bytes.collect::<Vec<_>>());
        Ok(())
    }

    /// Has `copy` copy on a lane, that way, after the work of the engine's streams.
    fn on_lane(
        &self,
        way: &Way,
        copy: impl FnOnce(&mut Lane) -> Result<(), DriverError>,
    ) -> Result<(), Failure> {
        let mut lane = self.lane(way)?;
        let copied = copy(&mut lane);
        lane.end().map_err(|error| match way {
            Way::Straight(_) => Failure::Unfinished(error),
            // The buffer is written, and not the pool.
            Way::Bounced => Failure::Failed(error),
        })?;
        Ok(copied?)
    }

    /// All that were handed over.
    fn fail_all(&self, under_way: &mut [UnderWay], failure: Failure) {
        for payload in under_way {
            let Ok((extent, _)) = payload else { continue };
            *payload = Err(match failure {
                Failure::Failed(error) => self.failed(*extent, error),
                Failure::Unfinished(error) => self.unfinished(*extent, error),
            });
        }
    }
}

/// Address and length of each part.
fn named(parts: &[DeviceSource<'_>]) -> impl Iterator<Item = (u64, usize)> + Clone {
    parts.iter().map(|part| (part.address, part.bytes))
}

/// All pieces of a layer.
fn span(numbers: &[Range<usize>]) -> Range<usize> {
    numbers.first().map_or(0, |first| first.start)..numbers.last().map_or(0, |last| last.end)
}

/// Adds what was summed of layers: the numbers of pieces of each layer, for each payload.
fn add_layers(
    summing: &mut Summing<'_>,
    under_way: &mut [UnderWay],
    numbers: &[Vec<Range<usize>>],
) -> Result<(), DriverError> {
    for of_layer in numbers {
        for (payload, numbers) in under_way.iter_mut().zip(of_layer) {
            if let Ok((_, checksum)) = payload {
                summing.add_to(checksum, numbers.clone())?;
            }
        }
    }
    Ok(())
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
) -> impl Iterator<Item = (u64, usize)> + Clone {
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
