//! Copies of whole payloads.
#![expect(unsafe_code, reason = "the GPU reads memory that the caller vouches for")]

use std::ops::Range;

use cudarc::driver::{CudaEvent, CudaStream, DriverError};
use cxl_shm::fabric::Fabric;
use cxl_shm::units::Extent;

use super::copies::Copies;
use super::engine::{CudaDma, Direction, Way, length};
use super::lanes::Lane;
use super::memory::{DeviceDestination, DeviceSource};
use super::registration::Pins;
use super::steps::{Job, Step, Steps};
use super::sums::{Pieces, SumStream, Summing};
use super::turn::{SLEEPING, wait_for_event};
use crate::dma::checksum::RunningChecksum;
use crate::dma::{Checksum, DmaEngine, DmaError, LayeredSource, Layers, LoadJob, StoreJob};

/// Bytes whose checksums the GPU computes while it copies the next.
const LOADED_BYTES: u64 = 2 << 20;

/// A payload that can be copied, or why it cannot.
type Checked = Result<Job, DmaError>;

impl DmaEngine for CudaDma {
    type Source<'a> = DeviceSource<'a>;
    type Destination<'a> = DeviceDestination<'a>;

    fn is_of_gpu(&self) -> bool {
        true
    }

    fn may_still_write(&self) -> bool {
        self.is_broken()
    }

    fn store(&self, jobs: &[StoreJob<'_, DeviceSource<'_>>]) -> Vec<Result<Checksum, DmaError>> {
        let region_bytes = self.inner.host.fabric().bytes();
        let checked = jobs.iter().map(|job| {
            let payload = job.check(region_bytes)?;
            Ok((payload, job.parts.iter().map(|part| (part.address, part.bytes)).collect()))
        });
        let checked: Vec<Checked> = checked.collect();
        let payloads: Vec<_> = jobs.iter().map(|job| job.payload).collect();
        let way = self.way(checked.iter().flatten().map(|(payload, _)| *payload));
        self.in_lane(Direction::Store, &way, &payloads, |lane| match &way {
            Way::Straight(pool) => self.store_straight(lane, checked, pool),
            Way::Bounced => self.bounced(lane, checked, |lane, job| self.store_bounced(lane, job)),
        })
    }

