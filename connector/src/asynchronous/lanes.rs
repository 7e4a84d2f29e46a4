//! The queues of a process, and the threads that work on them.
//!
//! ```text
//! lookup, hold, release ----> rackline-lookup   (owns the Pool)
//! fetch   --+---------------> rackline-fetch-0 .. fetch_threads - 1
//!           +-- fetch first -> rackline-copy-0 .. copy_threads - 1
//! publish --+
//! publish by layers -------> rackline-layers   (if it was asked for)
//! lookup and restore ------> rackline-restore  (if the region has room for drives)
//! prefetch ----------------> the same
//! ```
//!
//! A publish by layers waits for the engine in the middle of its forward, and the forward may be
//! waiting for a fetch. So it has a thread of its own, behind which nothing else waits.
//!
//! Each thread is a member of the host tier of its own. The queues end when no thread can put
//! anything into them any more. What is in them by then is still done.
//!
//! Fetches and publishes are in pieces, of which each thread takes one at a time, of all requests in turns.
//! The thread that waits for a request takes pieces of it, too, at a desk of its own (`guest`).

use std::fmt;
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};

use crossbeam_channel::{Sender, bounded};
use cxl_shm::clock::SystemClock;
use cxl_shm::lifecycle::LocalMember;

use super::SubmitErrorKind;
use super::desk::{Desk, Guest, Place};
use super::request::Request;
use super::restores::{self, NewWork};
use super::turns::{Lane, Serves, Turns};
use crate::binding::Binding;
use crate::dma::HostDma;
use crate::options::AsyncOptions;
use crate::pool::{LocalCache, Pool, PoolError};
use crate::spawn::spawn_with;

/// The way into the queues. They end with it.
pub(super) struct Lanes {
    dma: HostDma,
    turns: Arc<Turns>,
    /// To the thread that waits for drives; `None` where the region has no room for drives.
    restores: Option<Sender<NewWork>>,
}

impl Lanes {
    /// What the CPU copies with.
    pub(super) fn dma(&self) -> &HostDma {
        &self.dma
    }

    /// Puts `request` into its queue, unless that is full.
    pub(super) fn submit(
        &self,
        lane: Lane,
        request: Arc<dyn Request>,
    ) -> Result<(), SubmitErrorKind> {
        self.turns.submit(lane, request)
    }

    /// The way to the thread that waits for drives.
    pub(super) fn restores(&self) -> Option<&Sender<NewWork>> {
        self.restores.as_ref()
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.turns.end();
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("dma", &self.dma).finish_non_exhaustive()
    }
}

/// The threads, and the ways to them.
pub(super) struct Started {
    pub(super) lanes: Lanes,
    /// Where a waiting thread does its work itself.
    pub(super) guest: Arc<Guest>,
    /// Ends after all others, and after it the process is not attached any more.
    pub(super) keeper: JoinHandle<()>,
    /// All of them.
    pub(super) threads: Vec<ThreadId>,
}

