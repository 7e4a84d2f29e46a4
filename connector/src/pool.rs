//! A process attached to a pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cxl_shm::clock::SystemClock;
use cxl_shm::lifecycle::{AttachError, Attachment, LocalMember};
use cxl_shm::node::MappedBackend;
use cxl_shm::units::NodeId;
use kv_cache::{
    AttachedCache, Cache, Metrics, ProcessState, TooManyQuotas, Watermarks, reclaim_dead_processes,
};

use crate::dma::HostDma;
#[cfg(feature = "cuda")]
use crate::dma::cuda::{CudaDma, CudaError};
use crate::options::{OptionsError, PoolOptions, SessionOptions};
use crate::page_tables::Filling;
use crate::session::{OpenError, Prefetches, Session, SessionCore};
use crate::spawn::spawn_with;

/// The cache of a real pool.
#[doc(hidden)]
pub type LocalCache<'p> = Cache<'p, MappedBackend>;

/// How often a process looks whether others of its host have died.
const RECLAIM_MS: u64 = 500;
/// How often a process looks whether memory of its node's chunks has failed under others.
const FAILED_CHUNKS_MS: u64 = 5000;
/// How long the upkeep thread rests between two turns.
const UPKEEP_MS: u64 = 20;
/// How long upkeep waits in a turn for a lock between hosts, or a chunk of another node, at a time.
/// The end of the process waits for the turn, which may take that long several times over.
const UPKEEP_CHUNK_TIMEOUT_MS: u64 = 100;

