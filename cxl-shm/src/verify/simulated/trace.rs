//! What happened, in order: a fingerprint of the whole run and the last events in full.

use std::collections::VecDeque;
use std::fmt;

/// Events kept in full.
const KEPT: usize = 1024;

/// What kind of thing happened. The first group is what programs did, the second what hosts and
/// caches did by themselves.
#[expect(missing_docs, reason = "named after the operations of Fabric, HostMemory and the rack")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    Load,
    Store,
    ReadLine,
    WriteLine,
    WriteBack,
    Invalidate,
    Fence,
    ReadBack,
    DmaRead,
    DmaWrite,
    MemoryLoad,
    MemoryStore,
    MemoryExchange,
    /// An operation of a suppressed site: nothing was done.
    Suppressed,

    /// A dirty line left the host by itself.
    CacheWroteBack,
    /// A clean line was dropped by itself.
    CacheEvicted,
    /// A line was fetched by itself.
    CachePrefetched,
    /// A flush completed before its fence.
    FlushCompleted,
    /// A posted write reached the device by itself.
    PostedLanded,
    HostCrash,
    ProcessCrash,
    /// A host, or one process of it, stands still for a while.
    Pause,
    /// Time advanced while nobody did anything.
    TimeJump,
    /// A process touched metadata that the device cannot read.
    MemoryFailed,
}

impl EventKind {
    /// Whether a program did it: an operation, also one whose site was suppressed.
    #[must_use]
    pub fn is_operation(self) -> bool {
        !matches!(
            self,
            Self::CacheWroteBack
                | Self::CacheEvicted
                | Self::CachePrefetched
                | Self::FlushCompleted
                | Self::PostedLanded
                | Self::HostCrash
                | Self::ProcessCrash
                | Self::Pause
                | Self::TimeJump
                | Self::MemoryFailed
        )
    }
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Position in the run, from 0.
    pub number: u64,
    /// Task of the schedule that ran at that moment.
    pub task: Option<usize>,
    /// Host that it happened at.
    pub host: usize,
    /// What happened.
    pub kind: EventKind,
    /// Offset in bytes, index of a host-memory word, or 0.
    pub at: u64,
    /// Value stored or loaded, number of lines, nanoseconds, or 0.
    pub value: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8} ", self.number)?;
        match self.task {
            Some(task) => write!(f, "task {task:<2} ")?,
            None => write!(f, "        ")?,
        }
        write!(f, "host {:<2} {:?} at {:#x}: {:#x}", self.host, self.kind, self.at, self.value)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    events: u64,
    last: VecDeque<Event>,
}

impl Default for Trace {
    fn default() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, events: 0, last: VecDeque::new() }
    }
}

impl Trace {
    pub(super) fn note(
        &mut self,
        task: Option<usize>,
        host: usize,
        kind: EventKind,
        at: u64,
        value: u64,
    ) {
        let event = Event { number: self.events, task, host, kind, at, value };
        self.events += 1;
        let who = task.map_or(0, |task| task as u64 + 1) << 32 | (host as u64) << 8 | kind as u64;
        for part in [who, at, value] {
            self.hash = (self.hash ^ part).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }

    /// Depends on every event and on their order.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn last(&self) -> impl Iterator<Item = Event> {
        self.last.iter().copied()
    }
}
