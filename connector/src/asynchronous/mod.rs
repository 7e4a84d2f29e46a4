//! A pool for engines that must not wait.
//!
//! A [`Session`](crate::Session) does its work on the thread that calls, and belongs to it. An
//! engine has several threads, and a scheduler that must never be held up. [`AsyncPool`] attaches
//! the process once and works on threads of its own; every call of an [`AsyncSession`] returns at
//! once with a [`Completion`].
//!
//! A thread that waits for everything that it begins has no use for another thread, and a session that is
//! [`by_caller`](AsyncSession::by_caller) does short work on the calling thread.
//!
//! Queues are bounded: when one is full, the call gives back what it was given
//! ([`SubmitErrorKind::Busy`]). For a publish that is a block fewer in the pool, for a lookup a
//! miss. Fetches go before publishes, and at least one thread takes nothing else unless the options
//! say otherwise: a publish may wait for memory that other hosts grant.
//!
//! An engine that computes layer by layer fetches and publishes by layers
//! ([`fetch_by_layers`](AsyncSession::fetch_by_layers),
//! [`publish_by_layers`](AsyncSession::publish_by_layers)). It waits for each layer of a fetch when
//! it needs the layer, and says of each layer of a publish when the layer is there. When a fetch
//! ends, so does every wait for its layers. When a publish is finished, aborted or dropped, or the
//! pool is closed, so does the wait of the thread that copies it. Until then publishes by layers
//! behind it wait, and nothing else does.
//!
//! Blocks may be in the memory of a GPU: `gpu.rs`.

mod arrivals;
mod buffers;
mod completion;
mod desk;
mod engine;
#[cfg(feature = "cuda")]
mod gpu;
mod guest;
mod lanes;
mod layered;
mod pieces;
mod prefetch;
mod readiness;
mod request;
mod restores;
mod session;
mod submit;
mod sync;
mod turns;

#[cfg(test)]
mod caller_tests;
#[cfg(test)]
mod closing_tests;
#[cfg(test)]
mod layered_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod restores_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod together_tests;
#[cfg(test)]
mod turns_tests;

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

use crossbeam_channel::Sender;
use cxl_shm::fork::ProcessMark;
use cxl_shm::units::NodeId;
use kv_cache::{Metrics, ProcessState};

use crate::binding::Binding;
use crate::dma::HostDma;
use crate::options::{AsyncOptions, SessionOptions};
use crate::pool::{Pool, PoolError};
use crate::session::{OpenError, Prefetches};
use desk::Guest;
use lanes::{Lanes, Started};
use readiness::Waiting;
use request::Request;
use restores::NewWork;
use turns::Lane;

pub use arrivals::{Arrivals, LayeredFetch, Stopped};
pub use buffers::{Destination, Source};
pub use completion::{Completion, Lost, Share};
pub use engine::AsyncEngine;
#[cfg(feature = "cuda")]
pub use gpu::{Gpu, GpuError};
pub use prefetch::AsyncPrefetch;
#[cfg(feature = "cuda")]
pub(crate) use readiness::Opener;
pub use readiness::{LayeredPublish, LayeredPublished};
pub use session::{AsyncSession, Fetched, Published, Releaser};
pub use submit::{SubmitError, SubmitErrorKind};

/// This process, attached to a pool, for sessions that do not wait: for all its threads. Clones are
/// the same attachment.
///
/// It ends with [`close`](Self::close), or when the last clone and the last session are dropped:
/// what waits in the queues is done, and then the process leaves the pool.
///
/// A child made by `fork` is not attached: every call in it is refused
/// ([`SubmitErrorKind::Forked`]).
///
/// # Example
/// ```no_run
/// use rackline::{AsyncOptions, AsyncPool, BlockHash, NewBlock, SessionOptions};
///
/// # fn serve(options: SessionOptions) -> Result<(), Box<dyn std::error::Error>> {
/// let pool = AsyncPool::attach("/dev/dax0.0", 3, &AsyncOptions::new())?;
/// let session = pool.session(options)?; // of blocks of 368,640 bytes
/// let hash = BlockHash::new([7; 32]);
/// let publish = session.publish(vec![NewBlock { hash, depth: 0, bytes: vec![1; 368_640] }])?;
/// // ... the engine continues ...
/// assert_eq!(publish.wait()?.report?.available(), 1);
///
/// let found = session.lookup_and_hold(vec![hash])?.wait()??;
/// let fetch = session.fetch(found.blocks(), vec![vec![0; 368_640]])?;
/// let fetched = fetch.wait()?;
/// assert_eq!(fetched.report?.valid_blocks(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncPool {
    running: Arc<Running>,
}