/// Why a process is not attached to a pool. Nothing is changed then, but quotas that were set
/// before [`Quotas`](Self::Quotas) stay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The region cannot be opened or joined.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The region is not a KV cache, or one of another version.
    #[error(transparent)]
    Cache(#[from] kv_cache::AttachError),
    /// More namespaces with quotas than there is room for.
    #[error(transparent)]
    Quotas(#[from] TooManyQuotas),
    /// Options out of range.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// No thread for the upkeep, or for transfers.
    #[error("cannot start a background thread of the pool: {0}")]
    Thread(std::io::Error),
}

/// This process, attached to a pool, for sessions that wait. It leaves the pool when it is dropped.
///
/// Attaching takes the places of three threads of the host's 256: the caller, a thread that beats
/// the heartbeat of the host when that is this process's turn, and one that keeps the node's part
/// of the pool. The last one evicts blocks between the [watermarks](PoolOptions::with_watermarks),
/// and reclaims what processes of this host that died or left were writing or holding.
///
/// A pool may move to another thread. Threads do not share it: [`AsyncPool`](crate::AsyncPool) is
/// for that. Attach once a process. A child made by `fork` must not use its parent's pool or
/// sessions; dropped there, they leave everything to the parent.
///
/// # Example
/// ```no_run
/// use rackline::{Attention, BlockHash, Dtype, KvGeometry, Pool, SessionOptions};
///
/// let pool = Pool::attach("/dev/dax0.0", 3)?;
/// let heads = Attention::Heads { kv_heads: 3, head_dim: 64 };
/// let kv = KvGeometry::new(30, heads, Dtype::F16, 16)?;
/// let model = kv.model("SmolLM2-135M-Instruct", "1", 1);
/// let session = pool.session(SessionOptions::new(model, kv.rank_block_bytes()))?;
/// let found = session.lookup(&[BlockHash::new([7; 32])])?;
/// println!("{} blocks of the prompt are in the pool", found.blocks().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    upkeep: Option<Upkeep>,
    filling: Option<Filling>,
    dma: HostDma,
    clock: SystemClock,
    prefetches: Arc<Prefetches>,
    /// Attached once, by this thread's membership.
    cache: AttachedCache,
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
    /// `path` is a devdax device or a file. Every host of the rack has a node number of its own,
    /// from 0, and the processes of the host share it.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn attach(path: impl AsRef<Path>, node: u16) -> Result<Self, PoolError> {
        Self::attach_with(path, node, &PoolOptions::new())
    }

    /// Attaches to the pool at `path` as a process of `node`.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn attach_with(
        path: impl AsRef<Path>,
        node: u16,
        options: &PoolOptions,
    ) -> Result<Self, PoolError> {
        options.check()?;
        let attachment = Attachment::attach(path.as_ref(), node)?;
        let clock = SystemClock::start();
        // First of all, so that a registry full of the dead has room for us.
        reclaim_dead_processes(attachment.member(), &clock);
        // Refused here, before anything is started, when the region is not a cache.
        let cache = Cache::attach(attachment.member(), &clock)?;
        for (namespace, quota) in options.quotas() {
            cache.set_quota(&clock, namespace, Some(*quota))?;
        }
        let cache = cache.attached();
        let dma = HostDma::new(attachment.region().fabric().clone());
        let filling = Filling::start(attachment.region()).map_err(PoolError::Thread)?;
        let prefetches = Arc::new(Prefetches::of_share(share_bytes_of(&attachment)));
        let mut pool = Self { upkeep: None, filling, dma, clock, prefetches, cache, attachment };
        pool.upkeep = Some(pool.start_upkeep(options.watermarks())?);
        Ok(pool)
    }

    #[cfg(test)]
    pub(crate) fn wait_for_page_tables(&mut self) {
        self.filling.take().expect("a file in memory has page tables to fill").wait();
    }

    /// A session for the blocks of one model and namespace, which the CPU copies.
    ///
    /// # Errors
    /// [`OpenError::Length`], [`OpenError::Options`], [`OpenError::Forked`].
    pub fn session(&self, options: SessionOptions) -> Result<Session<'_>, OpenError> {
        self.check(&options)?;
        let session = SessionCore::new(&self.cache(), &self.dma, &self.clock, options);
        Ok(session.sharing(&self.prefetches))
    }

    /// A session whose blocks a GPU copies, with an engine of [`cuda`](Self::cuda).
    ///
    /// # Errors
    /// [`OpenError::Length`], [`OpenError::Options`], [`OpenError::Forked`].
    ///
    /// # Panics
    /// When the engine is one of another pool.
    #[cfg(feature = "cuda")]
    pub fn cuda_session<'p>(
        &'p self,
        dma: &'p CudaDma,
        options: SessionOptions,
    ) -> Result<Session<'p, CudaDma>, OpenError> {
        assert!(dma.is_over(self.attachment.region().fabric()), "an engine of another pool");
        self.check(&options)?;
        let session = SessionCore::new(&self.cache(), dma, &self.clock, options);
        Ok(session.sharing(&self.prefetches))
    }

    /// The copy engines of GPU number `gpu`, over the memory of this pool: for a process whose
    /// blocks are on that GPU. It keeps the pool mapped while it lives.
    ///
    /// # Errors
    /// [`CudaError`]; [`CudaError::Absent`] on a machine without a driver.
    ///
    /// # Example
    /// ```no_run
    /// use rackline::cuda::{DeviceSource, EngineStream};
    /// use rackline::{BlockHash, NewBlock, Pool, SessionOptions};
    ///
    /// # fn publish(
    /// #     options: SessionOptions, hash: BlockHash, address: u64, handle: u64,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Pool::attach("/dev/dax0.0", 3)?;
    /// let dma = pool.cuda(0)?;
    /// let session = pool.cuda_session(&dma, options)?;
    ///
    /// // SAFETY: a tensor of this engine, on the stream that computes it; both outlive the call.
    /// let (part, stream) =
    ///     unsafe { (DeviceSource::new(address, 2 << 20), EngineStream::new(handle)) };
    /// dma.after(stream)?;
    /// let report = session.publish(&[NewBlock { hash, depth: 0, bytes: [part] }])?;
    /// assert_eq!(report.available(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "cuda")]
    pub fn cuda(&self, gpu: usize) -> Result<CudaDma, CudaError> {
        CudaDma::new(self.attachment.region().fabric().clone(), gpu)
    }

    /// The node this process belongs to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.attachment.node()
    }

    /// What this process did with the pool so far, in all its sessions.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.process_state().metrics()
    }

    /// The attachment below. For sibling crates: no semver.
    #[doc(hidden)]
    #[must_use]
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// The cache below. For sibling crates: no semver.
    #[doc(hidden)]
    #[must_use]
    pub fn cache(&self) -> LocalCache<'_> {
        self.cache.through(self.attachment.member())
    }

    /// What the process knows of the pool.
    pub(crate) fn process_state(&self) -> &Arc<ProcessState> {
        self.cache.process_state()
    }

    /// The DMA engine.
    pub(crate) fn dma(&self) -> &HostDma {
        &self.dma
    }

    /// The one clock of the process: holds are timed from when any of its threads saw them.
    pub(crate) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    /// What its sessions share about prefetches.
    pub(crate) fn prefetches(&self) -> &Arc<Prefetches> {
        &self.prefetches
    }

    /// The longest block that the region has room for.
    pub(crate) fn block_bytes_max(&self) -> u64 {
        let chunk_bytes = self.attachment.member().layout().geometry().chunk_bytes;
        chunk_bytes.min(u64::from(u32::MAX))
    }

    /// Bytes of the pool's memory for blocks, divided by the number of nodes of the region.
    #[must_use]
    pub fn share_bytes(&self) -> u64 {
        share_bytes_of(&self.attachment)
    }

    fn check(&self, options: &SessionOptions) -> Result<(), OpenError> {
        if self.attachment.is_forked() {
            return Err(OpenError::Forked);
        }
        OpenError::check(options, self.block_bytes_max())
    }

    /// A membership and a cache more, for one thread at a time. The membership is for
    /// [`Attachment::leave_thread`].
    pub(crate) fn join_beside(&self) -> Result<(AttachedCache, LocalMember), PoolError> {
        let member = self.attachment.join_thread()?;
        let process_state = Arc::clone(self.process_state());
        match Cache::attach_beside(&member, &self.clock, process_state) {
            Ok(cache) => Ok((cache.attached(), member)),
            Err(error) => {
                self.attachment.leave_thread(member);
                Err(error.into())
            }
        }
    }

    /// Starts a thread with a membership and a cache of its own. What it returns is for
    /// [`Attachment::leave_thread`]. For sibling crates: no semver.
    ///
    /// # Errors
    /// [`PoolError`]: the region has no place left for a thread, or the system has none.
    #[doc(hidden)]
    pub fn start_thread(
        &self,
        name: &str,
        run: impl FnOnce(&LocalCache<'_>, &SystemClock) + Send + 'static,
    ) -> Result<JoinHandle<LocalMember>, PoolError> {
        // By this thread, whose caller hears of a refusal.
        let (cache, member) = self.join_beside()?;
        let clock = self.clock;
        let body = move |(cache, member): (AttachedCache, LocalMember)| {
            run(&cache.through(&member), &clock);
            member
        };
        spawn_with(name, (cache, member), body).map_err(|(error, (_, member))| {
            self.attachment.leave_thread(member);
            PoolError::Thread(error)
        })
    }

    fn start_upkeep(&self, watermarks: Watermarks) -> Result<Upkeep, PoolError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = self.start_thread("rackline-upkeep", move |cache, clock| {
            keep_up(cache, *clock, watermarks, &stopped);
        })?;
        Ok(Upkeep { stop, thread })
    }
}

