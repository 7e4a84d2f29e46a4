//! What a child tells its parent: a line of JSON an event, in one write, so that a death leaves
//! none half said. What was written stays in the pipe when the writer dies.

use anyhow::{Context, Result};
pub(super) use rackline_workers::tell;
use serde::{Deserialize, Serialize};

/// Something that is about to happen, or has happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// A chunk that an earlier life of this worker had taken is still its own.
    Found(u32),
    /// The worker has looked after what its earlier lives left.
    Up,
    /// It holds the lock of a counter and is about to count.
    Counting(u32),
    /// It has counted: counter, and its value since.
    Counted(u32, u64),
    /// It found a count half done and completed it: counter, and its value since.
    Repaired(u32, u64),
    /// It had a lock, or gave up waiting for one, and changed nothing.
    Locked,
    /// A lock was not acquired.
    Busy,
    /// It is about to take a chunk.
    Taking,
    /// It has taken a chunk.
    Took(u32),
    /// It is about to give a chunk back.
    Giving(u32),
    /// It has given a chunk back.
    Gave(u32),
    /// It could not give a chunk back, and keeps it.
    Kept(u32),
    /// It is about to publish blocks, from this number on, this many.
    Publishing(u64, u64),
    /// It has published these blocks.
    Published(Vec<u64>),
    /// So many blocks of its node had to make room for what it published.
    Evicted(u64),
    /// A block of its own that was there is not any more: evicted, or lost.
    Missing(u64),
    /// A block that an earlier life was at when it died is there, whole.
    Adopted(u64),
    /// It holds a block from now on.
    Held,
    /// It holds nothing, and does nothing.
    Rests,
    /// It has looked whether its blocks are there, while everybody rested.
    Looked,
    /// It is about to remove a block.
    Retiring(u64),
    /// It has removed a block.
    Retired(u64),
    /// It has read a block, whole and right.
    Verified,
    /// It is about to name an object: number of the root.
    Naming(u64),
    /// It has named it.
    Named(u64),
    /// It could not name it: there is no such root.
    NotNamed(u64),
    /// It is about to destroy a root: the worker that put it, and its number.
    Destroying(u32, u64),
    /// It has destroyed it, or found it gone after it had begun to.
    Destroyed(u32, u64),
    /// It has allocated an object.
    Allocated,
    /// It has freed an object: one of another worker's or its own.
    Freed {
        /// It was another worker's.
        foreign: bool,
    },
    /// It has given chunks of its heap back, or stored a profile.
    Tended,
    /// A lock manager serves in a new term.
    Serving(u64),
    /// A lock manager has seen that a node was declared dead.
    DeclaredDead(u16),
    /// A lock manager has recovered a dead node.
    Recovered(u16),
    /// It found its host declared dead, and ends.
    Fenced,
    /// How often this process visited a crash point.
    Visited(String, u64),
    /// Something that must never be.
    Fault(String),
    /// It has nothing left and ends in order.
    Stopped,
}

impl Event {
    /// Whether the process that says so got on with its work.
    pub(super) fn is_progress(&self) -> bool {
        !matches!(
            self,
            Self::Busy
                | Self::Taking
                | Self::Kept(_)
                | Self::Publishing(..)
                | Self::Naming(_)
                | Self::NotNamed(_)
                | Self::Destroying(..)
        )
    }
}

/// The event in a line.
pub(super) fn hear(line: &str) -> Result<Event> {
    serde_json::from_str(line).with_context(|| format!("no event: {line:?}"))
}
