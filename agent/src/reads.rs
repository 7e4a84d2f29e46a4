//! Which reads of the drives wait or are under way: told by the thread that restores, asked by the
//! thread that backs up.

use std::sync::{Mutex, PoisonError};

/// Reads of all drives of the host.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<(usize, u64)>);

impl Reads {
    /// `now` reads wait or are under way, and `ever` were queued since the start.
    pub(crate) fn tell(&self, now: usize, ever: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (now, ever);
    }

    /// How many wait or are under way, and how many there ever were.
    #[must_use]
    pub(crate) fn get(&self) -> (usize, u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
