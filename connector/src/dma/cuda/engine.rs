//! The engine.
#![expect(unsafe_code, reason = "a GPU copies between addresses")]

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, sys,
};
use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::units::Extent;

use super::bounce::Bounce;
use super::copies::{Copies, Copy};
use super::driver::{self, CudaError, reason};
use super::memory::{DeviceDestination, DeviceSource, EngineStream};
use super::registration::{PoolReach, Registration};
use super::turn::{self, Settled, Turn};
use crate::dma::{
    Checksum, DmaEngine, DmaError, HostDma, LayeredSource, Layers, LoadJob, StoreJob, lock,
};

/// Copies with the copy engines of one GPU, one stream each way.
///
/// Clones are the same engine; threads that copy the same way take turns. It belongs to the process
/// that made it: a child made by `fork` must not use it, nor drop it (CUDA's own rule).
///
/// # Example
/// ```no_run
/// use connector::dma::cuda::CudaDma;
/// use connector::dma::{DmaEngine, StoreJob};
/// use cxl_shm::fabric::{MappedFabric, Mapping};
/// use cxl_shm::units::Extent;
///
/// let file = std::fs::File::options().read(true).write(true).open("/dev/dax0.0")?;
/// let fabric = MappedFabric::new(Mapping::shared(&file, 64 << 30)?)?;
/// let dma = CudaDma::new(fabric, 0)?;
///
/// let stream = dma.context().new_stream()?;
/// let layer = stream.clone_htod(&[1u8; 65536])?;
/// let payload = Extent::new(1 << 30, 65536).unwrap();
/// let parts = [dma.source(&layer, &stream)?];
/// let stored = dma.store(&[StoreJob { payload, parts: &parts }]);
/// # let _ = stored;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CudaDma {
    pub(super) inner: Arc<Inner>,
}

/// What an engine did so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CudaFigures {
    /// Bytes that came into the pool.
    pub stored_bytes: u64,
    /// Bytes that came out of it.
    pub loaded_bytes: u64,
    /// Those of both that took the way through the buffer.
    pub bounced_bytes: u64,
    /// Payloads that the driver failed to copy.
    pub failed_payloads: u64,
}

#[derive(Debug)]
pub(super) struct Inner {
    // Dropped in this order, when no copy is under way any more.
    pub(super) way: Way,
    pub(super) down: Mutex<Arc<CudaStream>>,
    pub(super) up: Mutex<Arc<CudaStream>>,
    /// Waits for all that an engine's streams were given before a call of `after`, and what was
    /// recorded on it last. Held for a moment only, whatever is being copied.
    before: Mutex<(Arc<CudaStream>, Option<Arc<CudaEvent>>)>,
    context: Arc<CudaContext>,
    pub(super) host: HostDma,
    reach: PoolReach,
    /// What it did so far, known also after it ended.
    figures: Arc<Mutex<CudaFigures>>,
}

#[derive(Debug)]
pub(super) enum Way {
    Straight(Registration),
    Bounced { down: Bounce, up: Bounce },
}

