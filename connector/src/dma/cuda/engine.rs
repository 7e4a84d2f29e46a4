//! The engine.
#![expect(unsafe_code, reason = "a GPU copies between addresses")]

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError,
};
use cxl_shm::fabric::MappedFabric;
use cxl_shm::units::Extent;

use super::bounce::Bounce;
use super::copies::Copies;
use super::driver::{self, CudaError, reason};
use super::memory::{DeviceDestination, DeviceSource, EngineStream};
use super::order::Order;
use super::registration::{PoolReach, Registration};
use super::turn::{self, DrainOnDrop, EndsInTurn, Turn};
use crate::dma::{Checksum, DmaError, HostDma, lock};

/// Copies with the copy engines of one GPU, one stream each way.
///
/// Its copies, both ways, come after the work of streams that [`after`](Self::after) was told of.
/// Clones are the same handle of the engine, and have one such order;
/// [`with_own_order`](Self::with_own_order) makes another handle. Threads that copy the same way
/// take turns. It belongs to the process that made it: a child made by `fork` must not use it, nor
/// drop it (CUDA's own rule).
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

/// What an engine did so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CudaFigures {
    /// Bytes that came into the pool.
    pub stored_bytes: u64,
    /// Bytes that came out of it.
    pub loaded_bytes: u64,
    /// How many of both went through the buffer.
    pub bounced_bytes: u64,
    /// Payloads that the driver failed to copy.
    pub failed_payloads: u64,
}

#[derive(Debug)]
pub(super) struct Inner {
    gpu: usize,
    // Dropped in this order, when no copy is under way any more.
    pub(super) way: Way,
    pub(super) down: Mutex<Arc<CudaStream>>,
    pub(super) up: Mutex<Arc<CudaStream>>,
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
    /// every page of it is pinned, and has memory behind it afterwards. A mapping is pinned once:
    /// for more engines over one pool in a process, of the same GPU or others, map it once more, or
    /// they bounce.
    ///
    /// # Errors
    /// [`CudaError`]. That the pool could not be registered is none: [`reach`](Self::reach).
    pub fn new(fabric: MappedFabric, gpu: usize) -> Result<Self, CudaError> {
        let cannot_use = |error| CudaError::of("cannot use the GPU", error);
        driver::find(gpu)?;
        // Around all of it: also what is made here, and is of no use when something else fails,
        // ends in it.
        let _around = Turn::around().map_err(cannot_use)?;
        let context = driver::context(gpu)?;
        let _turn = Turn::begin(&context).map_err(cannot_use)?;
        let stream = || {
            let stream = context.new_stream();
            stream.map_err(|error| CudaError::of("cannot make a stream for copies", error))
        };
        let (down, up) = (Mutex::new(stream()?), Mutex::new(stream()?));
        let (way, reach) = match Registration::new(&context, fabric.mapping()) {
            Ok((registration, reach)) => (Way::Straight(registration), reach),
            Err(reason) => {
                let (down, up) = (Bounce::new(&context), Bounce::new(&context));
                (Way::Bounced { down, up }, PoolReach::Bounced { reason })
            }
        };
        let host = HostDma::new(fabric);
        let figures = Arc::default();
        let order = Arc::new(Order::new(&context, None));
        let inner = Inner { gpu, way, down, up, context, host, reach, figures };
        let inner = Arc::new(EndsInTurn::new(inner));
        Ok(Self { inner, order })
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

    pub(super) fn failed(&self, payload: Extent, error: DriverError) -> DmaError {
        lock(&self.inner.figures).failed_payloads += 1;
        DmaError::Device { payload, reason: reason(error) }
    }
}

impl CudaDma {
    /// Has `copy` copy `payloads` when it is this thread's turn, after the work of the engine's
    /// streams. At the end nothing of it is under way any more, and what was copied is counted.
    /// Without payloads nobody's turn and nobody's work is waited for.
    pub(super) fn in_turn(
        &self,
        stream: &Mutex<Arc<CudaStream>>,
        payloads: &[Extent],
        counter: impl FnOnce(&mut CudaFigures) -> &mut u64,
        copy: impl FnOnce(&CudaStream) -> Vec<Result<Checksum, DmaError>>,
    ) -> Vec<Result<Checksum, DmaError>> {
        if payloads.is_empty() {
            return Vec::new();
        }
        let stream = lock(stream);
        let _turn = match self.begin(&stream) {
            Ok(turn) => turn,
            Err(error) => {
                return payloads.iter().map(|payload| Err(self.failed(*payload, error))).collect();
            }
        };
        let results = {
            let _drain = DrainOnDrop(&stream);
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

    /// A turn with the GPU, in which `stream` comes after what this handle's copies come after.
    /// Where the driver refuses some of that, what it took stays in front of whatever the stream
    /// copies next.
    pub(super) fn begin(&self, stream: &CudaStream) -> Result<Turn, DriverError> {
        let turn = Turn::begin(&self.inner.context)?;
        self.order.comes_before(stream)?;
        Ok(turn)
    }

    /// Hands copies to `stream`; the event is recorded behind them.
    pub(super) fn hand_over(
        &self,
        stream: &CudaStream,
        copies: &Copies,
    ) -> Result<CudaEvent, DriverError> {
        // SAFETY: one side lies in the mapping, which is registered, or in the pinned buffer; who
        // named the other vouches for it while the jobs live, and no call of the engine ends, not
        // by a panic either, before the stream has come to an end (`DrainOnDrop`).
        unsafe { copies.submit(stream) }?;
        stream.record_event(None)
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
