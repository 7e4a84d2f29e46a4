//! Work on its way to a thread of the pool.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use super::GpuError;
use super::desk::Desk;
use super::request::{InPieces, Request};
use super::turns::Lane;
use super::{Completion, Running};

/// Work that was not taken up, with what was given to it. Nothing is changed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct SubmitError<T> {
    /// Why.
    pub kind: SubmitErrorKind,
    /// What was given.
    pub given: T,
}

/// Why work was not taken up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
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
    /// The GPU is not open, or the copies cannot be put behind the engine's stream.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(Box<GpuError>),
}

/// A forked child and a closed pool are the same for every kind of memory.
#[cfg(feature = "cuda")]
impl From<GpuError> for SubmitErrorKind {
    fn from(refused: GpuError) -> Self {
        match refused {
            GpuError::Forked => Self::Forked,
            GpuError::Closed => Self::Closed,
            refused => Self::Gpu(Box::new(refused)),
        }
    }
}

/// Without what was given.
impl<T> From<SubmitError<T>> for SubmitErrorKind {
    fn from(refused: SubmitError<T>) -> Self {
        refused.kind
    }
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

/// Who does work besides the threads of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Besides {
    /// No thread.
    Nobody,
    /// The thread that waits for the result.
    Waiter,
    /// The thread that makes the call, before the call returns, where the work is one piece; and the
    /// thread that waits.
    Caller,
}

impl Running {
    /// Has `work` done with `given`, by a thread of the lane with what that works with, or by one of
    /// `besides`.
    pub(super) fn submit_to<G: Send + 'static, T: Send + 'static>(
        &self,
        lane: Lane,
        besides: Besides,
        given: G,
        work: impl FnOnce(&Desk<'_>, G) -> T + Send + 'static,
    ) -> Result<Completion<T>, SubmitError<G>> {
        let one = VecDeque::from([(given, work)]);
        self.submit_pieces(
            lane,
            besides,
            one,
            |desk, _, (given, work)| work(desk, given),
            |results| results.into_iter().next().expect("one piece has one result"),
            |pieces| pieces.into_iter().next().expect("work that is given back was not taken up").0,
        )
    }

    /// Has `work` done with each of `pieces`, given its number, by any threads and by `besides`; `join` makes one of the
    /// results. When the request is not taken up `give_back` makes one of the pieces, so that the
    /// caller has its buffers.
    pub(super) fn submit_pieces<P, R, T, G>(
        &self,
        lane: Lane,
        besides: Besides,
        pieces: VecDeque<P>,
        work: impl Fn(&Desk<'_>, usize, P) -> R + Send + Sync + 'static,
        join: impl FnOnce(Vec<R>) -> T + Send + 'static,
        give_back: impl FnOnce(VecDeque<P>) -> G,
    ) -> Result<Completion<T>, SubmitError<G>>
    where
        P: Send + 'static,
        R: Send + 'static,
        T: Send + 'static,
    {
        let (tell, receiver) = oneshot::channel();
        let at_once = besides == Besides::Caller && pieces.len() == 1;
        let request = Arc::new(InPieces::new(pieces, work, join, tell));
        match self.begin(lane, at_once, Arc::<InPieces<P, R, T, _>>::clone(&request)) {
            Ok(()) => {
                let guest = (besides != Besides::Nobody).then(|| Arc::clone(&self.guest));
                Ok(Completion::new(receiver, request, guest))
            }
            Err(kind) => Err(kind.with(give_back(request.give_back()))),
        }
    }

    /// Has `request` done: `at_once` by this thread, where it can.
    fn begin(
        &self,
        lane: Lane,
        at_once: bool,
        request: Arc<dyn Request>,
    ) -> Result<(), SubmitErrorKind> {
        if !at_once || self.is_forked() || self.is_closed() {
            return self.submit(lane, request);
        }
        self.guest.begin(&request, || self.submit(lane, Arc::clone(&request)))
    }
}
