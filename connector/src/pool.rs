//! A process attached to a real pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{MappedFabric, MappedHostMemory};
use cxl_shm::member::{AttachError, Attachment, LocalMember, ProcLiveness};
use kv_cache::evict::{Quota, TooManyQuotas, Watermarks};
use kv_cache::{Cache, Local, Namespace, reclaim_dead_processes};

use crate::dma::HostDma;
use crate::dma::cuda::{CudaDma, CudaError};
use crate::session::{Session, SessionOptions};

/// The cache of a real pool.
pub type LocalCache<'p> = Cache<'p, MappedFabric, MappedHostMemory, ProcLiveness>;
/// A session on a real pool, whose bytes the CPU copies.
pub type LocalSession<'p> =
    Session<'p, MappedFabric, MappedHostMemory, ProcLiveness, HostDma, SystemClock>;
/// A session on a real pool, whose bytes a GPU copies.
pub type CudaSession<'p> =
    Session<'p, MappedFabric, MappedHostMemory, ProcLiveness, CudaDma, SystemClock>;

/// How often a process looks whether others of its host have died.
const RECLAIM_MS: u64 = 500;
/// How long it rests between two turns of looking after this node's part of the pool.
const UPKEEP_MS: u64 = 20;
/// How long it waits in such a turn for a lock between hosts, or a chunk of another node, at a time.
/// The end of the process waits for the turn, which may take that long several times over.
const UPKEEP_CHUNK_TIMEOUT_MS: u64 = 100;

/// How a process keeps its node's part of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// Between which levels of use blocks are evicted in the background.
    pub watermarks: Watermarks,
    /// How much of this node's payload namespaces may keep when room is short. For all processes of
    /// the host, until another one says otherwise.
    pub quotas: Vec<(Namespace, Quota)>,
}

