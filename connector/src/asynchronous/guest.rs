//! A desk at which threads that wait for a transfer do its pieces themselves.

use std::fmt;
use std::sync::{Arc, PoisonError, TryLockError};

use cxl_shm::fork::ProcessMark;

use super::SubmitErrorKind;
use super::request::{Piece, Request};
use super::sync::thread::{self, ThreadId};
use super::sync::{Mutant, Mutex, MutexGuard, breaks};

/// What a desk has until the pool is left.
pub(super) trait Works {
    /// Does a piece. One that panics has no result, and the thread continues.
    fn work_on(&self, piece: Piece);
}

/// A desk for threads that wait: a membership of the host tier that belongs to no thread. One thread at
/// a time works at it, and does pieces of the request that the thread waits for. A thread of the pool
/// would have to be woken for them first, which takes longer than a small copy.
pub(super) struct Guest<P> {
    /// Where it is a member: a child made by `fork` is not.
    process: ProcessMark,
    place: Mutex<Option<P>>,
    /// Who works at it.
    worker: Mutex<Option<ThreadId>>,
}

impl<P> fmt::Debug for Guest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

impl<P: Works> Guest<P> {
    pub(super) fn new(place: P) -> Self {
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
        let Some(place) = &*place else { return false };
        let Some(taken) = Arc::clone(request).take() else { return false };
        *self.worker() = Some(thread::current().id());
        place.work_on(taken.piece);
        *self.worker() = None;
        true
    }

    /// Does the only piece of `request` on this thread, where it can, or else has `submit` put the
    /// request into its queue (ASYNC-P3).
    pub(super) fn begin(
        &self,
        request: &Arc<dyn Request>,
        submit: impl FnOnce() -> Result<(), SubmitErrorKind>,
    ) -> Result<(), SubmitErrorKind> {
        if self.work_on(request) || breaks(Mutant::LeftToNoThread) { Ok(()) } else { submit() }
    }

    /// Whether this thread works here now: it cannot wait for its own end.
    pub(super) fn is_this_thread(&self) -> bool {
        *self.worker() == Some(thread::current().id())
    }

    /// Waits until no thread works here, and ends the desk.
    pub(super) fn end(&self) -> Option<P> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn worker(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