    fn load(&self, jobs: &mut [LoadJob<DeviceDestination<'_>>]) -> Vec<Result<Checksum, DmaError>> {
        let region_bytes = self.inner.host.fabric().bytes();
        let checked = jobs.iter().map(|job| {
            let payload = job.check(region_bytes)?;
            Ok((payload, job.parts.iter().map(|part| (part.address, part.bytes)).collect()))
        });
        let checked: Vec<Checked> = checked.collect();
        let payloads: Vec<_> = jobs.iter().map(|job| job.payload).collect();
        let way = self.way(checked.iter().flatten().map(|(payload, _)| *payload));
        self.in_lane(Direction::Load, &way, &payloads, |lane| match &way {
            Way::Straight(pool) => self.load_straight(lane, checked, pool),
            Way::Bounced => self.bounced(lane, checked, |lane, job| self.load_bounced(lane, job)),
        })
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
    fn store_straight(
        &self,
        lane: &mut Lane,
        jobs: Vec<Checked>,
        pool: &Pins,
    ) -> Vec<Result<Checksum, DmaError>> {
        let Lane { copies: stream, sums, .. } = lane;
        if self.inner.kernel.is_none() {
            return self.summed_by_cpu(Direction::Store, stream, jobs, pool);
        }
        let Steps { all: steps, pieces, of_jobs } =
            self.inner.steps(Direction::Store, each_job(&jobs), pool);
        let count = pieces.none().end;
        let mut summing = match self.begin_sums(sums.as_mut(), pieces) {
            Ok(summing) => summing.expect("lanes have a stream for sums where there is a kernel"),
            Err(error) => return self.all_failed(jobs, error),
        };
        let mut failed = vec![Ok(()); jobs.len()];
        // All are under way before the first is waited for, and before the first is summed.
        let submit = |step: Step| {
            let done = self.hand_over_with_event(stream, &step.copies);
            (step.jobs, step.lines, done)
        };
        let submitted: Vec<_> = steps.into_iter().map(submit).collect();
        // SAFETY: nobody writes the sources during the call, and the lane ends before it.
        let launched = unsafe { summing.launch(0..count) }.and_then(|()| summing.launched());
        let mut arrived = Vec::new();
        for (numbers, lines, done) in submitted {
            if let Err(error) = done.and_then(|done| wait_for_event(&done)) {
                failed[numbers].fill(Err(error));
                continue;
            }
            // MEM-M9: the copy may have left lines in this host's caches.
            lines.iter().for_each(|lines| self.inner.host.write_back(*lines));
            arrived.extend(lines);
        }
        self.inner.host.arrive(arrived.into_iter());
        let summed = launched.and_then(|summed| wait_for_event(&summed));
        self.summed(jobs, failed, &mut summing, summed, of_jobs)
    }

    fn load_straight(
        &self,
        lane: &mut Lane,
        jobs: Vec<Checked>,
        pool: &Pins,
    ) -> Vec<Result<Checksum, DmaError>> {
        let Lane { copies: stream, sums, .. } = lane;
        if self.inner.kernel.is_none() {
            return self.summed_by_cpu(Direction::Load, stream, jobs, pool);
        }
        let Steps { all: steps, pieces, of_jobs } =
            self.inner.steps(Direction::Load, each_job(&jobs), pool);
        let mut summing = match self.begin_sums(sums.as_mut(), pieces) {
            Ok(summing) => summing.expect("lanes have a stream for sums where there is a kernel"),
            Err(error) => return self.all_failed(jobs, error),
        };
        let mut failed = vec![Ok(()); jobs.len()];
        let (mut begun, mut bytes, mut summed) = (0, 0, Ok(()));
        let last = steps.len().saturating_sub(1);
        for (number, step) in steps.into_iter().enumerate() {
            // MEM-M9: the copy may find lines in this host's caches, and must not find old ones.
            self.inner.host.refresh(step.lines.into_iter());
            if let Err(error) = self.hand_over(stream, &step.copies) {
                failed[step.jobs].fill(Err(error));
            }
            bytes += step.bytes;
            if summed.is_ok() && (bytes >= LOADED_BYTES || number == last) {
                // SAFETY: nobody else touches the destinations during the call.
                summed = unsafe { sum_behind(&summing, stream, begun..step.pieces.end) };
                (begun, bytes) = (step.pieces.end, 0);
            }
        }
        let summed = summed.and_then(|()| wait_for_event(&summing.launched()?));
        self.summed(jobs, failed, &mut summing, summed, of_jobs)
    }

    /// The checksums, of payloads that did not fail.
    fn summed(
        &self,
        jobs: Vec<Checked>,
        failed: Vec<Result<(), DriverError>>,
        summing: &mut Summing<'_>,
        summed: Result<(), DriverError>,
        of_jobs: Vec<Range<usize>>,
    ) -> Vec<Result<Checksum, DmaError>> {
        let each = jobs.into_iter().zip(failed).zip(of_jobs);
        let one = |((job, failed), pieces): ((Checked, Result<(), DriverError>), Range<usize>)| {
            let (payload, _) = job?;
            let mut checksum = RunningChecksum::new();
            failed
                .and(summed)
                .and_then(|()| summing.add_to(&mut checksum, pieces))
                .map_err(|error| self.failed(payload, error))?;
            Ok(checksum.finish())
        };
        each.map(one).collect()
    }

    fn summed_by_cpu(
        &self,
        direction: Direction,
        stream: &CudaStream,
        jobs: Vec<Checked>,
        pool: &Pins,
    ) -> Vec<Result<Checksum, DmaError>> {
        let checksum = |payload| self.inner.host.checksum(payload);
        let submit = |job: Checked| {
            let (payload, parts) = job?;
            // MEM-M9: the refresh for the checksum comes before the copy of a load, which may find the
            // lines in this host's caches: they are new then.
            let loaded = matches!(direction, Direction::Load).then(|| checksum(payload));
            let mut copies = Copies::default();
            self.inner.add(direction, &mut copies, payload, parts.into_iter(), pool);
            let done = self.hand_over_with_event(stream, &copies);
            Ok((payload, loaded, done.map_err(|error| self.failed(payload, error))?))
        };
        // All are under way before the first is waited for.
        let submitted: Vec<Result<_, DmaError>> = jobs.into_iter().map(submit).collect();
        let arrived = submitted.into_iter().map(|submitted| {
            let (payload, loaded, done): (_, _, CudaEvent) = submitted?;
            wait_for_event(&done).map_err(|error| self.failed(payload, error))?;
            // Of a store the refresh of each line flushes what the copy may have left in this host's
            // caches, and reading it then tells that it has arrived (MEM-M2).
            Ok(loaded.unwrap_or_else(|| checksum(payload)))
        });
        arrived.collect()
    }

    /// One payload after the other, by way of the buffer of the lane.
    fn bounced(
        &self,
        lane: &mut Lane,
        jobs: Vec<Checked>,
        mut copy: impl FnMut(&mut Lane, &Job) -> Result<Checksum, DmaError>,
    ) -> Vec<Result<Checksum, DmaError>> {
        let mut usable = Ok(());
        let one = |job: Checked| {
            let job = job?;
            usable.map_err(|error| self.failed(job.0, error))?;
            let copied = copy(lane, &job);
            if copied.is_err() {
                // The GPU may still use the buffer.
                usable = lane.wait();
            }
            copied
        };
        jobs.into_iter().map(one).collect()
    }

    fn store_bounced(
        &self,
        lane: &mut Lane,
        (payload, parts): &(Extent, Vec<(u64, usize)>),
    ) -> Result<Checksum, DmaError> {
        let failed = |error| self.failed(*payload, error);
        let Lane { copies: stream, sums, bounce } = lane;
        let mut buffer = bounce.take(length(*payload)).map_err(failed)?;
        let address = buffer.address().map_err(failed)?;
        let copies = Copies::with_buffer(Direction::Store, address, parts.iter().copied());
        self.copied(stream, &copies).map_err(failed)?;
        let mut sum = RunningChecksum::new();
        // SAFETY: nobody writes the sources during the call.
        let by_gpu = unsafe { self.add_now(sums.as_mut(), parts.iter().copied(), &mut sum) };
        let by_gpu = by_gpu.map_err(failed)?;
        let parts = &[&*buffer.bytes().map_err(failed)?];
        let stored = self.inner.host.store(&[StoreJob { payload: *payload, parts }]).remove(0)?;
        Ok(if by_gpu { sum.finish() } else { stored })
    }

    fn load_bounced(
        &self,
        lane: &mut Lane,
        (payload, parts): &(Extent, Vec<(u64, usize)>),
    ) -> Result<Checksum, DmaError> {
        let failed = |error| self.failed(*payload, error);
        let Lane { copies: stream, sums, bounce } = lane;
        let mut buffer = bounce.take(length(*payload)).map_err(failed)?;
        let into = vec![buffer.bytes().map_err(failed)?];
        let mut job = [LoadJob { payload: *payload, parts: into }];
        let loaded = self.inner.host.load(&mut job).remove(0)?;
        let address = buffer.address().map_err(failed)?;
        let copies = Copies::with_buffer(Direction::Load, address, parts.iter().copied());
        self.copied(stream, &copies).map_err(failed)?;
        let mut sum = RunningChecksum::new();
        // SAFETY: nobody else touches the destinations during the call.
        let by_gpu = unsafe { self.add_now(sums.as_mut(), parts.iter().copied(), &mut sum) };
        Ok(if by_gpu.map_err(failed)? { sum.finish() } else { loaded })
    }

    /// Copies, and waits for it.
    pub(super) fn copied(&self, stream: &CudaStream, copies: &Copies) -> Result<(), DriverError> {
        wait_for_event(&self.hand_over_with_event(stream, copies)?)
    }

    /// `None` where the processor computes checksums.
    pub(super) fn begin_sums<'s>(
        &'s self,
        sums: Option<&'s mut SumStream>,
        pieces: Pieces,
    ) -> Result<Option<Summing<'s>>, DriverError> {
        let both = self.inner.kernel.as_ref().zip(sums);
        both.map(|(kernel, sums)| sums.begin(kernel, pieces)).transpose()
    }