/// Why a process is not attached to a pool. Nothing is changed then, but quotas that were set before
/// [`Quotas`](Self::Quotas) stay.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The region is not to be had.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The region is not a KV cache, or one of another version.
    #[error(transparent)]
    Cache(#[from] kv_cache::AttachError),
    /// More namespaces with quotas than there is room for.
    #[error(transparent)]
    Quotas(#[from] TooManyQuotas),
    /// Options that cannot be.
    #[error(transparent)]
    Options(#[from] crate::transfer::OptionsError),
    /// No thread for the upkeep, or for transfers.
    #[error("cannot start a thread that looks after the pool or copies: {0}")]
    Thread(std::io::Error),
}

/// This process, attached to a pool. Leaves when dropped.
///
/// Two background threads: one beats the heart of the host if it is this process's turn, one looks
/// after the node's part of the pool ([`Cache::upkeep`]) and reclaims what processes of this host
/// that died or left were writing or holding.
///
/// # Example
/// ```no_run
/// use connector::pool::Pool;
/// use connector::session::SessionOptions;
/// use kv_cache::{BlockHash, Namespace};
///
/// let pool = Pool::attach("/dev/dax0.0".as_ref(), 3)?;
/// let cache = pool.cache()?;
/// let model = kv_cache::Model {
///     name: "SmolLM2-135M-Instruct", revision: "1", dtype: "f16", layout_version: 1,
///     block_tokens: 16, tensor_parallel_rank: 0, tensor_parallel_size: 1, layers: 30,
///     kv_heads: 3, head_dim: 64,
/// };
/// let session = pool.session(&cache, SessionOptions {
///     model: model.fingerprint(),
///     namespace: Namespace::default(),
///     block_bytes: 368_640,
///     chunk_timeout_ms: 2000,
/// });
/// let found = session.lookup(&[BlockHash::new([7; 32])])?;
/// println!("{} blocks of the prompt are in the pool", found.blocks().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    upkeep: Option<Upkeep>,
    dma: HostDma,
    clock: SystemClock,
    local: Arc<Local>,
    attachment: Attachment,
}

#[derive(Debug)]
struct Upkeep {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<LocalMember>,
}

impl Pool {
    /// Attaches to the pool at `path` as a process of `node`, with the usual [`PoolOptions`].
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn attach(path: &Path, node: u16) -> Result<Self, PoolError> {
        Self::attach_with(path, node, &PoolOptions::default())
    }

    /// Attaches to the pool at `path` as a process of `node`.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn attach_with(path: &Path, node: u16, options: &PoolOptions) -> Result<Self, PoolError> {
        let attachment = Attachment::attach(path, node)?;
        let clock = SystemClock::start();
        // First of all, so that a registry full of the dead has room for us.
        reclaim_dead_processes(attachment.member(), &clock);
        // Refused here, before anything is started, when the region is not a cache.
        let cache = Cache::attach(attachment.member(), &clock)?;
        for (namespace, quota) in &options.quotas {
            cache.set_quota(&clock, namespace, Some(*quota))?;
        }
        let local = Arc::clone(cache.local());
        let dma = HostDma::new(attachment.region().fabric().clone());
        let mut pool = Self { upkeep: None, dma, clock, local, attachment };
        pool.upkeep = Some(pool.start_upkeep(options.watermarks)?);
        Ok(pool)
    }

    /// The cache. One at a time: a second one frees what the first is writing.
    ///
    /// # Errors
    /// [`PoolError::Cache`].
    pub fn cache(&self) -> Result<LocalCache<'_>, PoolError> {
        let local = Arc::clone(&self.local);
        Ok(Cache::attach_beside(self.attachment.member(), &self.clock, local)?)
    }

    /// A session for the blocks of one model and namespace.
    #[must_use]
    pub fn session<'p>(
        &'p self,
        cache: &'p LocalCache<'p>,
        options: SessionOptions,
    ) -> LocalSession<'p> {
        Session::new(cache, &self.dma, &self.clock, options)
    }

    /// A session whose bytes a GPU copies, with an engine of [`cuda`](Self::cuda).
    ///
    /// # Panics
    /// When the engine is one of another pool.
    #[must_use]
    pub fn cuda_session<'p>(
        &'p self,
        cache: &'p LocalCache<'p>,
        dma: &'p CudaDma,
        options: SessionOptions,
    ) -> CudaSession<'p> {
        assert!(dma.is_over(self.attachment.region().fabric()), "an engine of another pool");
        Session::new(cache, dma, &self.clock, options)
    }

    /// The copy engines of GPU number `gpu`, over the memory of this pool: for a process whose
    /// blocks are on that GPU. It keeps the pool mapped while it lives.
    ///
    /// # Errors
    /// [`CudaError`]; [`CudaError::Absent`] on a machine without a driver.
    ///
    /// # Example
    /// ```no_run
    /// use connector::dma::cuda::{DeviceSource, EngineStream};
    /// use connector::pool::Pool;
    /// use connector::session::{PublishBlock, SessionOptions};
    /// use kv_cache::BlockHash;
    ///
    /// # fn publish(
    /// #     options: SessionOptions, hash: BlockHash, address: u64, handle: u64,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Pool::attach("/dev/dax0.0".as_ref(), 3)?;
    /// let (cache, dma) = (pool.cache()?, pool.cuda(0)?);
    /// let session = pool.cuda_session(&cache, &dma, options);
    ///
    /// // SAFETY: a tensor of this engine, on the stream that computes it; both outlive the call.
    /// let (part, stream) =
    ///     unsafe { (DeviceSource::new(address, 2 << 20), EngineStream::new(handle)) };
    /// dma.after(stream)?;
    /// let report = session.publish(&[PublishBlock { hash, depth: 0, parts: &[part] }])?;
    /// assert_eq!(report.available(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cuda(&self, gpu: usize) -> Result<CudaDma, CudaError> {
        CudaDma::new(self.attachment.region().fabric().clone(), gpu)
    }

    /// The attachment below.
    #[must_use]
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// What the process knows of the pool.
    pub(crate) fn local(&self) -> &Arc<Local> {
        &self.local
    }

    /// The DMA engine.
    pub(crate) fn dma(&self) -> &HostDma {
        &self.dma
    }

    /// The one clock of the process: holds are timed from when any of its threads saw them.
    pub(crate) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    /// Starts a thread with a membership and a cache of its own. What it returns is for
    /// [`Attachment::leave_thread`].
    pub(crate) fn start_thread(
        &self,
        name: &str,
        run: impl FnOnce(&LocalCache<'_>, &HostDma, &SystemClock) + Send + 'static,
    ) -> Result<JoinHandle<LocalMember>, PoolError> {
        let member = self.attachment.join_thread()?;
        // Refused here, where somebody hears of it.
        Cache::attach_beside(&member, &self.clock, Arc::clone(&self.local))?;
        let (clock, local, dma) = (self.clock, Arc::clone(&self.local), self.dma.clone());
        let body = move || {
            // As it was a moment ago: it says no only to a region or host tier of another version.
            if let Ok(cache) = Cache::attach_beside(&member, &clock, local) {
                run(&cache, &dma, &clock);
            }
            member
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(PoolError::Thread)
    }

    fn start_upkeep(&self, watermarks: Watermarks) -> Result<Upkeep, PoolError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = self.start_thread("rackline-upkeep", move |cache, _, clock| {
            keep_up(cache, *clock, watermarks, &stopped);
        })?;
        Ok(Upkeep { stop, thread })
    }
}

/// Until it is stopped.
fn keep_up(
    cache: &LocalCache<'_>,
    clock: SystemClock,
    watermarks: Watermarks,
    stopped: &AtomicBool,
) {
    for turn in 0u64.. {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        if turn % (RECLAIM_MS / UPKEEP_MS) == 0 {
            reclaim_dead_processes(cache.member(), &clock);
            // Also while an update of the chunk table is open, for which the other call waits.
            cache.reclaim_unfinished(&clock);
        }
        cache.upkeep(&clock, watermarks, UPKEEP_CHUNK_TIMEOUT_MS);
        clock.sleep_ms(UPKEEP_MS);
    }
    // What was dropped since the last turn is carried out by whoever takes the lock: nobody of this
    // process does after this.
    if cache.member().check_member().is_ok() {
        cache.abort(&clock, Vec::new());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(Upkeep { stop, thread }) = self.upkeep.take() else { return };
        stop.store(true, Ordering::Relaxed);
        // If it panicked, that was printed, and its place in the registry falls to the next
        // process that reclaims.
        if let Ok(member) = thread.join() {
            self.attachment.leave_thread(member);
        }
    }
}