impl CudaDma {
    /// The engine of GPU number `gpu`, over the memory of `fabric`. Takes seconds for a large pool:
    /// every page of it is pinned, and has memory behind it afterwards. A mapping is pinned once: for
    /// more engines over one pool in a process, of the same GPU or others, map it once more, or they
    /// bounce.
    ///
    /// # Errors
    /// [`CudaError`]. That the pool could not be registered is none: [`reach`](Self::reach).
    pub fn new(fabric: MappedFabric, gpu: usize) -> Result<Self, CudaError> {
        let context = driver::context(gpu)?;
        let turn = Turn::begin(&context);
        let _turn = turn.map_err(|error| CudaError::of("cannot use the GPU", error))?;
        let stream = || {
            let stream = context.new_stream();
            stream.map_err(|error| CudaError::of("cannot make a stream for copies", error))
        };
        let (down, up) = (Mutex::new(stream()?), Mutex::new(stream()?));
        let before = Mutex::new((stream()?, None));
        let (way, reach) = match Registration::new(&context, fabric.mapping()) {
            Ok((registration, reach)) => (Way::Straight(registration), reach),
            Err(reason) => {
                let (down, up) = (Bounce::new(&context), Bounce::new(&context));
                (Way::Bounced { down, up }, PoolReach::Bounced { reason })
            }
        };
        let host = HostDma::new(fabric);
        let figures = Arc::default();
        let inner = Inner { way, down, up, before, context, host, reach, figures };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How the GPU reaches the pool.
    #[must_use]
    pub fn reach(&self) -> &PoolReach {
        &self.inner.reach
    }

    /// What it did so far.
    #[must_use]
    pub fn figures(&self) -> CudaFigures {
        *lock(&self.inner.figures)
    }

    pub(crate) fn shared_figures(&self) -> &Arc<Mutex<CudaFigures>> {
        &self.inner.figures
    }

    /// The GPU's primary context.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// Has every later copy wait, on the GPU, for what `stream` was given to do so far: the kernels
    /// that compute what is stored, or still use the memory that is loaded into. Waits for nothing
    /// itself.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Capturing`]; then nothing may be copied that depends on it.
    pub fn after(&self, stream: EngineStream<'_>) -> Result<(), CudaError> {
        let failed = |error| CudaError::of("cannot wait for the engine's stream", error);
        let handle = usize::try_from(stream.handle).expect("a handle is an address");
        let handle: sys::CUstream = std::ptr::with_exposed_provenance_mut(handle);
        let _turn = Turn::begin(&self.inner.context).map_err(failed)?;
        // SAFETY: who named the stream vouches that it lives; it is used here only.
        let engine = unsafe { self.inner.context.wrap_borrowed_stream(handle) };
        if turn::is_capturing(&engine).map_err(failed)? {
            return Err(CudaError::Capturing);
        }
        let mut before = lock(&self.inner.before);
        let ordered = engine.record_event(None).and_then(|event| {
            before.0.wait(&event)?;
            before.0.record_event(None)
        });
        before.1 = Some(Arc::new(ordered.map_err(failed)?));
        Ok(())
    }

    /// The bytes of `slice` as what was given to any stream so far leaves them, `stream` and those that
    /// `cudarc` knows to have written it.
    ///
    /// # Errors
    /// As [`after`](Self::after).
    pub fn source<'a>(
        &self,
        slice: &'a CudaSlice<u8>,
        stream: &'a CudaStream,
    ) -> Result<DeviceSource<'a>, CudaError> {
        let address = {
            let (address, _recorded) = slice.device_ptr(stream);
            address
        };
        self.after(stream.into())?;
        Ok(DeviceSource { address, bytes: slice.len(), memory: PhantomData })
    }

    /// The bytes of `slice`, when what was given to any stream so far is done with them.
    ///
    /// # Errors
    /// As [`after`](Self::after).
    pub fn destination<'a>(
        &self,
        slice: &'a mut CudaSlice<u8>,
        stream: &'a CudaStream,
    ) -> Result<DeviceDestination<'a>, CudaError> {
        let bytes = slice.len();
        let address = {
            let (address, _recorded) = slice.device_ptr_mut(stream);
            address
        };
        self.after(stream.into())?;
        Ok(DeviceDestination { address, bytes, memory: PhantomData })
    }

    /// Whether it copies to and from the memory of `fabric`.
    pub(crate) fn is_over(&self, fabric: &MappedFabric) -> bool {
        Arc::ptr_eq(self.inner.host.fabric().mapping(), fabric.mapping())
    }

    pub(super) fn failed(&self, payload: Extent, error: DriverError) -> DmaError {
        lock(&self.inner.figures).failed_payloads += 1;
        DmaError::Device { payload, reason: reason(error) }
    }
}

impl DmaEngine for CudaDma {
    type Source<'a> = DeviceSource<'a>;
    type Destination<'a> = DeviceDestination<'a>;

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
                    // caches, and reading it then tells that it has arrived (M2).
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
                        // M9: the refresh for the checksum comes before the copy, which may find
                        // the lines in this host's caches: they are new then.
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
    /// Has `copy` copy `payloads` when it is this thread's turn, after the work of the engine's
    /// streams. At the end nothing of it is under way any more, and what was copied is counted.
    pub(super) fn in_turn(
        &self,
        stream: &Mutex<Arc<CudaStream>>,
        payloads: &[Extent],
        counter: impl FnOnce(&mut CudaFigures) -> &mut u64,
        copy: impl FnOnce(&CudaStream) -> Vec<Result<Checksum, DmaError>>,
    ) -> Vec<Result<Checksum, DmaError>> {
        let stream = lock(stream);
        let _turn = match self.begin(&stream) {
            Ok(turn) => turn,
            Err(error) => {
                return payloads.iter().map(|payload| Err(self.failed(*payload, error))).collect();
            }
        };
        let results = {
            let _settled = Settled(&stream);
            copy(&stream)
        };
        self.count(payloads, &results, counter);
        results
    }

