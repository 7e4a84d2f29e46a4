//! How far a fetch by layers came.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cxl_shm::fork::ProcessMark;

use super::{Completion, Fetched};

/// Why a layer will not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    /// The fetch ended before, or its work was revoked, or the thread that worked on it panicked.
    /// The completion says what came of it.
    #[error("the fetch ended before this layer had arrived")]
    Ended,
    /// This process is a child of the one that fetches, made by `fork`: nothing arrives in it.
    #[error(
        "this process is a forked child of the process that fetches: attach again in the child"
    )]
    Forked,
}

/// A fetch by layers under way. Dropping it does not stop the fetch.
#[derive(Debug)]
#[must_use = "the result, and the buffers with it, come from here"]
pub struct LayeredFetch<D> {
    /// How far it came.
    pub arrivals: Arrivals,
    /// What comes of it as a whole.
    pub completion: Completion<Fetched<D>>,
}

/// The layers of a fetch that have arrived. Clones are of the same fetch.
#[derive(Clone, Debug)]
pub struct Arrivals {
    inner: Arc<Inner>,
    /// In which they arrive.
    process: ProcessMark,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    layers: usize,
    ended: bool,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self { inner: Arc::default(), process: ProcessMark::of_this() }
    }

    /// Waits until `layer` is in all destinations, where this thread may read it from then on. It
    /// is not checked before the completion of the fetch says so.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait(&self, layer: usize) -> Result<(), Stopped> {
        self.wait_for(layer, None).map(|_| ())
    }

    /// The same for at most `timeout`: whether the layer has arrived.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait_timeout(&self, layer: usize, timeout: Duration) -> Result<bool, Stopped> {
        self.wait_for(layer, Some(timeout))
    }

    /// None in a child made by `fork`, whatever state that found the lock in.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        let lock = || self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.process.is_of_this().then(lock)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        if let Some(mut state) = self.lock() {
            change(&mut state);
            self.inner.changed.notify_all();
        }
    }

    /// Whether `layer` arrived, within `timeout` if there is one.
    fn wait_for(&self, layer: usize, timeout: Option<Duration>) -> Result<bool, Stopped> {
        let waits = |state: &mut State| state.layers <= layer && !state.ended;
        let (state, changed) = (self.lock().ok_or(Stopped::Forked)?, &self.inner.changed);
        let state = match timeout {
            None => changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = changed.wait_timeout_while(state, timeout, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match (state.layers > layer, state.ended) {
            (true, _) => Ok(true),
            (false, true) => Err(Stopped::Ended),
            (false, false) => Ok(false),
        }
    }
}

/// Tells of arrivals. Whatever becomes of the work that has it, its end is the end of them.
#[derive(Debug)]
pub(super) struct Herald(pub(super) Arrivals);

impl Herald {
    pub(super) fn arrived(&self, layer: usize) {
        self.0.set(|state| state.layers = layer + 1);
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        self.0.set(|state| state.ended = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_waits_for_no_lock_of_its_parent() {
        let arrivals = Arrivals::new();
        // As if a fork were in between.
        let in_child = Arrivals { process: ProcessMark::default(), ..arrivals.clone() };
        let held = arrivals.lock().unwrap();
        assert_eq!(in_child.wait(0), Err(Stopped::Forked));
        assert_eq!(in_child.wait_timeout(0, Duration::from_millis(1)), Err(Stopped::Forked));
        drop(Herald(in_child));
        assert!(!held.ended);
    }
}