/// The ways to the threads, and the thread that ends last.
type Serving = (Lanes, JoinHandle<()>);

/// The threads of an attached process.
#[derive(Debug)]
pub struct Running {
    /// Where they were started: a child made by `fork` has no threads.
    process: ProcessMark,
    node: NodeId,
    process_state: Arc<ProcessState>,
    prefetches: Arc<Prefetches>,
    /// Never dropped where `close` did not take them: a child made by `fork` leaves the queues of
    /// its parent alone. Their locks are in whatever state the fork found them.
    lanes: ManuallyDrop<Mutex<Option<Serving>>>,
    /// Where a waiting thread does its work itself.
    guest: Arc<Guest>,
    /// Of the pool. None of them can wait for its own end.
    threads: Vec<ThreadId>,
    /// Held until the pool is left. A second call of `close` waits for the first.
    closing: Mutex<()>,
    #[cfg(feature = "cuda")]
    gpus: gpu::Gpus,
    publishes_by_layers: bool,
    block_bytes_max: u64,
    share_bytes: u64,
    waiting: Waiting,
}

impl AsyncPool {
    /// Attaches to the pool at `path` as a process of `node`, and starts its threads.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn attach(
        path: impl AsRef<Path>,
        node: u16,
        options: &AsyncOptions,
    ) -> Result<Self, PoolError> {
        options.check()?;
        let pool = Pool::attach_with(path, node, options.pool())?;
        let (node, process_state) = (pool.node(), Arc::clone(pool.process_state()));
        let region = pool.attachment().region();
        let binding = options.binds_threads().then(|| Binding::of(region)).flatten();
        #[cfg(feature = "cuda")]
        let fabric = region.fabric().clone();
        let block_bytes_max = pool.block_bytes_max();
        let (share_bytes, prefetches) = (pool.share_bytes(), Arc::clone(pool.prefetches()));
        let Started { lanes, guest, keeper, threads } =
            lanes::start(pool, options, binding.as_ref())?;
        let lanes = ManuallyDrop::new(Mutex::new(Some((lanes, keeper))));
        // Not before: what it has is let go by `close` alone, and the pool would stay mapped.
        #[cfg(feature = "cuda")]
        let gpus = gpu::Gpus::new(fabric, binding);
        let running = Running {
            process: ProcessMark::of_this(),
            node,
            process_state,
            prefetches,
            lanes,
            guest,
            threads,
            closing: Mutex::new(()),
            #[cfg(feature = "cuda")]
            gpus,
            publishes_by_layers: options.publishes_by_layers(),
            block_bytes_max,
            share_bytes,
            waiting: Waiting::default(),
        };
        Ok(Self { running: Arc::new(running) })
    }

    /// A session for the blocks of one model and namespace, in the memory of this process.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn session(&self, options: SessionOptions) -> Result<AsyncSession, OpenError> {
        self.check_open()?;
        OpenError::check(&options, self.running.block_bytes_max)?;
        Ok(AsyncSession::new(Arc::clone(&self.running), options))
    }

    /// Whether this process is attached by this pool.
    ///
    /// # Errors
    /// [`OpenError::Forked`], [`OpenError::Closed`].
    pub fn check_open(&self) -> Result<(), OpenError> {
        if self.running.is_forked() {
            return Err(OpenError::Forked);
        }
        if self.running.is_closed() { Err(OpenError::Closed) } else { Ok(()) }
    }

    /// Opens GPU number `number`, as CUDA counts in this process, for blocks in its memory; or
    /// finds it open. The first time a piece of the pool is registered with the driver; where that is
    /// refused the GPU reaches the pool through a buffer: [`Gpu::reach`]. Other pieces are registered
    /// when they are used, or now, which takes seconds for a large pool
    /// ([`CudaOptions`](crate::cuda::CudaOptions)).
    ///
    /// # Errors
    /// [`GpuError`]; `GpuError::Cuda(CudaError::Absent)` on a machine without a driver.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self, number: usize) -> Result<Gpu, GpuError> {
        self.running.gpu(number)
    }

    /// The node this process belongs to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.running.node
    }

    /// Bytes of the pool's memory for blocks, divided by the number of nodes of the region. Also of
    /// a pool that is closed.
    #[must_use]
    pub fn share_bytes(&self) -> u64 {
        self.running.share_bytes
    }

    /// Whether the region has room to announce blocks on drives, so that a lookup may wait for them
    /// ([`AsyncSession::lookup_and_restore`]). False when the pool was closed.
    #[must_use]
    pub fn has_drives(&self) -> bool {
        self.running.restores().is_ok_and(|restores| restores.is_some())
    }

    /// What this process did with the pool so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.running.process_state.metrics()
    }

    /// Takes no more work, waits until what was taken up is done, and leaves the pool. Publishes by
    /// layers that were not finished are aborted. Sessions that remain are refused everything
    /// ([`SubmitErrorKind::Closed`]). Every caller of this waits until the pool is left, also where
    /// another thread called it before.
    ///
    /// A [`Source`] or [`Destination`] may own its pool, and close or drop it on a thread of the
    /// pool. That call returns at once, and the pool is left when its threads have ended.
    pub fn close(&self) {
        self.running.close();
    }
}

