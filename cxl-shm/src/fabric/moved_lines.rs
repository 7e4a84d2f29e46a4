//! How many lines a thread moved between the caches and the device, for figures.

use std::cell::Cell;

/// Lines that a thread moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovedLines {
    /// Written back: the first half of a publish (MEM-M2).
    pub written_back: u64,
    /// Dropped from the caches: a refresh (MEM-M3).
    pub dropped: u64,
    /// Read back: the second half of a publish, where the platform needs it.
    pub read_back: u64,
}

impl MovedLines {
    const NONE: Self = Self { written_back: 0, dropped: 0, read_back: 0 };
}

thread_local! {
    /// Of all mappings together: a thread of more than one region is rare, and these are figures.
    static MOVED: Cell<MovedLines> = const { Cell::new(MovedLines::NONE) };
}

/// Counts what this thread moves.
#[inline]
pub(super) fn note(moved: impl FnOnce(&mut MovedLines)) {
    MOVED.with(|cell| {
        let mut now = cell.get();
        moved(&mut now);
        cell.set(now);
    });
}

/// What this thread has moved since the last call.
pub(super) fn take() -> MovedLines {
    MOVED.replace(MovedLines::NONE)
}
