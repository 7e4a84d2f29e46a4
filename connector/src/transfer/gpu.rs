//! Transfers of blocks in the memory of a GPU.
//!
//! A process opens a GPU once ([`Transfers::gpu`](super::Transfers::gpu)): the pool is registered with
//! its driver. After that a [`TransferSession`] publishes from its memory and fetches into it, on the
//! same threads and queues as all other transfers. The engine's stream is given to the call, which
//! records how far it is and does not wait: the copy comes after what the stream was given by then, and
//! does not wait for what a stream is given later, nor for what other calls were told: each has a handle
//! of the engine of its own ([`CudaDma::with_own_order`]). Copies that go the same way take turns, though:
//! behind one that was begun before, and waits, it waits too.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use cxl_shm::fabric::MappedFabric;
use cxl_shm::fork::ProcessMark;
use kv_cache::MatchedBlock;

use super::lanes::{Desk, Lane};
use super::session::{Fetched, NewBlock, Published, SubmitError, TransferSession, publish};
use super::{Completion, Running};
use crate::dma::cuda::{
    CudaDma, CudaError, CudaFigures, DeviceDestination, DeviceSource, EngineStream, PoolReach,
};
use crate::dma::lock;

/// Blocks in the memory of a GPU that are published: they stay as the engine's stream leaves them
/// until the transfer gives them back.
///
/// The order of the parts is the order of the bytes in the block.
pub trait GpuSource: Send + 'static {
    /// The memory, in pieces that are gathered in this order.
    fn parts(&self) -> Vec<DeviceSource<'_>>;
}

/// Where fetched bytes go on a GPU. Nobody else reads or writes them until the transfer gives them
/// back, but for what the engine's stream was given before.
pub trait GpuDestination: Send + 'static {
    /// The memory, in pieces that are filled in this order.
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>>;
}

/// A GPU that was opened.
#[derive(Clone, Debug)]
pub struct Gpu {
    number: usize,
    reach: PoolReach,
    figures: Arc<Mutex<CudaFigures>>,
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

    /// What was copied so far, in all sessions of this process. Nothing in a child made by `fork`.
    #[must_use]
    pub fn figures(&self) -> CudaFigures {
        if !self.process.is_of_this() {
            return CudaFigures::default();
        }
        *lock(&self.figures)
    }
}

/// Why a GPU was not opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuError {
    /// It cannot be used.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// This process is a child of the one that attached, made by `fork`.
    #[error("this process is a forked child of the one that attached: attach again in the child")]
    Forked,
    /// [`close`](super::Transfers::close) was called.
    #[error("the pool was closed in this process")]
    Closed,
}

/// A transfer with memory of a GPU that was not taken up; what was given to it, given back. Nothing is
/// changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuSubmitError<T> {
    /// As for any transfer.
    #[error("{0}")]
    Refused(SubmitError<T>),
    /// The GPU was not opened.
    #[error("GPU {gpu} is not open in this process: open it first, once, for all sessions")]
    NotOpen {
        /// Its number.
        gpu: usize,
        /// What was given.
        given: T,
    },
    /// The copy cannot be put behind the work of the engine's stream.
    #[error("the copy cannot come after the work of the engine's stream: {error}")]
    Stream {
        /// Why.
        error: CudaError,
        /// What was given.
        given: T,
    },
}

impl<T> GpuSubmitError<T> {
    /// What was given back.
    pub fn into_inner(self) -> T {
        match self {
            Self::Refused(refused) => refused.into_inner(),
            Self::NotOpen { given, .. } | Self::Stream { given, .. } => given,
        }
    }

    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> GpuSubmitError<U> {
        match self {
            Self::Refused(refused) => GpuSubmitError::Refused(refused.map(f)),
            Self::NotOpen { gpu, given } => GpuSubmitError::NotOpen { gpu, given: f(given) },
            Self::Stream { error, given } => GpuSubmitError::Stream { error, given: f(given) },
        }
    }
}

/// The GPUs that a process has open.
///
/// An engine keeps the pool mapped, and unregisters it when the last copy of it is over: every
/// transfer has a share of the engine that it uses, and the last share but those ends in
/// [`close`](Self::close).
#[derive(Debug)]
pub(super) struct Gpus {
    /// Never dropped where `close` was not called: in a child made by `fork`, which must leave the
    /// parent's engines alone.
    open: ManuallyDrop<Mutex<Option<Open>>>,
    /// One is opened at a time: that takes seconds, in which the others go on.
    opening: Mutex<()>,
}

#[derive(Debug)]
struct Open {
    fabric: MappedFabric,
    engines: BTreeMap<usize, CudaDma>,
}

