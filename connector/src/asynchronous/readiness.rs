//! How far the layers of a publish are ready.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use cxl_shm::fork::ProcessMark;

use super::{AsyncEngine, Completion};
use crate::block::NewBlock;
use crate::dma::HostDma;
use crate::session::{PublishReport, SessionError};

/// A publish by layers that came to its end.
#[derive(Debug)]
pub struct LayeredPublished<S> {
    /// What became of each block; `None` when it was aborted, and nothing is published.
    pub report: Result<Option<PublishReport>, SessionError>,
    /// The blocks, given back.
    pub blocks: Vec<NewBlock<S>>,
}

/// A publish by layers under way: it continues as its layers become ready. Dropping it aborts it.
///
/// In a child made by `fork` nothing that is said to it has any effect: the publish is the
/// parent's.
#[derive(Debug)]
#[must_use = "dropping it aborts the publish"]
pub struct LayeredPublish<S, E: AsyncEngine = HostDma> {
    pub(crate) opener: Opener<E>,
    pub(crate) completion: Completion<LayeredPublished<S>>,
}

impl<S> LayeredPublish<S> {
    /// Says that `layer` is ready in all blocks: its bytes stay as they are from now on. Layers may
    /// become ready in any order.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn layer_ready(&self, layer: usize) {
        self.opener.layer_ready(layer);
    }
}

impl<S, E: AsyncEngine> LayeredPublish<S, E> {
    /// Says that the blocks are worth publishing, and that all layers are ready that the CPU
    /// copies. The publish is aborted instead when it was aborted before, or a layer of a GPU's
    /// memory was not said to be ready: nobody knows when that layer is.
    pub fn finish(self) -> Completion<LayeredPublished<S>> {
        self.opener.finish();
        self.completion
    }

    /// Says that the blocks are not to be published. When it is completed nobody reads them any
    /// more.
    pub fn abort(self) -> Completion<LayeredPublished<S>> {
        self.opener.abort();
        self.completion
    }

    /// Whether it was aborted, which closing the pool does, too. For a child made by `fork` it is.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.opener.end() == Some(End::Aborted)
    }
}

/// Which layers are ready.
#[derive(Debug)]
pub(super) struct Readiness {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    ready: Vec<bool>,
    /// What came first stays.
    end: Option<End>,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Finished,
    Aborted,
}

impl Readiness {
    pub(super) fn new(layers: usize) -> Self {
        let state = State { ready: vec![false; layers], end: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    #[cfg(feature = "cuda")]
    pub(super) fn has_layer(&self, layer: usize) -> bool {
        layer < self.lock().ready.len()
    }

    /// Waits until `layer` is ready; `false` when that is of no use any more.
    pub(super) fn wait_layer(&self, layer: usize) -> bool {
        self.wait(|state| state.ready[layer])
    }

    /// Waits until the blocks are known to be worth publishing.
    pub(super) fn wait_finished(&self) -> bool {
        self.wait(|_| false)
    }

    /// Waits for one of the two ends, or for what is enough before.
    fn wait(&self, enough: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        loop {
            match state.end {
                Some(end) => return end == End::Finished,
                None if enough(&state) => return true,
                None => {}
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn layer_ready(&self, layer: usize) {
        self.set(|state| state.ready[layer] = true);
    }

    fn finish(&self) {
        self.set(|state| state.end = state.end.or(Some(End::Finished)));
    }

    pub(super) fn abort(&self) {
        self.set(|state| state.end = state.end.or(Some(End::Aborted)));
    }

    /// Whether every layer was said to be ready.
    pub(super) fn is_all_ready(&self) -> bool {
        self.lock().ready.iter().all(|ready| *ready)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says what is ready. Its end is the end of the waiting.
#[derive(Debug)]
pub(crate) struct Opener<E: AsyncEngine = HostDma> {
    readiness: Arc<Readiness>,
    /// Where it was made.
    process: ProcessMark,
    /// What the copies come after; nothing where the CPU copies.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "told of a GPU's layers"))]
    pub(super) order: E::Order,
}

impl Opener {
    /// [`LayeredPublish::layer_ready`].
    pub(crate) fn layer_ready(&self, layer: usize) {
        if let Some(readiness) = self.readiness() {
            readiness.layer_ready(layer);
        }
    }
}

impl<E: AsyncEngine> Opener<E> {
    pub(super) fn new(readiness: Arc<Readiness>, order: E::Order) -> Self {
        Self { readiness, process: ProcessMark::of_this(), order }
    }

    /// None in a child made by `fork`: nobody waits there, and a lock may be in whatever state the
    /// fork found it.
    pub(super) fn readiness(&self) -> Option<&Readiness> {
        self.process.is_of_this().then_some(&*self.readiness)
    }

    /// [`LayeredPublish::finish`].
    pub(crate) fn finish(&self) {
        if let Some(readiness) = self.readiness() {
            if !E::FINISHED_IS_READY && !readiness.is_all_ready() {
                readiness.abort();
            }
            readiness.finish();
        }
    }

    /// [`LayeredPublish::abort`].
    pub(crate) fn abort(&self) {
        if let Some(readiness) = self.readiness() {
            readiness.abort();
        }
    }

    /// Whether it was finished or aborted. For a child made by `fork` it was.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_ended(&self) -> bool {
        self.end().is_some()
    }

    fn end(&self) -> Option<End> {
        self.readiness().map_or(Some(End::Aborted), |readiness| readiness.lock().end)
    }
}

impl<E: AsyncEngine> Drop for Opener<E> {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The publishes by layers of a process that may be waiting: nobody says that their layers are
/// ready once the process leaves the pool.
#[derive(Debug, Default)]
pub(super) struct Waiting(pub(super) Mutex<Vec<Weak<Readiness>>>);

impl Waiting {
    pub(super) fn add(&self, readiness: &Arc<Readiness>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|readiness| readiness.strong_count() > 0);
        waiting.push(Arc::downgrade(readiness));
    }

    /// Aborts those that are not finished.
    pub(super) fn abort_all(&self) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().filter_map(Weak::upgrade).for_each(|readiness| readiness.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_waits_for_no_lock_of_its_parent() {
        let readiness = Arc::new(Readiness::new(1));
        let publish = || {
            // As if a fork were in between.
            let (readiness, process) = (Arc::clone(&readiness), ProcessMark::default());
            let (_done, completion) = Completion::begun();
            LayeredPublish::<()> { opener: Opener { readiness, process, order: () }, completion }
        };
        let held = readiness.lock();
        publish().layer_ready(0);
        assert!(publish().is_aborted());
        drop((publish().finish(), publish().abort(), publish()));
        assert_eq!((held.ready[0], held.end), (false, None));
    }
}
