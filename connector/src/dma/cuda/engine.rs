//! The engine.
#![expect(unsafe_code, reason = "a GPU copies between addresses")]

use std::marker::PhantomData;
use std::sync::{Arc, Once};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError,
};
use cxl_shm::fabric::MappedFabric;
use cxl_shm::units::Extent;

use super::copies::{self, Copies};
use super::driver::{self, CudaError, reason};
use super::figures::{CudaFigures, SharedFigures};
use super::lanes::{Lane, LaneOfCall, Lanes};
use super::memory::{DeviceDestination, DeviceSource, EngineStream};
use super::options::CudaOptions;
use super::order::Order;
use super::reach::PoolReach;
use super::registration::{AheadThreads, Pins, Registration};
use super::sums::Kernel;
use super::turn::{EndsInTurn, SLEEPING, Turn};
use crate::dma::{Checksum, DmaError, HostDma};

/// Copies with the copy engines of one GPU.
///
/// Its copies, both ways, come after the work of streams that [`after`](Self::after) was told of.
/// Clones are the same handle of the engine, and have one such order;
/// [`with_own_order`](Self::with_own_order) makes another handle. Threads copy beside each other, each
/// with streams of its own. It belongs to the process that made it: a child made by `fork` must not
/// use it, nor drop it (CUDA's own rule).
///
/// # Example
/// ```no_run
/// use rackline::dma::cuda::CudaDma;
/// use rackline::dma::{DmaEngine, StoreJob};
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
    pub(super) inner: Arc<EndsInTurn<Inner>>,
    order: Arc<Order>,
}

/// Who computes the checksums of payloads.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Summing {
    /// The GPU, of its own memory: a byte that changes between its memory and the pool, on either way,
    /// is noticed.
    ByGpu,
    /// The processor, of what the pool has: bytes that change on the way to or from the GPU are not
    /// noticed.
    ByCpu {
        /// Why not the GPU.
        reason: String,
    },
}

impl Summing {
    /// A short name, for people and for other languages.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::ByGpu => "by the GPU",
            Self::ByCpu { .. } => "by the CPU",
        }
    }

    /// Why the GPU does not; `None` where it does.
    #[must_use]
    pub fn cpu_because(&self) -> Option<&str> {
        match self {
            Self::ByGpu => None,
            Self::ByCpu { reason } => Some(reason),
        }
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    gpu: usize,
    // Dropped in this order, when no copy is under way any more.
    lanes: Lanes,
    /// `None` where the processor computes checksums.
    pub(super) kernel: Option<Kernel>,
    /// `None` where no call reaches the pool straight.
    registration: Option<Arc<Registration>>,
    pub(super) context: Arc<CudaContext>,
    pub(super) host: HostDma,
    reach: PoolReach,
    summing: Summing,
    in_batches: bool,
    figures: SharedFigures,
    refusal_is_told: Once,
}

/// How the copies of a call reach the pool.
#[derive(Debug)]
pub(super) enum Way {
    /// What they touch of it is registered, for as long as the call lasts (CUDA-R1).
    Straight(Arc<Pins>),
    /// Through the buffer of the lane.
    Bounced,
}

/// Which way a call copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Store,
    Load,
}

impl CudaDma {
    /// The engine of GPU number `gpu`, over the memory of `fabric`. Pages are pinned when they are first
    /// copied to or from, and have memory behind them afterwards; or now, which takes minutes for a
    /// large pool, where [`CudaOptions`] say so. A mapping is pinned once: for other GPUs of the
    /// process, see [`beside`](Self::beside).
    ///
    /// # Errors
    /// [`CudaError`]. That the pool could not be registered is none: [`reach`](Self::reach). Nor is
    /// that the GPU computes no checksums: [`summing`](Self::summing).
    pub fn new(fabric: MappedFabric, gpu: usize) -> Result<Self, CudaError> {
        Self::with_options(fabric, gpu, CudaOptions::from_environment()?)
    }

