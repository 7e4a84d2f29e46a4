//! Named crash points: the places in multi-step updates where dying matters.
//!
//! Code calls [`reach`] there. Without the feature `crash-points` that is nothing; with it a
//! process can be told to kill itself at the nth visit of a point, and what was visited is counted,
//! so that a test can demand that every point is.

/// A place where a process may die.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CrashPoint {
    /// An intent is published, nothing of it written yet.
    IntentOpen,
    /// What an intent says is written, it is not closed yet.
    IntentWritten,
}

/// Marks that the program is at `point`.
#[inline]
pub fn reach(point: CrashPoint) {
    let _ = point;
}
