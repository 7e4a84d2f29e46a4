//! Work on its way to a thread of the pool.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::completion::Revoke;
use super::lanes::{Desk, Lane, Work};
use super::{Completion, Running};

/// Work that was not taken up, with what was given to it. Nothing is changed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct SubmitError<T> {
    /// Why.
    pub kind: SubmitErrorKind,
    /// What was given.
    pub given: T,
}

/// Why work was not taken up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitErrorKind {
    /// As much as the queue takes is waiting: go on without, or try again later.
    #[error("the queue is full: as many transfers as it takes are waiting")]
    Busy,
    /// This process is a child of the one that attached, made by `fork`: the threads that transfer
    /// stayed behind, and so did the right to write.
    #[error(
        "this process is a forked child of the process that attached: attach again in the child"
    )]
    Forked,
    /// [`close`](super::AsyncPool::close) was called.
    #[error("the pool was closed in this process")]
    Closed,
    /// The process was attached without the thread that publishes by layers.
    #[error("the pool was attached without publishes_by_layers: attach with that option")]
    NoLayers,
}

/// Also of what has no form for debugging: any error can be handed on.
impl<T> fmt::Debug for SubmitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<T> SubmitError<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> SubmitError<U> {
        SubmitError { kind: self.kind, given: f(self.given) }
    }
}

impl SubmitErrorKind {
    /// The error with what was given.
    pub(super) fn with<T>(self, given: T) -> SubmitError<T> {
        SubmitError { kind: self, given }
    }
}

impl Running {
    /// Has `work` done with `given`, by a thread of the lane with what that works with.
    pub(super) fn submit_to<G: Send + 'static, T: Send + 'static>(
        &self,
        lane: Lane,
        given: G,
        work: impl FnOnce(&Desk<'_>, G) -> T + Send + 'static,
    ) -> Result<Completion<T>, SubmitError<G>> {
        // Given back when it is not taken up, so that the caller has its buffers.
        let parcel = Arc::new(Parcel(Mutex::new(Some(given))));
        let taken = Arc::clone(&parcel);
        let (done, completion) = Completion::new(Arc::<Parcel<G>>::clone(&parcel));
        let work: Work = Box::new(move |desk: &Desk<'_>| {
            if let Some(given) = taken.open() {
                // Nobody may be waiting any more.
                let _ = done.send(work(desk, given));
            }
        });
        self.submit(lane, work).map_err(|kind| {
            kind.with(parcel.open().expect("work that is given back was not taken up"))
        })?;
        Ok(completion)
    }
}

/// A value that is taken out once: by the thread that does the work, or by the caller that takes it
/// back.
struct Parcel<G>(Mutex<Option<G>>);

impl<G> Parcel<G> {
    fn open(&self) -> Option<G> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<G: Send> Revoke for Parcel<G> {
    fn revoke(&self) -> bool {
        self.open().is_some()
    }
}