impl Running {
    /// Whether this is a child of the process that attached.
    fn is_forked(&self) -> bool {
        !self.process.is_of_this()
    }

    fn submit(&self, lane: Lane, request: Arc<dyn Request>) -> Result<(), SubmitErrorKind> {
        if self.is_forked() {
            return Err(SubmitErrorKind::Forked);
        }
        let lanes = self.lanes();
        let Some((lanes, _)) = &*lanes else { return Err(SubmitErrorKind::Closed) };
        lanes.submit(lane, request)
    }

    /// The CPU's engine. Only the queues keep it: a closed pool is not mapped any more.
    fn host_dma(&self) -> Result<HostDma, SubmitErrorKind> {
        // Before the lock, which a fork may have found held by another thread.
        if self.is_forked() {
            return Err(SubmitErrorKind::Forked);
        }
        let lanes = self.lanes();
        lanes.as_ref().map(|(lanes, _)| lanes.dma().clone()).ok_or(SubmitErrorKind::Closed)
    }

    /// Whether no work is taken up any more.
    fn restores(&self) -> Result<Option<Sender<NewWork>>, SubmitErrorKind> {
        if self.is_forked() {
            return Err(SubmitErrorKind::Forked);
        }
        let lanes = self.lanes();
        lanes.as_ref().map(|(lanes, _)| lanes.restores().cloned()).ok_or(SubmitErrorKind::Closed)
    }

    fn is_closed(&self) -> bool {
        self.lanes().is_none()
    }

    fn lanes(&self) -> MutexGuard<'_, Option<Serving>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        if self.is_forked() {
            return;
        }
        // The memory of a transfer may close its pool, or drop the last handle of it. The pool is
        // left when the threads have ended, and no thread waits for itself.
        let works = self.threads.contains(&thread::current().id()) || self.guest.is_this_thread();
        let waits = !works;
        let _closing = waits.then(|| self.closing.lock().unwrap_or_else(PoisonError::into_inner));
        let running = self.lanes().take();
        if let Some((lanes, keeper)) = running {
            drop(lanes);
            self.waiting.abort_all();
            if waits {
                // If it panicked, that was printed.
                let _ = keeper.join();
            }
        }
        #[cfg(feature = "cuda")]
        self.gpus.close();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close();
    }
}
