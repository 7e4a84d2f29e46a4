//! Rackline's: the controller, with the planner inside.

use std::collections::HashMap;

use kv_cache::placement::{
    Action, Controller, Horizon, Job, Measured, Placement, PlanError, Policy as Limits, Ratio,
};

use super::{Aim, Decided, Policy, PolicyKind};
use crate::machine::{BLOCK_TOKENS, Running};

/// Steps of a search after which its best plan is taken.
const SEARCH_STEPS: u64 = 5_000;
/// Decode steps for which a plan is asked whether it holds.
const WINDOW_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct Ours {
    controller: Controller,
    slo_ns: u64,
    deposits: bool,
    /// Of requests in the batch and of paused ones.
    tokens: HashMap<u64, u64>,
    placements: HashMap<u64, Placement>,
}

impl Ours {
    pub(super) fn new(kind: PolicyKind, aim: Aim) -> Self {
        let machine = &aim.machine;
        let tolerated = Ratio::from_integer(u64::from(kind == PolicyKind::OursNoPause));
        let horizon = Horizon {
            block_tokens: BLOCK_TOKENS,
            steps_max: WINDOW_MAX,
            tolerated,
            ..Horizon::default()
        };
        let limits = Limits { horizon, ..Limits::new(machine.layers(), machine.gpu_blocks) };
        let mean = vec![Running { id: 0, tokens: aim.mean_tokens }; aim.batch_max];
        let (layer_ns, block_ns) = (machine.layer_ns(&mean), Some(machine.block_ns));
        Self {
            controller: Controller::new(limits, Measured { layer_ns, block_ns }),
            slo_ns: aim.slo_ns,
            deposits: kind.deposits(),
            tokens: HashMap::new(),
            placements: HashMap::new(),
        }
    }
}

impl Policy for Ours {
    fn arrive(&mut self, request: Running) {
        self.tokens.insert(request.id, request.tokens);
        let Running { id, tokens } = request;
        self.controller.arrive(Job { id, tokens, slo_ns: Some(self.slo_ns) });
    }

    fn finish(&mut self, id: u64) {
        self.controller.finish(id);
        self.tokens.remove(&id);
        self.placements.remove(&id);
    }

    fn decide(&mut self) -> Result<Decided, PlanError> {
        let mut steps = 0;
        let mut proceed = || {
            steps += 1;
            steps < SEARCH_STEPS
        };
        let mut decided = Decided::default();
        for action in self.controller.decide(&mut proceed)?.actions {
            match action {
                Action::Pause(id) => decided.paused.push(id),
                Action::Evict { id, layers } => decided.evicted.push((id, layers)),
                Action::Place { id, placement } => drop(self.placements.insert(id, placement)),
                Action::Reject { id, .. } => decided.rejected.push(id),
                _ => {}
            }
        }
        decided.batch = self
            .controller
            .running()
            .map(|id| {
                let tokens = self.tokens.get(&id).copied().unwrap_or(0);
                (Running { id, tokens }, self.placements.get(&id).cloned().unwrap_or_default())
            })
            .collect();
        Ok(decided)
    }

    fn stepped(&mut self, now_ns: u64, measured: Measured) {
        for id in self.controller.running() {
            if let Some(tokens) = self.tokens.get_mut(&id) {
                *tokens += 1;
            }
        }
        self.controller.stepped(now_ns, measured);
        // Without a deposit nothing waits for its time.
        self.controller.release(if self.deposits { now_ns } else { u64::MAX / 2 });
    }
}
