//! Blocks in the memory of a GPU.
//!
//! A process opens a GPU once ([`AsyncPool::gpu`](super::AsyncPool::gpu)). Pieces of the pool are
//! registered with its driver when they are used. After that [`AsyncSession::on_gpu`] makes a session that publishes from
//! GPU memory and fetches into it, on the same threads and queues as all other transfers.
//!
//! That call takes the engine's stream, records its present position and returns. Copies are
//! ordered after the work that was enqueued by then. They wait neither for later work of that
//! stream nor for the streams of other sessions: each transfer has a handle of the engine of its
//! own. The pieces of a transfer are copied by all threads of the pool, on streams of their own. A
//! transfer that waits for the engine's work keeps a thread asleep, and no other copy waiting.
//!
//! A fetched layer has arrived when its copy is over: work that is launched from then on, on any
//! stream, finds it. A published layer is ready when the stream that computes it says so. The
//! position of that stream is recorded for the copies of this layer before any thread may begin
//! with it. There is no way to say that a layer is ready without naming its stream.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use cxl_shm::fabric::MappedFabric;
use cxl_shm::fork::ProcessMark;

use super::engine::Copies;
use super::readiness::Opener;
use super::{AsyncEngine, AsyncSession, LayeredPublish, Running, SubmitErrorKind};
use crate::binding::Binding;
use crate::dma::cuda::{
    AheadThreads, CudaDma, CudaError, CudaFigures, CudaOptions, EngineStream, Order, PoolReach,
    SharedFigures, Summing,
};
use crate::dma::lock;

/// A GPU that was opened.
#[derive(Clone, Debug)]
pub struct Gpu {
    number: usize,
    reach: PoolReach,
    summing: Summing,
    figures: SharedFigures,
    process: ProcessMark,
}

impl Gpu {
    /// Its number, as CUDA counts in this process.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// How it reaches the pool.
    #[must_use]
    pub fn reach(&self) -> &PoolReach {
        &self.reach
    }

    /// Who computes the checksums of blocks in its memory.
    #[must_use]
    pub fn summing(&self) -> &Summing {
        &self.summing
    }

    /// What was copied and registered so far, in all sessions of this process. Nothing in a child made by `fork`.
    #[must_use]
    pub fn figures(&self) -> CudaFigures {
        if !self.process.is_of_this() {
            return CudaFigures::default();
        }
        self.figures.now()
    }
}

/// Why a GPU, or its memory, cannot be used. Nothing is changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The driver refuses it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// This process is a child of the one that attached, made by `fork`.
    #[error(
        "this process is a forked child of the process that attached: attach again in the child"
    )]
    Forked,
    /// [`close`](super::AsyncPool::close) was called.
    #[error("the pool was closed in this process")]
    Closed,
    /// The GPU was not opened.
    #[error("GPU {gpu} is not open in this process: open it first, once, for all sessions")]
    NotOpen {
        /// Its number.
        gpu: usize,
    },
    /// The copies cannot be put behind the work of the engine's stream.
    #[error("the copy cannot be ordered after the engine's stream: {0}")]
    Stream(CudaError),
}

/// The GPUs that a process has open.
///
/// An engine keeps the pool mapped, and unregisters all of it when the last copy of it is over: every
/// transfer has a share of the engine that it uses, and the last share but those ends in
/// [`close`](Self::close).
#[derive(Debug)]
pub(super) struct Gpus {
    /// Never dropped where `close` was not called: in a child made by `fork`, which must leave the
    /// parent's engines alone.
    open: ManuallyDrop<Mutex<Option<Open>>>,
    /// One is opened at a time: that may take seconds, in which the others continue.
    opening: Mutex<()>,
    /// The CPUs of threads that register the pool at once.
    binding: Option<Binding>,
}

#[derive(Debug)]
struct Open {
    fabric: MappedFabric,
    engines: BTreeMap<usize, CudaDma>,
}

