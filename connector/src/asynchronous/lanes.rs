//! The queues of a process, and the threads that work on them.
//!
//! ```text
//! lookup, hold, release ----> rackline-lookup   (owns the Pool)
//! fetch   --+---------------> rackline-fetch-0 .. fetch_threads - 1
//!           +-- fetch first -> rackline-copy-0 .. copy_threads - 1
//! publish --+
//! publish by layers -------> rackline-layers   (if it was asked for)
//! ```
//!
//! A publish by layers waits for the engine in the middle of its forward, and the forward may be
//! waiting for a fetch. So it has a thread of its own, behind which nothing else waits.
//!
//! Each thread is a member of the host tier of its own. A queue ends when no thread can put
//! anything into it any more. What is in it by then is still done.

use std::panic::AssertUnwindSafe;
use std::thread::{JoinHandle, ThreadId};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select_biased};
use cxl_shm::clock::SystemClock;
use cxl_shm::lifecycle::LocalMember;

use super::SubmitErrorKind;
use crate::dma::{DmaEngine, HostDma};
use crate::options::{AsyncOptions, SessionOptions};
use crate::pool::{LocalCache, Pool, PoolError};
use crate::session::{Session, SessionCore};
use crate::spawn::spawn_with;

/// What a thread of the pool works with.
pub(super) struct Desk<'p> {
    cache: &'p LocalCache<'p>,
    pub(super) dma: &'p HostDma,
    clock: &'p SystemClock,
}

impl Desk<'_> {
    /// A session whose bytes `engine` copies, which is over the memory of this pool.
    pub(super) fn session<'s, E: DmaEngine>(
        &'s self,
        engine: &'s E,
        options: SessionOptions,
    ) -> Session<'s, E> {
        SessionCore::new(self.cache, engine, self.clock, options)
    }

    /// Does the work. One that panics, which is printed, has no result; the thread continues, and
    /// with it the work of all other threads.
    fn work_on(&self, work: Work) {
        // What the work shares with others is either locks that a panic poisons, whose users know
        // what to make of that, or shared memory, whose protocols outlive whole processes.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| work(self)));
    }
}

/// One piece of work. Done to its end once it is taken up.
pub(super) type Work = Box<dyn FnOnce(&Desk<'_>) + Send>;

/// Which queue a piece of work goes into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// Short, and a caller waits.
    Lookup,
    /// A request waits for it.
    Fetch,
    /// Nobody waits for it.
    Publish,
    /// It waits for the engine.
    Layers,
}

/// The ways into the queues.
#[derive(Debug)]
pub(super) struct Lanes {
    dma: HostDma,
    lookup: Sender<Work>,
    fetch: Sender<Work>,
    publish: Sender<Work>,
    layers: Option<Sender<Work>>,
}

impl Lanes {
    /// What the CPU copies with.
    pub(super) fn dma(&self) -> &HostDma {
        &self.dma
    }

    /// Puts `work` into its queue, unless that is full.
    pub(super) fn submit(&self, lane: Lane, work: Work) -> Result<(), SubmitErrorKind> {
        let queue = match lane {
            Lane::Lookup => &self.lookup,
            Lane::Fetch => &self.fetch,
            Lane::Publish => &self.publish,
            Lane::Layers => {
                let layers = self.layers.as_ref();
                layers.expect("`publish_by_layers` refuses where it was not asked for")
            }
        };
        queue.try_send(work).map_err(|error| match error {
            TrySendError::Full(_) => SubmitErrorKind::Busy,
            TrySendError::Disconnected(_) => SubmitErrorKind::Closed,
        })
    }
}

/// The threads, and the ways to them.
pub(super) struct Started {
    pub(super) lanes: Lanes,
    /// Ends after all others, and after it the process is not attached any more.
    pub(super) keeper: JoinHandle<()>,
    /// All of them.
    pub(super) threads: Vec<ThreadId>,
}

