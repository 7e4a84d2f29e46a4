//! A request on its way through the queues: work in pieces, of which any thread takes the next.
//!
//! - **ASYNC-P1** A piece is taken once, in the order of the pieces: by a thread of the pool, or by the
//!   thread that waits for the result.
//! - **ASYNC-P2** The result, or that there is none, is told when no piece is being worked on any more:
//!   by then nothing uses the caller's buffers.
//! - **ASYNC-P3** A request of one piece which the calling thread has done goes into no queue, and wakes
//!   no thread. Where the calling thread cannot do the piece, the request goes into its queue.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::desk::Desk;
use super::sync::{Mutant, Mutex, MutexGuard, breaks};

/// One piece of work. Done to its end once it is taken.
pub(super) type Piece = Box<dyn FnOnce(&Desk<'_>) + Send>;

/// A piece that was taken.
pub(super) struct Taken {
    pub(super) piece: Piece,
    /// Whether there is another behind it.
    pub(super) more: bool,
}

/// What the queues and a waiting thread see of a request.
pub(super) trait Request: Send + Sync {
    /// The next piece (ASYNC-P1). `None` when there is none left.
    fn take(self: Arc<Self>) -> Option<Taken>;

    /// Whether no piece is left to be taken.
    fn is_taken_up(&self) -> bool;

    /// Whether none of it will ever be taken now: none was before.
    fn revoke(&self) -> bool;
}

/// A request whose pieces are `P`, each of which comes to `R`.
pub(super) struct InPieces<P, R, T, W> {
    state: Mutex<State<P, R, T>>,
    work: W,
}

struct State<P, R, T> {
    waiting: VecDeque<P>,
    /// What came of each piece that was taken.
    done: Vec<Option<R>>,
    under_way: usize,
    /// Whether a piece panicked: there is no result then.
    lost: bool,
    /// Taken when it is told.
    end: Option<End<R, T>>,
}

struct End<R, T> {
    join: Box<dyn FnOnce(Vec<R>) -> T + Send>,
    tell: oneshot::Sender<T>,
}

impl<P, R, T, W> InPieces<P, R, T, W>
where
    P: Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    W: Fn(&Desk<'_>, usize, P) -> R + Send + Sync + 'static,
{
    /// A request that has `work` done with each of `pieces`, given its number, and tells what `join`
    /// makes of the results, which are in the order of the pieces.
    pub(super) fn new(
        pieces: VecDeque<P>,
        work: W,
        join: impl FnOnce(Vec<R>) -> T + Send + 'static,
        tell: oneshot::Sender<T>,
    ) -> Self {
        let end = Some(End { join: Box::new(join), tell });
        let state = State {
            done: Vec::with_capacity(pieces.len()),
            waiting: pieces,
            under_way: 0,
            lost: false,
            end,
        };
        Self { state: Mutex::new(state), work }
    }

    /// The pieces, of a request that no queue took.
    pub(super) fn give_back(&self) -> VecDeque<P> {
        std::mem::take(&mut self.state().waiting)
    }

    fn state(&self) -> MutexGuard<'_, State<P, R, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what came of a piece; `None` when it panicked.
    fn ended(&self, number: usize, result: Option<R>) {
        let mut state = self.state();
        state.under_way -= 1;
        state.lost |= result.is_none();
        state.done[number] = result;
        let never = if state.lost { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
        // ASYNC-P2.
        let is_idle = state.under_way == 0 || breaks(Mutant::TellsEarly);
        let is_over = is_idle && state.waiting.is_empty();
        let end = if is_over { state.end.take() } else { None };
        let lost = state.lost;
        let done = if is_over { std::mem::take(&mut state.done) } else { Vec::new() };
        drop(state);
        // What the caller gave may do anything when it is dropped: no lock is held.
        drop(never);
        if let (Some(End { join, tell }), false) = (end, lost) {
            // Nobody may be waiting any more.
            let _ = tell.send(join(done.into_iter().flatten().collect()));
        }
    }
}

/// Ends a piece that panics, too.
struct UnderWay<P, R, T, W>
where
    P: Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    W: Fn(&Desk<'_>, usize, P) -> R + Send + Sync + 'static,
{
    request: Arc<InPieces<P, R, T, W>>,
    number: usize,
    result: Option<R>,
}

impl<P, R, T, W> UnderWay<P, R, T, W>
where
    P: Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    W: Fn(&Desk<'_>, usize, P) -> R + Send + Sync + 'static,
{
    fn came_to(mut self, result: R) {
        self.result = Some(result);
    }
}

impl<P, R, T, W> Drop for UnderWay<P, R, T, W>
where
    P: Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    W: Fn(&Desk<'_>, usize, P) -> R + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.request.ended(self.number, self.result.take());
    }
}

impl<P, R, T, W> Request for InPieces<P, R, T, W>
where
    P: Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    W: Fn(&Desk<'_>, usize, P) -> R + Send + Sync + 'static,
{
    fn take(self: Arc<Self>) -> Option<Taken> {
        let mut state = self.state();
        let numbered = breaks(Mutant::NumbersFirst).then(|| state.done.len());
        if numbered.is_some() {
            drop(state);
            state = self.state();
        }
        let given = state.waiting.pop_front()?;
        let number = numbered.unwrap_or(state.done.len());
        state.done.push(None);
        state.under_way += 1;
        let more = !state.waiting.is_empty();
        drop(state);
        let under_way = UnderWay { request: self, number, result: None };
        let piece: Piece = Box::new(move |desk: &Desk<'_>| {
            let result = (under_way.request.work)(desk, number, given);
            under_way.came_to(result);
        });
        Some(Taken { piece, more })
    }

    fn is_taken_up(&self) -> bool {
        self.state().waiting.is_empty()
    }

    fn revoke(&self) -> bool {
        let mut state = self.state();
        let is_begun = !state.done.is_empty() && !breaks(Mutant::RevokesBegun);
        if state.waiting.is_empty() || is_begun {
            return false;
        }
        let revoked = (std::mem::take(&mut state.waiting), state.end.take());
        drop(state);
        drop(revoked);
        true
    }
}