    /// As [`new`](Self::new), as `options` say.
    ///
    /// # Errors
    /// As for `new`.
    pub fn with_options(
        fabric: MappedFabric,
        gpu: usize,
        options: CudaOptions,
    ) -> Result<Self, CudaError> {
        Self::with_threads(fabric, gpu, options, AheadThreads::anywhere())
    }

    /// As [`with_options`](Self::with_options). What is registered at once is registered on `threads`.
    ///
    /// # Errors
    /// As for `new`.
    pub(crate) fn with_threads(
        fabric: MappedFabric,
        gpu: usize,
        options: CudaOptions,
        threads: AheadThreads<'_>,
    ) -> Result<Self, CudaError> {
        Self::make(fabric, gpu, options, |context, fabric| {
            match Registration::open(context, fabric.mapping(), &options, threads) {
                Ok((registration, reach)) => (Some(registration), reach),
                Err(reason) => (None, PoolReach::Bounced { reason }),
            }
        })
    }

    /// The engine of another GPU, over the same memory: pages are pinned once for all GPUs of a
    /// process.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn beside(&self, gpu: usize) -> Result<Self, CudaError> {
        let (fabric, options) =
            (self.inner.host.fabric().clone(), CudaOptions::from_environment()?);
        Self::make(fabric, gpu, options, |_, _| {
            (self.inner.registration.clone(), self.inner.reach.clone())
        })
    }

    fn make(
        fabric: MappedFabric,
        gpu: usize,
        options: CudaOptions,
        register: impl FnOnce(
            &Arc<CudaContext>,
            &MappedFabric,
        ) -> (Option<Arc<Registration>>, PoolReach),
    ) -> Result<Self, CudaError> {
        let cannot_use = |error| CudaError::of("cannot use the GPU", error);
        driver::find(gpu)?;
        // Around all of it: also what is made here, and is of no use when something else fails,
        // ends in it.
        let _around = Turn::around().map_err(cannot_use)?;
        let context = driver::context(gpu)?;
        let _turn = Turn::begin(&context).map_err(cannot_use)?;
        let kernel = match options.gpu_checksums {
            true => Kernel::load(&context).inspect_err(|reason| {
                tracing::warn!(
                    gpu,
                    reason,
                    "the CPU computes the checksums of blocks in GPU memory: it takes longer, and \
                     bytes that change between the GPU and the pool are not noticed; a newer driver \
                     lets the GPU compute them"
                );
            }),
            false => Err(format!("{}=cpu", CudaOptions::CHECKSUMS)),
        };
        let (kernel, summing) = match kernel {
            Ok(kernel) => (Some(kernel), Summing::ByGpu),
            Err(reason) => (None, Summing::ByCpu { reason }),
        };
        let lanes = Lanes::new(&context, kernel.is_some());
        let (registration, reach) = register(&context, &fabric);
        // One at least, so that a driver that makes none says so now.
        let made = lanes.take(&Way::Bounced).map(drop);
        made.map_err(|error| CudaError::of("cannot make a stream for copies", error))?;
        let order = Arc::new(Order::new(&context, None));
        let inner = Inner {
            gpu,
            lanes,
            kernel,
            figures: SharedFigures::new(registration.as_ref().map(|of| Arc::clone(of.figures()))),
            registration,
            context,
            host: HostDma::new(fabric),
            reach,
            summing,
            in_batches: options.batched_copies && copies::takes_batches(),
            refusal_is_told: Once::new(),
        };
        let inner = Arc::new(EndsInTurn::new(inner));
        Ok(Self { inner, order })
    }

    /// How the GPU reaches the pool.
    #[must_use]
    pub fn reach(&self) -> &PoolReach {
        &self.inner.reach
    }

    /// Who computes checksums.
    #[must_use]
    pub fn summing(&self) -> &Summing {
        &self.inner.summing
    }

    /// Whether the driver could not wait for a lane (CUDA-E2).
    pub(super) fn is_broken(&self) -> bool {
        self.inner.lanes.is_broken()
    }

    /// What it did so far.
    #[must_use]
    pub fn figures(&self) -> CudaFigures {
        self.inner.figures.now()
    }

    pub(crate) fn shared_figures(&self) -> &SharedFigures {
        &self.inner.figures
    }

    /// The memory of the pool, which it copies to and from.
    #[must_use]
    pub fn fabric(&self) -> &MappedFabric {
        self.inner.host.fabric()
    }

    /// The GPU's primary context.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// A handle of the same engine, whose copies come after nothing yet: what this one is told, or
    /// another, is no concern of theirs.
    #[must_use]
    pub fn with_own_order(&self) -> Self {
        self.ordered(None)
    }

    /// A handle of the same engine, whose copies come after what `order` says, now or later, and
    /// after what it is told itself.
    pub(crate) fn behind(&self, order: &Arc<Order>) -> Self {
        self.ordered(Some(Arc::clone(order)))
    }

    fn ordered(&self, behind: Option<Arc<Order>>) -> Self {
        let order = Arc::new(Order::new(&self.inner.context, behind));
        Self { inner: Arc::clone(&self.inner), order }
    }

    /// Number of the GPU, as CUDA counts in this process.
    #[must_use]
    pub fn number(&self) -> usize {
        self.inner.gpu
    }

    /// Has every later copy of this handle, either way, wait, on the GPU, for what `stream` was
    /// given to do so far: the kernels that compute what is stored, or still use the memory that is
    /// loaded into. Waits for nothing itself.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Capturing`]; then nothing may be copied that depends on
    /// it.
    pub fn after(&self, stream: EngineStream<'_>) -> Result<(), CudaError> {
        self.order.after(stream)
    }

    /// What its copies come after. It does not keep the engine.
    pub(crate) fn order(&self) -> &Arc<Order> {
        &self.order
    }

    /// The bytes of `slice` as what was given to any stream so far leaves them, `stream` and those
    /// that `cudarc` knows to have written it.
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
}

