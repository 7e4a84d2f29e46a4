//! The order of the fetches of one decode iteration, with two buffers a request (PLAN-X2).

use std::collections::BTreeMap;

use crate::placement::Placement;
use crate::placement::memory::BUFFERS;

/// A layer that is to be brought into a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fetch {
    /// The request.
    pub request: u64,
    /// The layer, counted from 1.
    pub layer: u16,
    /// The buffer of the request: 0 or 1.
    pub buffer: usize,
}

/// The fetches of one decode iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prefetch {
    waiting: Vec<Waiting>,
    fetches: Vec<Fetch>,
    /// The last layer that has executed; 0 before the first.
    executed: u16,
}

/// A fetch that has not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    fetch: Fetch,
    /// The layer that has its buffer before; 0 when there is none.
    after: u16,
}

impl Prefetch {
    /// The fetches for these requests, of which nothing has begun.
    #[must_use]
    pub fn new(batch: &[(u64, Placement)]) -> Self {
        let mut by_layer: BTreeMap<u16, Vec<Waiting>> = BTreeMap::new();
        for (request, placement) in batch {
            let offloaded = placement.offloaded();
            for (index, &layer) in offloaded.iter().enumerate() {
                let fetch = Fetch { request: *request, layer, buffer: index % BUFFERS };
                let after = index.checked_sub(BUFFERS).map_or(0, |before| offloaded[before]);
                by_layer.entry(layer).or_default().push(Waiting { fetch, after });
            }
        }
        let waiting: Vec<_> = by_layer.into_values().flatten().collect();
        let fetches = waiting.iter().map(|waiting| waiting.fetch).collect();
        Self { waiting, fetches, executed: 0 }
    }

    /// The fetch to begin now; `None` when no buffer is free for one.
    pub fn begin_next(&mut self) -> Option<Fetch> {
        let ready = |waiting: &Waiting| waiting.after <= self.executed;
        let next = self.waiting.iter().position(ready)?;
        Some(self.waiting.remove(next).fetch)
    }

    /// Whether layers of `request` are fetched.
    #[must_use]
    pub fn streams(&self, request: u64) -> bool {
        self.fetches.iter().any(|fetch| fetch.request == request)
    }

    /// The fetches that a layer needs before it executes.
    pub fn of_layer(&self, layer: u16) -> impl Iterator<Item = Fetch> {
        self.fetches.iter().copied().filter(move |fetch| fetch.layer == layer)
    }

    /// A layer has executed, and those before it: their buffers are free.
    pub fn executed(&mut self, layer: u16) {
        self.executed = self.executed.max(layer);
    }
}
