//! Who flushes and fences: a fence waits for the flushes of its own thread of execution only.

use std::thread::ThreadId;

/// A thread of execution of some host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Actor {
    /// A thread outside every schedule.
    Thread(ThreadId),
    /// A task of a schedule, all its lives together.
    Task {
        /// Which schedule of the rack.
        run: u64,
        /// Which task of it.
        index: usize,
    },
}