impl CudaDma {
    /// How a call reaches `payloads`, which lie in the pool. They stay registered while the way is there.
    pub(super) fn way(&self, payloads: impl Iterator<Item = Extent>) -> Way {
        let usable = self.inner.registration.as_ref().filter(|_| !self.is_broken());
        let Some(registration) = usable else { return Way::Bounced };
        match registration.pin(payloads) {
            Ok(pins) => Way::Straight(Arc::new(pins)),
            Err(reason) => {
                // CUDA-R4
                let gpu = self.inner.gpu;
                self.inner.refusal_is_told.call_once(|| {
                    tracing::warn!(
                        gpu,
                        reason,
                        "the CUDA driver does not register a piece of the pool: what is copied to or \
                         from it goes through a buffer, and is copied once more by the CPU; the \
                         figures count such pieces and bytes"
                    );
                });
                Way::Bounced
            }
        }
    }

    /// Has `copy` copy `payloads` on a lane, that `way`, after the work of the engine's streams. At the
    /// end nothing of it is under way any more, and what was copied is counted. Without payloads nobody's
    /// work is waited for.
    pub(super) fn in_lane(
        &self,
        direction: Direction,
        way: &Way,
        payloads: &[Extent],
        copy: impl FnOnce(&mut Lane) -> Vec<Result<Checksum, DmaError>>,
    ) -> Vec<Result<Checksum, DmaError>> {
        if payloads.is_empty() {
            return Vec::new();
        }
        let all = |failed: &dyn Fn(Extent) -> DmaError| {
            payloads.iter().map(|payload| Err(failed(*payload))).collect()
        };
        let mut lane = match self.lane(way) {
            Ok(lane) => lane,
            Err(error) => return all(&|payload| self.failed(payload, error)),
        };
        let results = copy(&mut lane);
        if let Err(error) = lane.end() {
            return self.all_unfinished(direction, way, payloads, results, error);
        }
        self.count(direction, way, payloads, &results);
        results
    }