impl Gpus {
    pub(super) fn new(fabric: MappedFabric) -> Self {
        let open = Open { fabric, engines: BTreeMap::new() };
        let open = ManuallyDrop::new(Mutex::new(Some(open)));
        Self { open, opening: Mutex::new(()) }
    }

    /// The engine of a GPU, made when it is not there.
    pub(super) fn open(&self, gpu: usize) -> Result<CudaDma, GpuError> {
        let _one = lock(&self.opening);
        let fabric = match &*lock(&self.open) {
            None => return Err(GpuError::Closed),
            Some(open) => match open.engines.get(&gpu) {
                Some(engine) => return Ok(engine.clone()),
                None => open.fabric.clone(),
            },
        };
        let engine = CudaDma::new(fabric, gpu)?;
        match &mut *lock(&self.open) {
            // Closed meanwhile: the engine ends here.
            None => Err(GpuError::Closed),
            Some(open) => Ok(open.engines.entry(gpu).or_insert(engine).clone()),
        }
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
        let (reach, figures) = (engine.reach().clone(), Arc::clone(engine.shared_figures()));
        Ok(Gpu { number, reach, figures, process: self.process })
    }

    /// A handle of a GPU's engine, for the copies of one call, which come after nothing yet; or `given`
    /// back.
    pub(super) fn handle<G>(
        &self,
        gpu: usize,
        given: G,
    ) -> Result<(CudaDma, G), GpuSubmitError<G>> {
        // Before anything of the driver is called, which a forked child may not.
        if self.is_forked() {
            return Err(GpuSubmitError::Refused(SubmitError::Forked(given)));
        }
        if self.is_closed() {
            return Err(GpuSubmitError::Refused(SubmitError::Closed(given)));
        }
        match self.gpus.engine(gpu) {
            Some(engine) => Ok((engine.with_own_order(), given)),
            None => Err(GpuSubmitError::NotOpen { gpu, given }),
        }
    }

    /// The same for copies that come after what `stream` was given so far.
    pub(super) fn after<G>(
        &self,
        gpu: usize,
        stream: EngineStream<'_>,
        given: G,
    ) -> Result<(CudaDma, G), GpuSubmitError<G>> {
        let (engine, given) = self.handle(gpu, given)?;
        match engine.after(stream) {
            Ok(()) => Ok((engine, given)),
            Err(error) => Err(GpuSubmitError::Stream { error, given }),
        }
    }
}

impl TransferSession {
    /// Publishes `blocks` of a GPU's memory, as `stream` leaves them with what it was given before
    /// this call: [`Session::publish`](crate::session::Session::publish).
    ///
    /// # Errors
    /// [`GpuSubmitError`].
    pub fn publish_from_gpu<S: GpuSource>(
        &self,
        gpu: usize,
        stream: EngineStream<'_>,
        blocks: Vec<NewBlock<S>>,
    ) -> Result<Completion<Published<S>>, GpuSubmitError<Vec<NewBlock<S>>>> {
        let (engine, blocks) = self.running().after(gpu, stream, blocks)?;
        let (options, hold_ms) = (*self.options(), self.hold_ms());
        let work = move |desk: &Desk<'_>, blocks: Vec<NewBlock<S>>| {
            let session = desk.cuda_session(&engine, options).with_hold_ms(hold_ms);
            let report = publish(&session, &blocks, GpuSource::parts);
            Published { report, blocks }
        };
        self.submit_to(Lane::Publish, blocks, work).map_err(GpuSubmitError::Refused)
    }

    /// Fetches `blocks`, each into its destination in a GPU's memory, when `stream` is done with what
    /// it was given before this call: [`Session::fetch`](crate::session::Session::fetch). What is
    /// launched after the fetch has ended finds the bytes.
    ///
    /// # Errors
    /// [`GpuSubmitError`].
    pub fn fetch_into_gpu<D: GpuDestination>(
        &self,
        gpu: usize,
        stream: EngineStream<'_>,
        blocks: Vec<MatchedBlock>,
        destinations: Vec<D>,
    ) -> Result<Completion<Fetched<D>>, GpuSubmitError<Vec<D>>> {
        let (engine, destinations) = self.running().after(gpu, stream, destinations)?;
        let (options, hold_ms) = (*self.options(), self.hold_ms());
        let given = (blocks, destinations);
        let work =
            move |desk: &Desk<'_>, (blocks, mut destinations): (Vec<MatchedBlock>, Vec<D>)| {
                let session = desk.cuda_session(&engine, options).with_hold_ms(hold_ms);
                let parts = destinations.iter_mut().map(GpuDestination::parts_mut).collect();
                let report = session.fetch(&blocks, parts);
                Fetched { report, destinations }
            };
        let submitted = self.submit_to(Lane::Fetch, given, work).map_err(GpuSubmitError::Refused);
        submitted.map_err(|error| error.map(|(_, destinations)| destinations))
    }
}
