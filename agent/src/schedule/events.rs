//! What the scheduler decides, and what it was told, in order.

/// Why a write begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// It fits into a window (AGENT-W3).
    Window {
        /// Which window, counted from 1.
        window: u64,
    },
    /// Nothing else is there (AGENT-W4).
    Idle,
    /// It has waited for long (AGENT-W5).
    Late,
    /// The agent stops, and writes what waits.
    Stops,
}

/// What happened, or was decided. Times are in microseconds of the host's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A window opens, or its end moves.
    Opens {
        /// When that was.
        at_us: u64,
        /// Which window.
        window: u64,
        /// When it ends.
        until_us: u64,
    },
    /// A window closes.
    Closes {
        /// When that was.
        at_us: u64,
        /// Which window.
        window: u64,
    },
    /// A write begins.
    Begins {
        /// When that was.
        at_us: u64,
        /// Number of the write.
        write: u64,
        /// How long its block is.
        bytes: u64,
        /// Why now.
        why: Why,
    },
    /// A write is over.
    Ends {
        /// When that was.
        at_us: u64,
        /// Number of the write.
        write: u64,
    },
}