/// Starts the threads.
///
/// # Errors
/// [`PoolError`]. The process has left the pool then.
pub(super) fn start(pool: Pool, options: &AsyncOptions) -> Result<Started, PoolError> {
    let queue_depth = options.queue_depth();
    let (lookup, lookups) = bounded::<Work>(queue_depth);
    let (fetch, fetches) = bounded::<Work>(queue_depth);
    let (publish, publishes) = bounded::<Work>(queue_depth);
    let (layers, layered) = bounded::<Work>(queue_depth);
    let mut copying = Vec::new();
    let mut started = start_copying(&pool, options, &fetches, &publishes, &mut copying);
    if started.is_ok() && options.publishes_by_layers() {
        started = start_layers(&pool, layered).map(|thread| copying.push(thread));
    }
    if let Err(error) = started {
        // Threads that were started end with their queues, and leave before the pool does.
        drop((fetch, publish, layers));
        end(&pool, copying);
        return Err(error);
    }
    let mut threads: Vec<_> = copying.iter().map(|thread| thread.thread().id()).collect();
    let dma = pool.dma().clone();
    let keep = move |(pool, copying): (Pool, Vec<JoinHandle<LocalMember>>)| {
        let desk = Desk { cache: &pool.cache(), dma: pool.dma(), clock: pool.clock() };
        lookups.iter().for_each(|work| desk.work_on(work));
        end(&pool, copying);
    };
    let keeper = match spawn_with("rackline-lookup", (pool, copying), keep) {
        Ok(keeper) => keeper,
        Err((error, (pool, copying))) => {
            drop((fetch, publish, layers));
            end(&pool, copying);
            return Err(PoolError::Thread(error));
        }
    };
    threads.push(keeper.thread().id());
    let layers = options.publishes_by_layers().then_some(layers);
    Ok(Started { lanes: Lanes { dma, lookup, fetch, publish, layers }, keeper, threads })
}

/// Adds the threads that copy whole blocks to `copying`, until one cannot be started.
fn start_copying(
    pool: &Pool,
    options: &AsyncOptions,
    fetches: &Receiver<Work>,
    publishes: &Receiver<Work>,
    copying: &mut Vec<JoinHandle<LocalMember>>,
) -> Result<(), PoolError> {
    let of_copies = (0..options.copy_threads()).map(|number| (format!("copy-{number}"), true));
    let of_fetches = (0..options.fetch_threads()).map(|number| (format!("fetch-{number}"), false));
    for (name, publishes_too) in of_copies.chain(of_fetches) {
        let fetches = fetches.clone();
        // A queue without senders, for a thread that only fetches.
        let publishes = if publishes_too { publishes.clone() } else { bounded(1).1 };
        let dma = pool.dma().clone();
        let serve = move |cache: &LocalCache<'_>, clock: &SystemClock| {
            copy(&Desk { cache, dma: &dma, clock }, &fetches, &publishes);
        };
        copying.push(pool.start_thread(&format!("rackline-{name}"), serve)?);
    }
    Ok(())
}

fn start_layers(
    pool: &Pool,
    layered: Receiver<Work>,
) -> Result<JoinHandle<LocalMember>, PoolError> {
    let dma = pool.dma().clone();
    pool.start_thread("rackline-layers", move |cache, clock| {
        let desk = Desk { cache, dma: &dma, clock };
        layered.iter().for_each(|work| desk.work_on(work));
    })
}

fn end(pool: &Pool, copying: Vec<JoinHandle<LocalMember>>) {
    // A thread that panicked has printed why; its place in the registry falls to the process that
    // reclaims.
    for member in copying.into_iter().filter_map(|thread| thread.join().ok()) {
        pool.attachment().leave_thread(member);
    }
}

/// Until both queues have ended.
fn copy(desk: &Desk<'_>, fetches: &Receiver<Work>, publishes: &Receiver<Work>) {
    loop {
        let next = select_biased! {
            recv(fetches) -> work => work.or_else(|_| publishes.recv()),
            recv(publishes) -> work => work.or_else(|_| fetches.recv()),
        };
        match next {
            Ok(work) => desk.work_on(work),
            Err(_) => return,
        }
    }
}
