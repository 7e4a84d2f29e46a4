//! What the queues of transfers wait with. Their model has threads and locks of its own (`model`), and
//! breaks one rule at a time.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread;

/// A rule that is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mutant {
    /// ASYNC-P1: a piece is numbered before it is taken, and another thread may come in between.
    NumbersFirst,
    /// ASYNC-P2: the result is told when no piece is left, though others are being worked on.
    TellsEarly,
    /// ASYNC-P2: a request of which a piece was begun is revoked.
    RevokesBegun,
    /// ASYNC-Q2: a queue takes any number of requests.
    HasNoDepth,
    /// ASYNC-Q3: a thread that takes a piece wakes no other.
    WakesNoOther,
    /// ASYNC-P3: a request that the calling thread could not do goes into no queue.
    LeftToNoThread,
    /// Nobody that waits hears of the end.
    EndsInSilence,
}

/// Whether the rule is broken: never but in the model.
pub(super) const fn breaks(_: Mutant) -> bool {
    false
}