    /// Adds to `checksum` these parts (address and length), of which all copies are over. Whether the
    /// GPU sums: nothing is added where the processor does.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// They are memory of the GPU, and nobody writes them during the call of the engine.
    pub(super) unsafe fn add_now(
        &self,
        sums: Option<&mut SumStream>,
        parts: impl Iterator<Item = (u64, usize)> + Clone,
        checksum: &mut RunningChecksum,
    ) -> Result<bool, DriverError> {
        let mut pieces = Pieces::of_about(parts.clone().map(|(_, bytes)| bytes as u64).sum());
        let numbers = pieces.add(parts);
        let Some(mut summing) = self.begin_sums(sums, pieces)? else { return Ok(false) };
        // SAFETY: the caller's.
        unsafe { summing.launch(numbers.clone()) }?;
        wait_for_event(&summing.launched()?)?;
        summing.add_to(checksum, numbers)?;
        Ok(true)
    }

    fn all_failed(
        &self,
        jobs: Vec<Checked>,
        error: DriverError,
    ) -> Vec<Result<Checksum, DmaError>> {
        let each = jobs.into_iter();
        each.map(|job| job.and_then(|(payload, _)| Err(self.failed(payload, error)))).collect()
    }
}

fn each_job(jobs: &[Checked]) -> impl Iterator<Item = Option<&Job>> + Clone {
    jobs.iter().map(|job| job.as_ref().ok())
}

/// Has those pieces summed when the copies are over that `stream` has.
///
/// # Safety
/// As for [`Summing::launch`].
pub(super) unsafe fn sum_behind(
    summing: &Summing<'_>,
    stream: &CudaStream,
    pieces: Range<usize>,
) -> Result<(), DriverError> {
    summing.stream().wait(&stream.record_event(Some(SLEEPING))?)?;
    // SAFETY: the caller's.
    unsafe { summing.launch(pieces) }
}