/// Starts the threads. Those that copy are bound as `binding` says.
///
/// # Errors
/// [`PoolError`]. The process has left the pool then.
pub(super) fn start(
    pool: Pool,
    options: &AsyncOptions,
    binding: Option<&Binding>,
) -> Result<Started, PoolError> {
    let turns = Arc::new(Turns::new(options.queue_depth()));
    let (cache, member) = pool.join_beside()?;
    let (dma, clock) = (pool.dma().clone(), *pool.clock());
    let prefetches = Arc::clone(pool.prefetches());
    let guest = Arc::new(Guest::new(Place { cache, member, dma, clock, prefetches }));
    let mut copying = Vec::new();
    let started = start_copying(&pool, (options, binding), &turns, &mut copying)
        .and_then(|()| start_restoring(&pool, options, &mut copying));
    let restores = match started {
        Ok(restores) => restores,
        Err(error) => {
            // Threads that were started end with their queues, and leave before the pool does.
            turns.end();
            end(&pool, copying, &guest);
            return Err(error);
        }
    };
    let mut threads: Vec<_> = copying.iter().map(|thread| thread.thread().id()).collect();
    let dma = pool.dma().clone();
    let (lookups, of_keeper) = (Arc::clone(&turns), Arc::clone(&guest));
    let keep = move |(pool, copying): (Pool, Vec<JoinHandle<LocalMember>>)| {
        let (dma, clock, prefetches) = (pool.dma(), pool.clock(), pool.prefetches());
        let desk = Desk { cache: &pool.cache(), dma, clock, prefetches };
        serve(&desk, &lookups, Serves::Lookups);
        end(&pool, copying, &of_keeper);
    };
    let keeper = match spawn_with("rackline-lookup", (pool, copying), keep) {
        Ok(keeper) => keeper,
        Err((error, (pool, copying))) => {
            turns.end();
            end(&pool, copying, &guest);
            return Err(PoolError::Thread(error));
        }
    };
    threads.push(keeper.thread().id());
    Ok(Started { lanes: Lanes { dma, turns, restores }, guest, keeper, threads })
}

/// Adds the thread that waits for drives to `threads`, where the region has room for drives.
fn start_restoring(
    pool: &Pool,
    options: &AsyncOptions,
    threads: &mut Vec<JoinHandle<LocalMember>>,
) -> Result<Option<Sender<NewWork>>, PoolError> {
    if pool.cache().geometry().drives().is_none() {
        return Ok(None);
    }
    let (sender, queue) = bounded(options.queue_depth());
    let (dma, prefetches) = (pool.dma().clone(), Arc::clone(pool.prefetches()));
    let run = move |cache: &LocalCache<'_>, clock: &SystemClock| {
        restores::serve(&Desk { cache, dma: &dma, clock, prefetches: &prefetches }, &queue);
    };
    threads.push(pool.start_thread("rackline-restore", run)?);
    Ok(Some(sender))
}

/// Adds the threads that copy to `copying`, until one cannot be started.
fn start_copying(
    pool: &Pool,
    (options, binding): (&AsyncOptions, Option<&Binding>),
    turns: &Arc<Turns>,
    copying: &mut Vec<JoinHandle<LocalMember>>,
) -> Result<(), PoolError> {
    let of_copies = (0..options.copy_threads()).map(|n| (format!("copy-{n}"), Serves::Copies));
    let of_fetches =
        (0..options.fetch_threads()).map(|n| (format!("fetch-{n}"), Serves::FetchesOnly));
    let of_layers = options.publishes_by_layers().then(|| ("layers".to_owned(), Serves::Layers));
    for (name, serves) in of_copies.chain(of_fetches).chain(of_layers) {
        let (turns, dma) = (Arc::clone(turns), pool.dma().clone());
        let prefetches = Arc::clone(pool.prefetches());
        let binding = binding.cloned();
        let run = move |cache: &LocalCache<'_>, clock: &SystemClock| {
            binding.iter().for_each(Binding::bind_this_thread);
            serve(&Desk { cache, dma: &dma, clock, prefetches: &prefetches }, &turns, serves);
        };
        copying.push(pool.start_thread(&format!("rackline-{name}"), run)?);
    }
    Ok(())
}

/// Until nothing more comes.
fn serve(desk: &Desk<'_>, turns: &Turns, serves: Serves) {
    while let Some(piece) = turns.next(serves) {
        desk.work_on(piece);
    }
}

fn end(pool: &Pool, copying: Vec<JoinHandle<LocalMember>>, guest: &Guest) {
    // A thread that panicked has printed why; its place in the registry falls to the process that
    // reclaims.
    let members = copying.into_iter().filter_map(|thread| thread.join().ok());
    for member in members.chain(guest.end().map(|place| place.member)) {
        pool.attachment().leave_thread(member);
    }
}
