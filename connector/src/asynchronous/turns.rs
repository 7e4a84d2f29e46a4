//! The queues of a process: requests that wait, and threads that wait for them.
//!
//! - **ASYNC-Q1** A thread takes the next piece of the first request, which then goes behind the others
//!   of its queue. So a request waits for one piece of each request before it, however long they are.
//! - **ASYNC-Q2** A queue holds `depth` requests at most, of which a piece is left.
//! - **ASYNC-Q3** A thread that takes a piece while another waits in a queue of its own wakes another thread.
//!   Two requests that come at once may have woken the same one.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::SubmitErrorKind;
use super::request::{Piece, Request};
use super::sync::{Condvar, Mutant, Mutex, MutexGuard, breaks};

/// Which queue a request goes into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// Short, and a caller waits.
    Lookup,
    /// A request waits for it.
    Fetch,
    /// Nobody waits for it.
    Publish,
    /// It waits for the engine.
    Layers,
}

/// What a thread takes requests from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Serves {
    Lookups,
    /// Fetches before publishes.
    Copies,
    FetchesOnly,
    Layers,
}

impl Serves {
    const ALL: [Self; 4] = [Self::Lookups, Self::Copies, Self::FetchesOnly, Self::Layers];

    fn lanes(self) -> &'static [Lane] {
        match self {
            Self::Lookups => &[Lane::Lookup],
            Self::Copies => &[Lane::Fetch, Lane::Publish],
            Self::FetchesOnly => &[Lane::Fetch],
            Self::Layers => &[Lane::Layers],
        }
    }
}

/// The queues.
pub(super) struct Turns {
    state: Mutex<State>,
    /// For each kind of thread.
    wake: [Condvar; 4],
    depth: usize,
}

#[derive(Default)]
struct State {
    lanes: [VecDeque<Arc<dyn Request>>; 4],
    /// Threads of each kind that wait.
    idle: [usize; 4],
    /// Whether nothing more comes.
    ended: bool,
}

impl Turns {
    /// Queues of `depth` requests each.
    pub(super) fn new(depth: usize) -> Self {
        Self { state: Mutex::default(), wake: std::array::from_fn(|_| Condvar::new()), depth }
    }

    /// Puts `request` into its queue, unless that is full (ASYNC-Q2).
    pub(super) fn submit(
        &self,
        lane: Lane,
        request: Arc<dyn Request>,
    ) -> Result<(), SubmitErrorKind> {
        let mut state = self.state();
        if state.ended {
            return Err(SubmitErrorKind::Closed);
        }
        let queue = &mut state.lanes[lane as usize];
        let mut over = VecDeque::new();
        if queue.len() >= self.depth {
            // What waiting threads did themselves.
            let (taken_up, waiting) = queue.drain(..).partition(|request| request.is_taken_up());
            (over, *queue) = (taken_up, waiting);
        }
        let has_room = queue.len() < self.depth || breaks(Mutant::HasNoDepth);
        let mut sleeper = None;
        if has_room {
            queue.push_back(request);
            sleeper = self.sleeper(&state, lane);
        }
        drop(state);
        // The lock is free when the thread wakes and wants it.
        sleeper.map(Condvar::notify_one);
        drop(over);
        if has_room { Ok(()) } else { Err(SubmitErrorKind::Busy) }
    }

    /// From now on nothing more comes. What is in the queues is still taken.
    pub(super) fn end(&self) {
        self.state().ended = true;
        if !breaks(Mutant::EndsInSilence) {
            self.wake.iter().for_each(Condvar::notify_all);
        }
    }

    /// The next piece for a thread, which waits for it; `None` when nothing more comes.
    pub(super) fn next(&self, serves: Serves) -> Option<Piece> {
        let mut over = Vec::new();
        let mut state = self.state();
        loop {
            let found = self.take(&mut state, serves, &mut over);
            if found.is_some() || state.ended {
                drop(state);
                return found;
            }
            if !over.is_empty() {
                // What a caller gave may do anything when it is dropped: no lock is held.
                drop(state);
                over.clear();
                state = self.state();
                continue;
            }
            state.idle[serves as usize] += 1;
            state = self.wake[serves as usize].wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle[serves as usize] -= 1;
        }
    }

    /// The next piece, if there is one (ASYNC-Q1). `over` gets requests that have none left.
    fn take(
        &self,
        state: &mut State,
        serves: Serves,
        over: &mut Vec<Arc<dyn Request>>,
    ) -> Option<Piece> {
        for lane in serves.lanes() {
            while let Some(request) = state.lanes[*lane as usize].pop_front() {
                let Some(taken) = Arc::clone(&request).take() else {
                    over.push(request);
                    continue;
                };
                if taken.more {
                    state.lanes[*lane as usize].push_back(request);
                } else {
                    over.push(request);
                }
                // ASYNC-Q3.
                for lane in serves.lanes() {
                    if !state.lanes[*lane as usize].is_empty() && !breaks(Mutant::WakesNoOther) {
                        self.sleeper(state, *lane).map(Condvar::notify_one);
                    }
                }
                return Some(taken.piece);
            }
        }
        None
    }

    /// Where a thread that serves `lane` waits, if one does: one that takes nothing else first, so that the
    /// others stay for publishes.
    fn sleeper(&self, state: &State, lane: Lane) -> Option<&Condvar> {
        let waits =
            |serves: &&Serves| serves.lanes().contains(&lane) && state.idle[**serves as usize] > 0;
        let fewest = Serves::ALL.iter().filter(waits).min_by_key(|serves| serves.lanes().len());
        fewest.map(|serves| &self.wake[*serves as usize])
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
