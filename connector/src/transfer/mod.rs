//! Transfers: a pool attached for engines that must not wait.
//!
//! A [`Session`](crate::session::Session) does its work on the thread that calls, and belongs to
//! it. An engine has threads of its own, several at that, and a scheduler that must never be held
//! up. [`Transfers`] attaches the process once and works on threads of its own; every call of a
//! [`TransferSession`] returns at once with a [`Completion`].
//!
//! Queues are bounded: when one is full the call gives back what it was given
//! ([`SubmitError::Busy`]). For a publish that is a block fewer in the pool, for a lookup a miss.
//! Fetches go before publishes, and at least one thread takes nothing else unless it was asked not to:
//! a publish may wait for memory that other hosts grant.
//!
//! An engine that computes layer by layer fetches and publishes so
//! ([`fetch_by_layers`](TransferSession::fetch_by_layers),
//! [`publish_by_layers`](TransferSession::publish_by_layers)): it waits for each layer of what it fetches
//! when it needs it, and says of each layer of what it publishes when it is there. When a fetch ends, so
//! does every wait for its layers; when a publish is finished, aborted or dropped, or the pool is closed,
//! so does the wait of the thread that copies it. Until then publishes by layers behind it wait, and
//! nothing else does. For memory of a GPU: `gpu_layers.rs`.

mod arrivals;
mod buffers;
mod completion;
mod gpu;
mod gpu_layers;
mod lanes;
mod layered;
mod options;
mod readiness;
mod session;

#[cfg(test)]
mod layered_tests;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use cxl_shm::fork::ProcessMark;
use cxl_shm::units::NodeId;
use kv_cache::{Local, Metrics};

use crate::pool::{Pool, PoolError};
use crate::session::SessionOptions;
use gpu::Gpus;
use lanes::{Lane, Lanes, Work};
use readiness::Waiting;

pub use arrivals::{Arrivals, LayeredFetch, Stopped};
pub use buffers::{Destination, LayerSource, Source};
pub use completion::{Completion, Lost};
pub use gpu::{Gpu, GpuDestination, GpuError, GpuSource, GpuSubmitError};
pub use gpu_layers::{GpuLayerSource, GpuLayeredPublish, GpuLayeredSubmitError};
pub use layered::LayeredSubmitError;
pub use options::{
    COPY_THREADS_MAX, OptionsError, QUEUE_DEPTH_MAX, QUOTA_BYTES_MAX, TransferOptions,
};
pub use readiness::{LayeredPublish, LayeredPublished};
pub use session::{Fetched, NewBlock, Published, SubmitError, TransferSession};

/// A process attached to a pool, for all its threads. Clones are the same attachment.
///
/// It ends with [`close`](Self::close), or when the last clone and the last session are dropped:
/// what waits in the queues is done, and then the process leaves the pool.
///
/// A child made by `fork` is not attached: every call in it is refused ([`SubmitError::Forked`]).
///
/// # Example
/// ```no_run
/// use connector::session::SessionOptions;
/// use connector::transfer::{NewBlock, TransferOptions, Transfers};
/// use kv_cache::{BlockHash, Model, Namespace};
///
/// let transfers = Transfers::attach("/dev/dax0.0".as_ref(), 3, TransferOptions::default())?;
/// # let model = Model {
/// #     name: "SmolLM2-135M-Instruct", revision: "1", dtype: "f16", layout_version: 1,
/// #     block_tokens: 16, tensor_parallel_rank: 0, tensor_parallel_size: 1, layers: 30,
/// #     kv_heads: 3, head_dim: 64,
/// # };
/// let session = transfers.session(SessionOptions {
///     model: model.fingerprint(),
///     namespace: Namespace::default(),
///     block_bytes: 368_640,
///     chunk_timeout_ms: 2000,
/// });
/// let hash = BlockHash::new([7; 32]);
/// let publish = session.publish(vec![NewBlock { hash, depth: 0, bytes: vec![1; 368_640] }])?;
/// // ... the engine goes on ...
/// assert_eq!(publish.wait()?.report?.available(), 1);
///
/// let found = session.lookup_and_hold(vec![hash])?.wait()??;
/// let fetch = session.fetch(found.blocks(), vec![vec![0; 368_640]])?;
/// let fetched = fetch.wait()?;
/// assert_eq!(fetched.report?.valid_blocks(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transfers {
    running: Arc<Running>,
}

/// The threads of an attached process.
#[derive(Debug)]
struct Running {
    /// Where they were started: a child made by `fork` has no threads.
    process: ProcessMark,
    node: NodeId,
    local: Arc<Local>,
    lanes: Mutex<Option<(Lanes, JoinHandle<()>)>>,
    /// Held until the pool is left. A second call of `close` waits for the first.
    closing: Mutex<()>,
    gpus: Gpus,
    publishes_by_layers: bool,
    block_bytes_max: u64,
    waiting: Waiting,
}

