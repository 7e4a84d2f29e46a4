//! Tokens that are computed before the reader is to have them.
//!
//! - **PLAN-D1** A token is released when it is ready, but not sooner than one SLO after the token
//!   before it. Tokens that are ready sooner are deposited. While a request waits, its deposit goes
//!   on being released, and the reader notices nothing.
//! - **PLAN-D2** A token is late when it is released more than one SLO after the token before it.
//!   Those after it are measured from its release: a delay counts once.

use std::collections::VecDeque;
use std::ops::Add;

/// The deposit of one request. `T` is a moment, and a time between two moments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deposit<T> {
    slo: T,
    /// When each deposited token was ready.
    ready: VecDeque<T>,
    /// When the last token was released.
    released_at: Option<T>,
    late: u64,
}

/// A token that is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released<T> {
    /// When.
    pub at: T,
    /// Whether it is late (PLAN-D2).
    pub late: bool,
}

impl<T: Clone + Ord + Add<Output = T>> Deposit<T> {
    /// An empty deposit of a request whose reader is to have a token every `slo`.
    #[must_use]
    pub const fn new(slo: T) -> Self {
        Self { slo, ready: VecDeque::new(), released_at: None, late: 0 }
    }

    /// A token is ready at `now`, which is not before the moment of the token before it.
    pub fn put(&mut self, now: T) {
        self.ready.push_back(now);
    }

    /// When the next token is to be released; `None` when none is deposited.
    #[must_use]
    pub fn next_release(&self) -> Option<T> {
        let ready = self.ready.front()?.clone();
        Some(match &self.released_at {
            Some(last) => ready.max(last.clone() + self.slo.clone()),
            None => ready,
        })
    }

    /// Releases the next token, if its moment is not after `now` (PLAN-D1).
    pub fn release(&mut self, now: &T) -> Option<Released<T>> {
        let at = self.next_release().filter(|at| at <= now)?;
        let on_time = self.released_at.clone().map(|last| last + self.slo.clone());
        let late = on_time.is_some_and(|on_time| at > on_time);
        self.ready.pop_front();
        self.released_at = Some(at.clone());
        self.late += u64::from(late);
        Some(Released { at, late })
    }

    /// Tokens that are ready and not released.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.ready.len()
    }

    /// When the last token was released; `None` before the first.
    #[must_use]
    pub const fn released_at(&self) -> Option<&T> {
        self.released_at.as_ref()
    }

    /// Tokens that were late.
    #[must_use]
    pub const fn late(&self) -> u64 {
        self.late
    }
}