impl Gpus {
    pub(super) fn new(fabric: MappedFabric, binding: Option<Binding>) -> Self {
        let open = Open { fabric, engines: BTreeMap::new() };
        let open = ManuallyDrop::new(Mutex::new(Some(open)));
        Self { open, opening: Mutex::new(()), binding }
    }

    /// The engine of a GPU, made when it is not there.
    fn open(&self, gpu: usize) -> Result<CudaDma, GpuError> {
        let _one = lock(&self.opening);
        let (fabric, another) = match &*lock(&self.open) {
            None => return Err(GpuError::Closed),
            Some(open) => match open.engines.get(&gpu) {
                Some(engine) => return Ok(engine.clone()),
                None => (open.fabric.clone(), open.engines.values().next().cloned()),
            },
        };
        let engine = match another {
            // Pages are pinned once for all GPUs.
            Some(another) => another.beside(gpu)?,
            None => self.first(fabric, gpu)?,
        };
        match &mut *lock(&self.open) {
            // Closed meanwhile: the engine ends here.
            None => Err(GpuError::Closed),
            Some(open) => Ok(open.engines.entry(gpu).or_insert(engine).clone()),
        }
    }

    /// The engine of the first GPU, with the registrations of all. Threads that register the pool at
    /// once run near its memory.
    fn first(&self, fabric: MappedFabric, gpu: usize) -> Result<CudaDma, CudaError> {
        let options = CudaOptions::from_environment()?;
        let Some(binding) = &self.binding else {
            return CudaDma::with_options(fabric, gpu, options);
        };
        let begin = || binding.bind_this_thread();
        let threads = AheadThreads { count: binding.cpus(), begin: &begin };
        CudaDma::with_threads(fabric, gpu, options, threads)
    }

    /// The engine of a GPU, when it was opened. Does not wait for one that is being opened.
    fn engine(&self, gpu: usize) -> Option<CudaDma> {
        lock(&self.open).as_ref()?.engines.get(&gpu).cloned()
    }

    /// Ends the engines; no transfer is under way any more.
    pub(super) fn close(&self) {
        let open = lock(&self.open).take();
        drop(open);
    }
}

impl Running {
    /// Opens a GPU, or finds it open.
    pub(super) fn gpu(&self, number: usize) -> Result<Gpu, GpuError> {
        if self.is_forked() {
            return Err(GpuError::Forked);
        }
        let engine = self.gpus.open(number)?;
        let (reach, summing) = (engine.reach().clone(), engine.summing().clone());
        let figures = engine.shared_figures().clone();
        Ok(Gpu { number, reach, summing, figures, process: self.process })
    }

    /// The engine of a GPU that was opened.
    fn engine(&self, gpu: usize) -> Result<CudaDma, GpuError> {
        // Before anything of the driver is called, which a forked child may not.
        if self.is_forked() {
            return Err(GpuError::Forked);
        }
        if self.is_closed() {
            return Err(GpuError::Closed);
        }
        self.gpus.engine(gpu).ok_or(GpuError::NotOpen { gpu })
    }
}

/// A GPU, and what copies to and from its memory come after.
#[derive(Clone, Debug)]
pub struct GpuOrder {
    gpu: usize,
    order: Arc<OrderOfProcess>,
}

/// A child made by `fork` leaves it alone: it is the driver's.
#[derive(Debug)]
struct OrderOfProcess {
    /// There until it is dropped.
    order: Option<Arc<Order>>,
    process: ProcessMark,
}

impl Drop for OrderOfProcess {
    fn drop(&mut self) {
        if !self.process.is_of_this() {
            std::mem::forget(self.order.take());
        }
    }
}

impl GpuOrder {
    fn of(gpu: usize, engine: &CudaDma) -> Self {
        let (order, process) = (Some(Arc::clone(engine.order())), ProcessMark::of_this());
        Self { gpu, order: Arc::new(OrderOfProcess { order, process }) }
    }

