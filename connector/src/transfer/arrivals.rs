//! How far a fetch by layers came.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Completion, Fetched};

/// The layer will not arrive: the fetch ended before, or its work was revoked, or the thread that worked
/// on it panicked. The completion says what came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the fetch ended before this layer had arrived")]
pub struct Stopped;

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
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    inner: Arc<Inner>,
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
    /// Waits until `layer` is in all destinations, where this thread may read it from then on. It is not
    /// checked before the completion of the fetch says so.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait(&self, layer: usize) -> Result<(), Stopped> {
        self.wait_for(layer, None).map(|_| ())
    }

    /// The same for `timeout_ms` milliseconds at most: whether the layer has arrived.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait_ms(&self, layer: usize, timeout_ms: u64) -> Result<bool, Stopped> {
        self.wait_for(layer, Some(Duration::from_millis(timeout_ms)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `layer` arrived, within `timeout` if there is one.
    fn wait_for(&self, layer: usize, timeout: Option<Duration>) -> Result<bool, Stopped> {
        let waits = |state: &mut State| state.layers <= layer && !state.ended;
        let (state, changed) = (self.lock(), &self.inner.changed);
        let state = match timeout {
            None => changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = changed.wait_timeout_while(state, timeout, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match (state.layers > layer, state.ended) {
            (true, _) => Ok(true),
            (false, true) => Err(Stopped),
            (false, false) => Ok(false),
        }
    }
}

/// Tells of arrivals. Whatever becomes of the work that has it, its end is the end of them.
#[derive(Debug)]
pub(super) struct Herald(pub(super) Arrivals);

impl Herald {
    pub(super) fn arrived(&self, layer: usize) {
        self.0.lock().layers = layer + 1;
        self.0.inner.changed.notify_all();
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.inner.changed.notify_all();
    }
}
