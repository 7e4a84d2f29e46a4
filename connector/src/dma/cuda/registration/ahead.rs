//! Registering a pool before anything is copied, for processes that rather wait at their start.

use std::sync::{Arc, Mutex};

use super::{Registrar, Registration, Registrations};
use crate::dma::lock;

/// Threads that do so at most.
const THREADS_MAX: usize = 8;
/// How often the log says how far it is.
const PARTS: u64 = 8;

/// The threads that register a pool ahead. They touch pages beside each other, which takes most of the
/// time; the driver registers one piece after another.
#[derive(Clone, Copy)]
pub(crate) struct AheadThreads<'a> {
    /// How many.
    pub(crate) count: usize,
    /// Called on each before anything else: it may bind the thread to CPUs near the memory.
    pub(crate) begin: &'a (dyn Fn() + Sync),
}

impl AheadThreads<'_> {
    /// On any CPU of the process.
    pub(crate) fn anywhere() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        Self { count, begin: &|| () }
    }
}

/// How far it is.
#[derive(Debug, Default)]
struct Progress {
    next: u64,
    done: u64,
    /// Since a piece could not be registered.
    stopped: Option<String>,
}

impl Registration {
    /// Registers the pool, as far as the limit allows, and says so in the log.
    pub(super) fn register_at_start(self: &Arc<Self>, threads: AheadThreads<'_>) {
        let threads = AheadThreads { count: threads.count.min(THREADS_MAX), ..threads };
        let of_pieces = self.pieces.count_within(self.limit_bytes);
        tracing::info!(of_pieces, "registering the pool with the GPU's driver");
        let registered = self.register_ahead(threads, |pieces| {
            if pieces * PARTS / of_pieces > (pieces - 1) * PARTS / of_pieces {
                tracing::info!(pieces, of_pieces, "registering the pool with the GPU's driver");
            }
        });
        if let Err(reason) = registered {
            tracing::warn!(
                reason,
                "not all of the pool is registered: the rest will be tried when it is used"
            );
        }
    }
}

impl<R: Registrar + Sync + Send> Registrations<R> {
    /// Registers pieces from the first one on, as many as the limit allows, on `threads`. The calling
    /// thread waits for them, and stays on its CPUs. `progress` gets the number of pieces after each.
    ///
    /// # Errors
    /// Why the driver registers no more. Those that came before are registered.
    pub(super) fn register_ahead(
        self: &Arc<Self>,
        threads: AheadThreads<'_>,
        progress: impl Fn(u64) + Sync,
    ) -> Result<(), String> {
        let count = self.pieces.count_within(self.limit_bytes);
        let state = Mutex::new(Progress::default());
        let next = || {
            let mut state = lock(&state);
            let piece = state.next;
            state.next += 1;
            (piece < count && state.stopped.is_none()).then_some(piece)
        };
        let work = || {
            while let Some(piece) = next() {
                let pinned = self.pin(std::iter::once(self.pieces.extent(piece))).map(drop);
                let made_room = lock(self.figures()).unregistrations > 0;
                let mut state = lock(&state);
                match pinned {
                    // Each piece would push another one out.
                    Ok(()) if made_room => state.stopped = Some("it has no room for more".into()),
                    Ok(()) => {
                        state.done += 1;
                        // Under the lock, so that the numbers grow.
                        progress(state.done);
                    }
                    Err(reason) => state.stopped = Some(reason),
                }
            }
        };
        let started = std::thread::scope(|scope| {
            let start = |_: &usize| {
                let thread = std::thread::Builder::new().name("rackline-register".into());
                let body = || {
                    (threads.begin)();
                    work();
                };
                thread.spawn_scoped(scope, body).is_ok()
            };
            (0..threads.count).filter(start).count()
        });
        if started == 0 {
            work();
        }
        let Progress { stopped, .. } =
            state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        stopped.map_or(Ok(()), Err)
    }
}
