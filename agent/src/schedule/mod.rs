//! When blocks are written to the drives: decisions alone, without a drive and without a clock.
//!
//! ```text
//! engines      which of them compute, and for how long      --->  a window, or none
//! slack        how long forwards of a shape take, learned
//! scheduler    reads, the window, the oldest write          --->  one more write, or none
//! ```
//!
//! An engine that computes asks for no blocks of the request that it computes. So the drives are
//! written then. Each decision is an [`Event`], and what the agent counts comes from events.
//!
//! - **AGENT-W1** Reads first: no write begins while a restore waits or is under way.
//! - **AGENT-W2** A window is open while an engine computes, and no engine of the host has begun or
//!   ended something lately that the slack table does not foresee. It ends when the first forward is
//!   expected to end. A forward that ends before closes it.
//! - **AGENT-W3** A write begins in a window when it and those under way end before the window does,
//!   at the measured speed. At most as many are under way as the settings say.
//! - **AGENT-W4** While no engine says anything, writes begin when no read was there for a time.
//! - **AGENT-W5** When the oldest write has waited for a time, only the oldest write begins: in a window
//!   if it fits, else alone, whatever reads and engines do. So a write waits at most for that time,
//!   and for the writes that were queued before it.

mod engines;
mod events;
mod scheduler;
mod slack;
#[cfg(test)]
mod tests;

pub(crate) use engines::Engines;
pub(crate) use events::{Event, Why};
pub(crate) use scheduler::{Next, Scheduler, Waiting};
pub(crate) use slack::{Shape, SlackTable};

/// A rule that is not kept, to show that the checks of the log notice it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// AGENT-W1: a write begins beside reads.
    IgnoresReads,
    /// AGENT-W2: a forward that ends early does not close its window.
    KeepsWindow,
    /// AGENT-W2: the window of a host ends with the last forward instead of the first.
    LastForward,
    /// AGENT-W2: an engine between two forwards does not close the window.
    IgnoresGaps,
    /// AGENT-W3: a window has no end for writes.
    IgnoresBudget,
    /// AGENT-W3: writes under way are not counted.
    CountsOneWrite,
    /// AGENT-W3: any number of writes is under way.
    IgnoresDepth,
    /// AGENT-W4: writes begin as soon as a read is over.
    IdleAtOnce,
    /// AGENT-W5: old writes wait on.
    NeverLate,
    /// AGENT-W5: old writes begin beside others.
    LateBesideOthers,
    /// AGENT-W5: old writes wait while younger ones begin.
    YoungFirst,
}

#[cfg(not(test))]
const fn breaks(_: Mutant) -> bool {
    false
}

#[cfg(test)]
use tests::breaks;
