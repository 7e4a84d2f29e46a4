//! What a thread works on requests with, and the desk at which a waiting thread does so itself.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, ThreadId};

use cxl_shm::clock::SystemClock;
use cxl_shm::fork::ProcessMark;
use cxl_shm::lifecycle::LocalMember;
use kv_cache::AttachedCache;

use super::request::{Piece, Request};
use crate::dma::{DmaEngine, HostDma};
use crate::options::SessionOptions;
use crate::pool::LocalCache;
use crate::session::{Session, SessionCore};

/// What a thread works with.
pub(super) struct Desk<'p> {
    pub(super) cache: &'p LocalCache<'p>,
    pub(super) dma: &'p HostDma,
    pub(super) clock: &'p SystemClock,
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

    /// Does a piece. One that panics, which is printed, has no result; the thread continues, and with
    /// it the work of all other threads.
    pub(super) fn work_on(&self, piece: Piece) {
        // What a piece shares with others is either locks that a panic poisons, whose users know
        // what to make of that, or shared memory, whose protocols outlive whole processes.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| piece(self)));
    }
}

/// A desk for threads that wait: a membership of the host tier that belongs to no thread. One thread at
/// a time works at it, and does pieces of the request that the thread waits for. A thread of the pool
/// would have to be woken for them first, which takes longer than a small copy.
pub(super) struct Guest {
    /// Where it is a member: a child made by `fork` is not.
    process: ProcessMark,
    place: Mutex<Option<Place>>,
    /// Who works at it.
    worker: Mutex<Option<ThreadId>>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

/// What the desk has until the pool is left.
pub(super) struct Place {
    pub(super) cache: AttachedCache,
    pub(super) member: LocalMember,
    pub(super) dma: HostDma,
    pub(super) clock: SystemClock,
}

impl Guest {
    pub(super) fn new(place: Place) -> Self {
        Self {
            process: ProcessMark::of_this(),
            place: Mutex::new(Some(place)),
            worker: Mutex::new(None),
        }
    }

    /// Does the next piece of `request` on this thread. `false` when there is none left, when another
    /// thread works here, and when the pool is left.
    pub(super) fn work_on(&self, request: &Arc<dyn Request>) -> bool {
        if !self.process.is_of_this() {
            return false;
        }
        let place = match self.place.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(Place { cache, member, dma, clock }) = &*place else { return false };
        let Some(taken) = Arc::clone(request).take() else { return false };
        *self.worker() = Some(thread::current().id());
        Desk { cache: &cache.through(member), dma, clock }.work_on(taken.piece);
        *self.worker() = None;
        true
    }

    /// Whether this thread works here now: it cannot wait for its own end.
    pub(super) fn is_this_thread(&self) -> bool {
        *self.worker() == Some(thread::current().id())
    }

    /// Waits until no thread works here, and ends the desk.
    pub(super) fn end(&self) -> Option<LocalMember> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.take().map(|place| place.member)
    }

    fn worker(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
