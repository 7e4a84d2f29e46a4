//! What happens when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens. Workers and requests are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    Arrives {
        request: usize,
    },
    PrefillBegins {
        worker: u16,
        request: usize,
    },
    LookedUp {
        worker: u16,
        request: usize,
    },
    /// What drives had of its prompt is in the pool.
    Restored {
        worker: u16,
        request: usize,
    },
    Read {
        worker: u16,
        request: usize,
    },
    Computed {
        worker: u16,
        request: usize,
    },
    Written {
        worker: u16,
        request: usize,
        blocks: u64,
    },
    DecodeBegins {
        worker: u16,
        request: usize,
    },
    DecodeLookedUp {
        worker: u16,
        request: usize,
    },
    DecodeRead {
        worker: u16,
        request: usize,
        found: usize,
    },
    Iterated {
        worker: u16,
    },
    /// The agent of a node looks for blocks that are due.
    BacksUp {
        node: u16,
    },
    /// It has written some.
    BackedUp {
        node: u16,
    },
    /// A node is killed.
    Killed {
        node: u16,
    },
}

/// What is to happen: the soonest first, and of two at one time the one that was known first (RACK-V1).
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    known: u64,
}

impl Events {
    pub(super) fn at(&mut self, at_ns: u64, event: Event) {
        self.heap.push(Reverse((at_ns, self.known, event)));
        self.known += 1;
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((at_ns, _, event))| (at_ns, event))
    }
}
