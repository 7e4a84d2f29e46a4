//! A prefetch that a thread of the pool begins, while its caller goes on.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Lost;
use crate::options::SessionOptions;
use crate::session::{Prefetch, Prefetches, Session, SessionError};

/// A prefetch, for any thread. Dropping it takes nothing back.
#[derive(Clone)]
#[must_use = "it can be taken back with this"]
pub struct AsyncPrefetch {
    shared: Arc<Shared>,
    prefetches: Arc<Prefetches>,
}

struct Shared {
    state: Mutex<State>,
    is_told: Condvar,
}

enum State {
    /// It has not begun.
    Waits {
        is_cancelled: bool,
    },
    Told(Result<Prefetch, SessionError>),
    /// Its thread ended, or it was taken back before it began.
    Lost,
}

impl fmt::Debug for AsyncPrefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncPrefetch").finish_non_exhaustive()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncPrefetch {
    /// One that is to begin, and what tells it so.
    pub(super) fn new(prefetches: &Arc<Prefetches>) -> (Self, Untold) {
        let state = Mutex::new(State::Waits { is_cancelled: false });
        let shared = Arc::new(Shared { state, is_told: Condvar::new() });
        let prefetch = Self { shared, prefetches: Arc::clone(prefetches) };
        (prefetch.clone(), Untold(prefetch))
    }

    /// What it took up; `None` when that is not known within `timeout`. Does not wait for the blocks.
    ///
    /// # Errors
    /// [`Lost`]: it was taken back before it began, or the pool was closed.
    pub fn wait_timeout(
        &self,
        timeout: Duration,
    ) -> Result<Option<Result<Prefetch, SessionError>>, Lost> {
        let waits = |state: &mut State| matches!(state, State::Waits { .. });
        let waited = self.shared.is_told.wait_timeout_while(self.shared.state(), timeout, waits);
        match &*waited.unwrap_or_else(PoisonError::into_inner).0 {
            State::Waits { .. } => Ok(None),
            State::Told(told) => Ok(Some(told.clone())),
            State::Lost => Err(Lost),
        }
    }

    /// The same, as soon as it is known: that takes about a millisecond.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait(&self) -> Result<Result<Prefetch, SessionError>, Lost> {
        self.wait_timeout(Duration::MAX)?.ok_or(Lost)
    }

    /// Takes it back: what has not come, and no other prefetch or lookup waits for, is not restored. A
    /// second call does nothing.
    pub fn cancel(&self) {
        match &mut *self.shared.state() {
            State::Waits { is_cancelled } => *is_cancelled = true,
            State::Told(Ok(prefetch)) => self.prefetches.cancel(prefetch),
            State::Told(Err(_)) | State::Lost => {}
        }
    }
}

/// What begins a prefetch.
pub(super) type Begin = Box<dyn FnOnce(&Session<'_>) -> Result<Prefetch, SessionError> + Send>;

/// A prefetch on its way to the thread.
pub(super) struct NewPrefetch {
    pub(super) begin: Begin,
    pub(super) options: SessionOptions,
    pub(super) untold: Untold,
}

/// A prefetch that has not begun. Dropped before it is told, it is lost.
pub(super) struct Untold(AsyncPrefetch);

impl Untold {
    /// Begins it by `begin`, unless it was taken back.
    pub(super) fn begin(self, begin: impl FnOnce() -> Result<Prefetch, SessionError>) {
        let told = &self.0;
        if matches!(*told.shared.state(), State::Waits { is_cancelled: true }) {
            return;
        }
        let begun = begin();
        let mut state = told.shared.state();
        let is_cancelled = matches!(*state, State::Waits { is_cancelled: true });
        if let (true, Ok(prefetch)) = (is_cancelled, &begun) {
            told.prefetches.cancel(prefetch);
        }
        *state = State::Told(begun);
        drop(state);
        told.shared.is_told.notify_all();
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        let mut state = self.0.shared.state();
        if matches!(*state, State::Waits { .. }) {
            *state = State::Lost;
            self.0.shared.is_told.notify_all();
        }
    }
}
