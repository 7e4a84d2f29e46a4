//! What the controller knows of one request.

use num_rational::Ratio;

use super::{Action, Job, Policy};
use crate::placement::{Deposit, Placement, Request};

/// Longer promises count as this: 146 years.
const SLO_NS_MAX: u64 = 1 << 62;

/// A request that runs or waits.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) job: Job,
    deposit: Option<Deposit<u64>>,
    /// Tokens that were computed and wait for no SLO.
    unpaced: usize,
    /// Where its KV is; `None` before its first iteration.
    placement: Option<Placement>,
    /// Whether it is in the iterations that run: a decision has placed it.
    in_batch: bool,
    /// Of a paused request: layers that are on the GPU, ascending.
    kept: Vec<u16>,
    /// Whether it was paused before the decision that is being made.
    pub(super) resumed: bool,
    /// Iterations since it was paused.
    pub(super) paused_for: u32,
    /// Iterations for which it has to run before it may be paused.
    protected_for: u32,
}

impl Entry {
    pub(super) fn new(job: Job) -> Self {
        Self {
            job,
            // So that no moment of a release is beyond what is counted.
            deposit: job.slo_ns.map(|slo_ns| Deposit::new(slo_ns.min(SLO_NS_MAX))),
            unpaced: 0,
            placement: None,
            in_batch: false,
            kept: Vec::new(),
            resumed: false,
            paused_for: 0,
            protected_for: 0,
        }
    }

    /// An iteration ended. A request that came during it was not in it.
    pub(super) fn ran(&mut self, now_ns: u64) {
        if !self.in_batch {
            return;
        }
        self.job.tokens += 1;
        self.protected_for = self.protected_for.saturating_sub(1);
        match &mut self.deposit {
            Some(deposit) => deposit.put(now_ns),
            None => self.unpaced += 1,
        }
    }

    /// Releases what is due, and says how many tokens.
    pub(super) fn release(&mut self, now_ns: u64) -> usize {
        let deposit = self.deposit.as_mut();
        let paced =
            deposit.map_or(0, |deposit| std::iter::from_fn(|| deposit.release(&now_ns)).count());
        paced + std::mem::take(&mut self.unpaced)
    }

    pub(super) fn deposited(&self) -> usize {
        self.deposit.as_ref().map_or(0, Deposit::tokens)
    }

    pub(super) const fn may_pause(&self) -> bool {
        self.protected_for == 0
    }

    pub(super) const fn is_placed(&self) -> bool {
        self.placement.is_some()
    }

    /// Blocks a layer, the block for the next token among them.
    pub(super) fn blocks(&self, policy: &Policy) -> u64 {
        self.job.tokens / u64::from(policy.horizon.block_tokens.max(1)) + 1
    }

    /// What the planner is to know at `now_ns`.
    pub(super) fn request(&self, policy: &Policy, layer_ns: u64, now_ns: u64) -> Request {
        let block_tokens = u64::from(policy.horizon.block_tokens.max(1));
        let free = block_tokens - 1 - self.job.tokens % block_tokens;
        let shortest_ns = layer_ns.saturating_mul(policy.layers.into());
        // PLAN-C7.
        let slo_ns = self.job.slo_ns.filter(|slo_ns| *slo_ns >= shortest_ns);
        Request {
            blocks_per_layer: self.blocks(policy),
            free_tokens: u32::try_from(free).unwrap_or(u32::MAX),
            slo_layer_times: slo_ns.map(|slo_ns| Ratio::new(slo_ns, layer_ns)),
            deposit_tokens: u32::try_from(self.deposited()).unwrap_or(u32::MAX),
            since_release: self
                .since_release(shortest_ns, now_ns)
                .map(|since_ns| Ratio::new(since_ns, layer_ns)),
        }
    }

    /// Nanoseconds since the last token was released; `None` before the first. 0 where the next token is
    /// late in any case, as the next iteration takes `shortest_ns` at least: the delay counts once
    /// (PLAN-D2).
    fn since_release(&self, shortest_ns: u64, now_ns: u64) -> Option<u64> {
        let released_at = self.deposit.as_ref().and_then(Deposit::released_at);
        let since_ns = now_ns.saturating_sub(*released_at?);
        let slo_ns = self.job.slo_ns.unwrap_or(0).min(SLO_NS_MAX);
        let due_ns = u128::from(slo_ns) * (self.deposited() as u128 + 1);
        let is_on_time = u128::from(since_ns) + u128::from(shortest_ns) <= due_ns;
        Some(if is_on_time { since_ns } else { 0 })
    }

    /// The plan for it, told to the engine when it is a new one.
    pub(super) fn place(&mut self, placement: Placement, actions: &mut Vec<Action>) {
        // While it was paused, layers may have left the GPU: the engine is told all again.
        if self.resumed || self.placement.as_ref() != Some(&placement) {
            let id = self.job.id;
            actions.push(Action::Place { id, placement: placement.clone() });
            self.placement = Some(placement);
        }
        self.in_batch = true;
        self.resumed = false;
        self.paused_for = 0;
        self.kept.clear();
    }

    pub(super) fn placement(&self) -> Placement {
        self.placement.clone().unwrap_or_default()
    }

    /// Takes it out of the batch, with its KV where it is.
    pub(super) fn pause(&mut self, layers: u16) {
        self.in_batch = false;
        self.paused_for = 0;
        self.protected_for = 0;
        if let Some(placement) = &self.placement {
            let offloaded = placement.offloaded();
            let kept = (1..=layers).filter(|layer| offloaded.binary_search(layer).is_err());
            self.kept = kept.collect();
        }
    }

    /// Takes it into the batch again, to run for so many iterations at least.
    pub(super) const fn resume(&mut self, run_steps_min: u32) {
        self.resumed = true;
        self.protected_for = run_steps_min;
    }

    /// It was to resume, and there is no room after all: it has waited as long as before.
    pub(super) const fn stay_paused(&mut self) {
        self.resumed = false;
        self.protected_for = 0;
    }

    /// Blocks of it that are on the GPU while it is paused.
    pub(super) fn kept_blocks(&self, policy: &Policy) -> u64 {
        self.blocks(policy) * self.kept.len() as u64
    }

    /// Gives up layers, the last first, until `blocks` are free or none are left.
    pub(super) fn evict(&mut self, blocks: u64, policy: &Policy) -> Vec<u16> {
        let of_layer = self.blocks(policy);
        let mut evicted = Vec::new();
        while (evicted.len() as u64) * of_layer < blocks
            && let Some(layer) = self.kept.pop()
        {
            evicted.push(layer);
        }
        evicted.reverse();
        evicted
    }
}