    /// Counts what was copied.
    pub(super) fn count(
        &self,
        payloads: &[Extent],
        results: &[Result<Checksum, DmaError>],
        counter: impl FnOnce(&mut CudaFigures) -> &mut u64,
    ) {
        let copied = payloads.iter().zip(results).filter(|(_, result)| result.is_ok());
        let bytes: u64 = copied.map(|(payload, _)| payload.bytes()).sum();
        let mut figures = lock(&self.inner.figures);
        *counter(&mut figures) += bytes;
        if let Way::Bounced { .. } = self.inner.way {
            figures.bounced_bytes += bytes;
        }
    }

    /// A turn with the GPU, in which `stream` comes after the work of the engine's streams.
    pub(super) fn begin(&self, stream: &CudaStream) -> Result<Turn, DriverError> {
        let turn = Turn::begin(&self.inner.context)?;
        let before = lock(&self.inner.before).1.clone();
        before.map_or(Ok(()), |event| stream.wait(&event))?;
        Ok(turn)
    }

    fn submit(
        &self,
        stream: &CudaStream,
        payload: Extent,
        copies: &Copies,
    ) -> Result<CudaEvent, DmaError> {
        self.hand_over(stream, copies).map_err(|error| self.failed(payload, error))
    }

    /// Hands copies to `stream`; the event is recorded behind them.
    pub(super) fn hand_over(
        &self,
        stream: &CudaStream,
        copies: &Copies,
    ) -> Result<CudaEvent, DriverError> {
        // SAFETY: one side lies in the mapping, which is registered, or in the pinned buffer; who named
        // the other vouches for it while the jobs live, and no call of the engine ends, not by a panic
        // either, before the stream has come to an end (`Settled`).
        unsafe { copies.submit(stream) }?;
        stream.record_event(None)
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
        // Also when a copy fails, before somebody else has the buffer.
        let _settled = Settled(stream);
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
        // Also when a copy fails, before somebody else has the buffer.
        let _settled = Settled(stream);
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

impl Inner {
    fn down_copies(
        &self,
        payload: Extent,
        job: &StoreJob<'_, DeviceSource<'_>>,
        registration: &Registration,
    ) -> Copies {
        let mut copies = Copies::default();
        let parts = job.parts.iter().map(|part| (part.address, part.bytes));
        self.add_down(&mut copies, payload, parts, registration);
        copies
    }

    fn up_copies(
        &self,
        payload: Extent,
        job: &LoadJob<DeviceDestination<'_>>,
        registration: &Registration,
    ) -> Copies {
        let mut copies = Copies::default();
        let parts = job.parts.iter().map(|part| (part.address, part.bytes));
        self.add_up(&mut copies, payload, parts, registration);
        copies
    }

    /// Adds the copies to `to`, in the pool, from these parts in order (address and length).
    pub(super) fn add_down(
        &self,
        copies: &mut Copies,
        to: Extent,
        parts: impl Iterator<Item = (u64, usize)>,
        registration: &Registration,
    ) {
        self.runs(to, parts, registration, |pool, device, bytes| {
            copies.add(Copy { to: pool, from: device, bytes });
        });
    }

    /// Adds the copies from `from`, in the pool, to these parts in order (address and length).
    pub(super) fn add_up(
        &self,
        copies: &mut Copies,
        from: Extent,
        parts: impl Iterator<Item = (u64, usize)>,
        registration: &Registration,
    ) {
        self.runs(from, parts, registration, |pool, device, bytes| {
            copies.add(Copy { to: device, from: pool, bytes });
        });
    }

    /// Each run of bytes that lies in one part and in one piece of the registration: its address in
    /// the mapping, on the GPU, and its length.
    fn runs(
        &self,
        payload: Extent,
        parts: impl Iterator<Item = (u64, usize)>,
        registration: &Registration,
        mut each: impl FnMut(u64, u64, usize),
    ) {
        let mapping = self.host.fabric().mapping();
        let start = mapping.address(payload).expect("the job was checked to lie in the mapping");
        let start = start.expose_provenance() as u64;
        let mut offset = payload.offset();
        for (mut device, bytes) in parts {
            for (at, bytes) in registration.runs(offset, bytes) {
                each(start + (at - payload.offset()), device, bytes);
                device += bytes as u64;
            }
            offset += bytes as u64;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let turn = Turn::begin(&self.context);
        for stream in [&self.down, &self.up] {
            if turn.is_err() || turn::wait_for(&lock(stream)).is_err() {
                // What the GPU may still reach stays mapped.
                std::mem::forget(Arc::clone(self.host.fabric().mapping()));
            }
        }
    }
}

pub(super) fn length(payload: Extent) -> usize {
    usize::try_from(payload.bytes()).expect("it lies in the mapping")
}