    fn get(&self) -> Option<&Arc<Order>> {
        self.order.order.as_ref()
    }
}

impl AsyncEngine for CudaDma {}

impl Copies for CudaDma {
    type Order = GpuOrder;

    /// A thread of the engine's may wait for what it must not: it has no part in copies of a GPU.
    const BY_WAITER: bool = false;

    const FINISHED_IS_READY: bool = false;

    fn of(running: &Running, order: &GpuOrder) -> Result<Self, SubmitErrorKind> {
        let engine = running.engine(order.gpu).map_err(|error| match error {
            GpuError::Forked => SubmitErrorKind::Forked,
            // It was open when the session was made, and stays so until the pool is closed.
            _ => SubmitErrorKind::Closed,
        })?;
        Ok(order.get().map_or_else(|| engine.with_own_order(), |order| engine.behind(order)))
    }

    fn order(&self) -> GpuOrder {
        GpuOrder::of(self.number(), self)
    }

    fn take_up(&self, layer: usize) {
        CudaDma::order(self).take_up(layer);
    }
}

impl AsyncSession {
    /// This session for blocks in the memory of GPU number `gpu`. Its copies come after what
    /// `stream` was given before this call: what is published is what that leaves, and what is
    /// fetched does not disturb it. Whatever is launched after a fetch has ended finds the bytes.
    /// Does not wait.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Example
    /// ```no_run
    /// use rackline::cuda::EngineStream;
    /// use rackline::{AsyncPool, NewBlock, SessionOptions, Source};
    /// # use rackline::dma::cuda::CudaDma;
    /// # fn publish<S: Source<CudaDma>>(
    /// #     pool: &AsyncPool, options: SessionOptions, blocks: Vec<NewBlock<S>>, stream: EngineStream<'_>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// pool.gpu(0)?; // once, for all sessions
    /// let session = pool.session(options)?;
    /// let publish = session.on_gpu(0, stream)?.publish(blocks);
    /// # let _ = publish;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_gpu(
        &self,
        gpu: usize,
        stream: EngineStream<'_>,
    ) -> Result<AsyncSession<CudaDma>, GpuError> {
        let engine = self.running().engine(gpu)?.with_own_order();
        engine.after(stream).map_err(GpuError::Stream)?;
        Ok(self.ordered(GpuOrder::of(gpu, &engine)))
    }

    /// This session for blocks in the memory of GPU number `gpu`, for publishes by layers: each
    /// layer comes with its stream, and nothing else is waited for.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn on_gpu_by_layers(&self, gpu: usize) -> Result<AsyncSession<CudaDma>, GpuError> {
        let engine = self.running().engine(gpu)?.with_own_order();
        Ok(self.ordered(GpuOrder::of(gpu, &engine)))
    }
}

impl<S> LayeredPublish<S, CudaDma> {
    /// Says that `layer` is ready in all blocks once `stream` has done what it was given so far:
    /// its bytes stay as that leaves them. Layers may become ready in any order, of any streams.
    /// Waits for nothing.
    ///
    /// # Errors
    /// [`CudaError`], with which the publish is aborted: its copies cannot come after the stream.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn layer_ready(&self, layer: usize, stream: EngineStream<'_>) -> Result<(), CudaError> {
        self.opener.layer_ready(layer, stream)
    }
}

impl Opener<CudaDma> {
    /// [`LayeredPublish::layer_ready`].
    pub(crate) fn layer_ready(
        &self,
        layer: usize,
        stream: EngineStream<'_>,
    ) -> Result<(), CudaError> {
        let (Some(readiness), Some(order)) = (self.readiness(), self.order.get()) else {
            return Ok(());
        };
        assert!(readiness.has_layer(layer), "there is no layer {layer}");
        // Before any thread may begin with the layer.
        let recorded = order.layer_after(layer, stream);
        match recorded {
            Ok(()) => readiness.layer_ready(layer),
            Err(_) => readiness.abort(),
        }
        recorded
    }
}
