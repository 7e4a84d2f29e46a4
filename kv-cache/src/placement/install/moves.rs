//! Where each layer of each request is, and what has to be moved for a new plan (PLAN-X1).

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::{Action, Placement};

/// Where the KV of the requests is, by a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Installed {
    pub(super) requests: BTreeMap<u64, Whereabouts>,
}

/// Where the KV of one request is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Whereabouts {
    /// The number of the plan that told of the request first; 0 before one has. A request with the same
    /// name and another number is another request.
    pub(super) since: u64,
    /// Whether the request is in the batch; else it is paused.
    pub(super) running: bool,
    /// Layers that lie in the pool, counted from 1.
    pub(super) offloaded: BTreeSet<u16>,
}

/// One layer of a request that changes its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Move {
    /// The layer leaves the engine's memory. Its blocks stay in the pool.
    Leave {
        /// The request.
        request: u64,
        /// The layer, counted from 1.
        layer: u16,
    },
    /// The layer comes from the pool, and stays in the engine's memory.
    Come {
        /// The request.
        request: u64,
        /// The layer, counted from 1.
        layer: u16,
    },
}

impl Installed {
    /// One request that decodes, with this placement: for an engine without a controller.
    #[must_use]
    pub fn of(request: u64, placement: &Placement) -> Self {
        let mut installed = Self::default();
        installed.apply(&Action::Place { id: request, placement: placement.clone() });
        installed.number(1);
        installed
    }

    /// Enters what an engine is told to do.
    pub fn apply(&mut self, action: &Action) {
        match action {
            Action::Pause(id) => self.set_running(*id, false),
            Action::Resume(id) => self.set_running(*id, true),
            Action::Evict { id, layers } => {
                self.requests.entry(*id).or_default().offloaded.extend(layers);
            }
            Action::Place { id, placement } => {
                let offloaded = placement.offloaded().iter().copied().collect();
                let since = self.requests.get(id).map_or(0, |at| at.since);
                self.requests.insert(*id, Whereabouts { since, running: true, offloaded });
            }
            Action::Reject { id, .. } => self.forget(*id),
        }
    }

    /// The request is over: its KV is nowhere any more.
    pub fn forget(&mut self, request: u64) {
        self.requests.remove(&request);
    }

    /// Numbers the requests of which no plan has told, before the plan `version` does.
    pub(in crate::placement) fn number(&mut self, version: u64) {
        let new = self.requests.values_mut().filter(|at| at.since == 0);
        new.for_each(|at| at.since = version);
    }

    /// The requests of the batch, with their placements, by their names.
    #[must_use]
    pub fn batch(&self) -> Vec<(u64, Placement)> {
        let running = self.requests.iter().filter(|(_, at)| at.running);
        let placement = |at: &Whereabouts| {
            Placement::of_ascending(at.offloaded.iter().copied().collect::<Vec<_>>())
        };
        running.map(|(id, at)| (*id, placement(at))).collect()
    }

    /// The smallest set of moves that leads from this plan to `next`, in an order that never needs
    /// more memory than the larger of the two (PLAN-X1).
    ///
    /// A request that is new has all its layers in the engine's memory. One that is not in `next`
    /// is over, and nothing of it is moved.
    #[must_use]
    pub fn moves_to(&self, next: &Self) -> Vec<Move> {
        let nowhere = BTreeSet::new();
        let mut leaving = Vec::new();
        let mut coming = Vec::new();
        for (&request, at) in &next.requests {
            let before = self.requests.get(&request).filter(|before| before.since == at.since);
            let before = before.map_or(&nowhere, |before| &before.offloaded);
            let leave = at.offloaded.difference(before);
            leaving.extend(leave.map(|&layer| Move::Leave { request, layer }));
            let come = before.difference(&at.offloaded);
            coming.extend(come.map(|&layer| Move::Come { request, layer }));
        }
        leaving.append(&mut coming);
        leaving
    }

    fn set_running(&mut self, id: u64, running: bool) {
        if let Some(at) = self.requests.get_mut(&id) {
            at.running = running;
        }
    }
}