/// Until it is stopped.
fn share_bytes_of(attachment: &Attachment) -> u64 {
    let layout = attachment.member().layout();
    layout.payload().bytes() / u64::from(layout.geometry().nodes)
}

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
            if cache.has_faults_to_note() || turn % (FAILED_CHUNKS_MS / UPKEEP_MS) == 0 {
                cache.retire_failed_chunks(&clock, UPKEEP_CHUNK_TIMEOUT_MS);
            }
        }
        cache.upkeep(&clock, watermarks, UPKEEP_CHUNK_TIMEOUT_MS);
        clock.sleep_ms(UPKEEP_MS);
    }
    // The next holder of the lock carries out what was dropped since the last turn. No thread of
    // this process takes the lock after this.
    if cache.member().check_member().is_ok() {
        cache.abort(&clock, Vec::new());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.attachment.is_forked() {
            // The thread is not in this process, and cannot be waited for.
            std::mem::forget(self.upkeep.take());
            self.filling.take().into_iter().for_each(Filling::forget);
            return;
        }
        let Some(Upkeep { stop, thread }) = self.upkeep.take() else { return };
        stop.store(true, Ordering::Relaxed);
        // If it panicked, that was printed, and its place in the registry falls to the next
        // process that reclaims.
        if let Ok(member) = thread.join() {
            self.attachment.leave_thread(member);
        }
    }
}
