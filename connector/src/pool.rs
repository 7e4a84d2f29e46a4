//! A process attached to a real pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{MappedFabric, MappedHostMemory};
use cxl_shm::member::{AttachError, Attachment, LocalMember, ProcLiveness};
use kv_cache::{Cache, Local, reclaim_dead_processes};

use crate::dma::HostDma;
use crate::session::{Session, SessionOptions};

/// The cache of a real pool.
pub type LocalCache<'p> = Cache<'p, MappedFabric, MappedHostMemory, ProcLiveness>;
/// A session on a real pool, whose bytes the CPU copies.
pub type LocalSession<'p> =
    Session<'p, MappedFabric, MappedHostMemory, ProcLiveness, HostDma, SystemClock>;

/// How often a process looks whether others of its host have died.
const RECLAIM_MS: u64 = 500;
/// How long the end of a process waits at most for its background thread.
const STOP_MS: u64 = 20;

/// Why a process is not attached to a pool. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The region is not to be had.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The region is not a KV cache, or one of another version.
    #[error(transparent)]
    Cache(#[from] kv_cache::AttachError),
    /// No thread for the reclaimer.
    #[error("cannot start the thread that reclaims what dead processes held: {0}")]
    Thread(std::io::Error),
}

/// This process, attached to a pool. Leaves when dropped.
///
/// Two background threads: one beats the heart of the host if it is this process's turn, one
/// reclaims what processes of this host that died were writing.
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
/// let found = session.lookup(&[BlockHash::new([7; 32])]);
/// println!("{} blocks of the prompt are in the pool", found.blocks().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    reclaimer: Option<Reclaimer>,
    dma: HostDma,
    clock: SystemClock,
    local: Arc<Local>,
    attachment: Attachment,
}

#[derive(Debug)]
struct Reclaimer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<LocalMember>,
}

impl Pool {
    /// Attaches to the pool at `path` as a process of `node`.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn attach(path: &Path, node: u16) -> Result<Self, PoolError> {
        let attachment = Attachment::attach(path, node)?;
        let clock = SystemClock::start();
        // First of all, so that a registry full of the dead has room for us.
        reclaim_dead_processes(attachment.member(), &clock);
        // Refused here, before anything is started, when the region is not a cache.
        let local = Arc::clone(Cache::attach(attachment.member(), &clock)?.local());
        let dma = HostDma::new(attachment.region().fabric().clone());
        let mut pool = Self { reclaimer: None, dma, clock, local, attachment };
        pool.reclaimer = Some(pool.start_reclaimer()?);
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

    /// The attachment below.
    #[must_use]
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    fn start_reclaimer(&self) -> Result<Reclaimer, PoolError> {
        let member = self.attachment.join_thread()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let reclaim = move || {
            let clock = SystemClock::start();
            for turn in 0u64.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                if turn % (RECLAIM_MS / STOP_MS) == 0 {
                    reclaim_dead_processes(&member, &clock);
                }
                clock.sleep_ms(STOP_MS);
            }
            member
        };
        let builder = std::thread::Builder::new().name("rackline-reclaim".to_owned());
        let thread = builder.spawn(reclaim).map_err(PoolError::Thread)?;
        Ok(Reclaimer { stop, thread })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(Reclaimer { stop, thread }) = self.reclaimer.take() else { return };
        stop.store(true, Ordering::Relaxed);
        // If it panicked, that was printed, and its place in the registry falls to the next
        // process that reclaims.
        if let Ok(member) = thread.join() {
            self.attachment.leave_thread(member);
        }
    }
}