    /// Counts what was copied.
    pub(super) fn count(
        &self,
        direction: Direction,
        way: &Way,
        payloads: &[Extent],
        results: &[Result<Checksum, DmaError>],
    ) {
        let copied = payloads.iter().zip(results).filter(|(_, result)| result.is_ok());
        let bytes: u64 = copied.map(|(payload, _)| payload.bytes()).sum();
        self.inner.figures.count(|figures| {
            match direction {
                Direction::Store => figures.stored_bytes += bytes,
                Direction::Load => figures.loaded_bytes += bytes,
            }
            if let Way::Bounced = way {
                figures.bounced_bytes += bytes;
            }
            if self.inner.kernel.is_some() {
                figures.gpu_summed_bytes += bytes;
            }
        });
    }

    /// A lane whose streams come after what this handle's copies come after. Where the driver refuses
    /// some of that, the lane is given back when its streams have come to an end.
    pub(super) fn lane(&self, way: &Way) -> Result<LaneOfCall<'_>, DriverError> {
        let lane = self.inner.lanes.take(way)?;
        self.order.comes_before(&lane.copies)?;
        if let Some(sums) = &lane.sums {
            self.order.comes_before(sums.stream())?;
        }
        Ok(lane)
    }

    /// Hands copies to `stream`.
    pub(super) fn hand_over(
        &self,
        stream: &CudaStream,
        copies: &Copies,
    ) -> Result<(), DriverError> {
        // SAFETY: one side lies in pieces of the mapping that the lane's call has pinned (CUDA-R1), or in
        // the pinned buffer; who named the other vouches for it while the jobs live, and no call of
        // the engine ends, not by a panic either, before the lane has come to an end
        // (`LaneOfCall`). Where that fails, the payload stays reserved, its pieces stay registered,
        // and the lane's memory stays.
        unsafe { copies.submit(stream, self.inner.in_batches) }
    }

    /// The same, with an event recorded behind them.
    pub(super) fn hand_over_with_event(
        &self,
        stream: &CudaStream,
        copies: &Copies,
    ) -> Result<CudaEvent, DriverError> {
        self.hand_over(stream, copies)?;
        stream.record_event(Some(SLEEPING))
    }

    pub(super) fn failed(&self, payload: Extent, error: DriverError) -> DmaError {
        self.count_failed();
        DmaError::Device { payload, reason: reason(error) }
    }

    /// What was handed over may still be under way. A load does no harm to the pool: only the memory of
    /// the engine is undefined (CUDA-E1). A store may still write (CUDA-E2), where it writes the pool
    /// itself. What was refused before keeps its reason.
    fn all_unfinished(
        &self,
        direction: Direction,
        way: &Way,
        payloads: &[Extent],
        results: Vec<Result<Checksum, DmaError>>,
        error: DriverError,
    ) -> Vec<Result<Checksum, DmaError>> {
        let may_write = matches!((direction, way), (Direction::Store, Way::Straight(_)));
        let as_unfinished = |payload| match may_write {
            true => DmaError::Unfinished { payload, reason: reason(error) },
            false => DmaError::Device { payload, reason: reason(error) },
        };
        let one = |(payload, result): (&Extent, Result<Checksum, DmaError>)| match result {
            Ok(_) => {
                self.count_failed();
                Err(as_unfinished(*payload))
            }
            // It is counted already.
            Err(DmaError::Device { .. }) => Err(as_unfinished(*payload)),
            Err(refused) => Err(refused),
        };
        payloads.iter().zip(results).map(one).collect()
    }

    /// A store that was handed over, and may still write.
    pub(super) fn unfinished(&self, payload: Extent, error: DriverError) -> DmaError {
        self.count_failed();
        DmaError::Unfinished { payload, reason: reason(error) }
    }

    fn count_failed(&self) {
        self.inner.figures.count(|figures| figures.failed_payloads += 1);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.lanes.is_broken() {
            // What the GPU may still use stays: the pool's pages, mapped and registered, the kernel,
            // and the context.
            std::mem::forget(Arc::clone(self.host.fabric().mapping()));
            if let Some(registration) = &self.registration {
                std::mem::forget(Arc::clone(registration));
            }
            std::mem::forget(self.kernel.take());
            std::mem::forget(Arc::clone(&self.context));
        }
    }
}

pub(super) fn length(payload: Extent) -> usize {
    usize::try_from(payload.bytes()).expect("it lies in the mapping")
}