/// Why a session was not opened. Nothing is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The blocks are too long for the region, or have no bytes.
    #[error(
        "blocks of {block_bytes} bytes do not fit this region: a block needs 1 to {most_bytes} bytes, \
         which is a chunk of it; let blocks have fewer tokens, or format the region with a larger --chunk"
    )]
    Length {
        /// Length asked for, in bytes.
        block_bytes: u64,
        /// Longest possible, in bytes.
        most_bytes: u64,
    },
    /// As for [`SubmitError::Forked`].
    #[error("this process is a forked child of the one that attached: attach again in the child")]
    Forked,
    /// As for [`SubmitError::Closed`].
    #[error("the pool was closed in this process")]
    Closed,
}

impl Transfers {
    /// Attaches to the pool at `path` as a process of `node`, and starts its threads.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn attach(path: &Path, node: u16, options: TransferOptions) -> Result<Self, PoolError> {
        options.check()?;
        let pool = Pool::attach_with(path, node, &options.pool)?;
        let (node, local) = (pool.attachment().node(), Arc::clone(pool.local()));
        let fabric = pool.attachment().region().fabric().clone();
        let chunk_bytes = pool.attachment().member().layout().geometry().chunk_bytes;
        let block_bytes_max = chunk_bytes.min(u64::from(u32::MAX));
        let (lanes, keeper) = lanes::start(pool, &options)?;
        let (lanes, gpus) = (Mutex::new(Some((lanes, keeper))), Gpus::new(fabric));
        let (process, waiting) = (ProcessMark::of_this(), Waiting::default());
        let publishes_by_layers = options.publishes_by_layers;
        let running = Running {
            process,
            node,
            local,
            lanes,
            closing: Mutex::new(()),
            gpus,
            publishes_by_layers,
            block_bytes_max,
            waiting,
        };
        Ok(Self { running: Arc::new(running) })
    }

    /// A session as [`session`](Self::session), refused at once where no block of it could ever be
    /// published or fetched.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_session(&self, options: SessionOptions) -> Result<TransferSession, OpenError> {
        self.check_open()?;
        let (block_bytes, most_bytes) = (options.block_bytes, self.running.block_bytes_max);
        if !(1..=most_bytes).contains(&block_bytes) {
            return Err(OpenError::Length { block_bytes, most_bytes });
        }
        Ok(self.session(options))
    }

    /// Whether this process is attached by this.
    ///
    /// # Errors
    /// [`OpenError::Forked`], [`OpenError::Closed`].
    pub fn check_open(&self) -> Result<(), OpenError> {
        if self.running.is_forked() {
            return Err(OpenError::Forked);
        }
        if self.running.is_closed() { Err(OpenError::Closed) } else { Ok(()) }
    }

    /// A session for the blocks of one model and namespace. Of blocks that are longer than a chunk of
    /// the region none is ever published ([`open_session`](Self::open_session) refuses those).
    #[must_use]
    pub fn session(&self, options: SessionOptions) -> TransferSession {
        TransferSession::new(Arc::clone(&self.running), options)
    }

    /// Opens GPU number `number`, as CUDA counts in this process, for blocks in its memory; or finds
    /// it open. The first time takes seconds for a large pool: all of it is registered with the
    /// driver. Where that is refused the GPU reaches the pool through a buffer: [`Gpu::reach`].
    ///
    /// # Errors
    /// [`GpuError`]; `GpuError::Cuda(CudaError::Absent)` on a machine without a driver.
    pub fn gpu(&self, number: usize) -> Result<Gpu, GpuError> {
        self.running.gpu(number)
    }

    /// The node this process belongs to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.running.node
    }

    /// What this process did with the pool so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.running.local.metrics()
    }

    /// Takes no more work, waits until what was taken up is done, and leaves the pool. Publishes by
    /// layers that were not finished are aborted. Sessions that
    /// remain are refused everything ([`SubmitError::Closed`]). Every caller of this waits until the pool
    /// is left, also where another thread called it before.
    pub fn close(&self) {
        self.running.close();
    }
}

impl Running {
    /// Whether this is a child of the process that attached.
    fn is_forked(&self) -> bool {
        !self.process.is_of_this()
    }

    fn submit(&self, lane: Lane, work: Work) -> Result<(), SubmitError<()>> {
        if self.is_forked() {
            return Err(SubmitError::Forked(()));
        }
        let lanes = self.lanes();
        let Some((lanes, _)) = &*lanes else { return Err(SubmitError::Closed(())) };
        lanes.submit(lane, work)
    }

    /// Whether no work is taken up any more.
    fn is_closed(&self) -> bool {
        self.lanes().is_none()
    }

    fn lanes(&self) -> MutexGuard<'_, Option<(Lanes, JoinHandle<()>)>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        if self.is_forked() {
            // The threads are the parent's, and so are the locks of the queues, in whatever state the
            // fork found them.
            if let Ok(mut lanes) = self.lanes.try_lock() {
                std::mem::forget(lanes.take());
            }
            return;
        }
        let _closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let running = self.lanes().take();
        if let Some((lanes, keeper)) = running {
            drop(lanes);
            self.waiting.abort_all();
            // If it panicked, that was printed.
            let _ = keeper.join();
        }
        self.gpus.close();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close();
    }
}
