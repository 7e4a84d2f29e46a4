//! What runs, what waits, and when a new plan is made.
//!
//! A state machine without a clock and without threads. The engine tells it of requests, and of
//! each decode iteration; between two iterations it asks for the [`Action`]s to carry out.
//!
//! - **PLAN-C1** A new plan is made between two iterations, when a [`Trigger`] says that the old one
//!   does not hold any more: the batch changed, the measured times differ from those planned with,
//!   the decode window ended, or a paused request has waited long enough.
//! - **PLAN-C2** When no plan fits, the running request with the largest sum of blocks a layer and
//!   deposited tokens is paused. It gives the most room, and its reader notices it last.
//! - **PLAN-C3** A paused request keeps its KV on the GPU until others need the room. Then only as
//!   many layers leave as are needed, first those of the request that was paused last.
//! - **PLAN-C4** Paused requests resume in the order in which they were paused, and none overtakes.
//!   A request that was paused for `pause_steps_max` iterations runs in the next one, and is not
//!   paused before it ran for `run_steps_min` iterations. So every request runs again.
//! - **PLAN-C5** A request that does not fit alone is rejected. A request that fits alone runs, also
//!   when its tokens are late, or it will not fit any more before the horizon ends: a late token is
//!   better than none. Where no distance makes it fit, all its layers are offloaded.
//! - **PLAN-C6** At most [`REQUESTS_MAX`] requests run. Others wait, as if they were paused. When one
//!   of these has waited long enough (PLAN-C4), a running request is paused for it.
//! - **PLAN-C7** A promise that is shorter than an iteration without stalls does not count for a plan:
//!   no pause of others keeps it.
//! - **PLAN-C8** A request that no batch can have is rejected. Requests that are too large together, so
//!   that their blocks cannot be counted, count as requests that do not fit.

mod profile;
mod requests;

use num_rational::Ratio;

pub use self::profile::Measured;

use self::profile::Profile;
use self::requests::Entry;
use super::{
    BLOCKS_MAX, Batch, BatchError, BigRational, Horizon, HorizonError, Infeasible, Model, Options,
    Outcome, Placement, Plan, PlanError, REQUESTS_MAX, Request, Space, evaluate, plan,
};

/// The machine, and how it is to be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Layers of the model.
    pub layers: u16,
    /// Blocks for which the GPU has room.
    pub gpu_blocks: u64,
    /// How link and memory are modelled.
    pub model: Model,
    /// How long a plan is to hold, and which tokens may be late.
    pub horizon: Horizon,
    /// Measurements that are averaged.
    pub measurements: usize,
    /// A new plan is made when an average differs by more than that from the time planned with.
    pub mismatch_percent: u32,
    /// Iterations for which a request is paused at most.
    pub pause_steps_max: u32,
    /// Iterations for which a resumed request runs at least; 0 counts as 1.
    pub run_steps_min: u32,
}

impl Policy {
    /// The usual policy for a machine.
    #[must_use]
    pub fn new(layers: u16, gpu_blocks: u64) -> Self {
        Self {
            layers,
            gpu_blocks,
            model: Model::default(),
            horizon: Horizon::default(),
            measurements: 8,
            mismatch_percent: 20,
            pause_steps_max: 64,
            run_steps_min: 16,
        }
    }
}

/// A request that is to decode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// Its name. No two requests have the same at one time. A name may be used again when its request
    /// is over.
    pub id: u64,
    /// Tokens whose KV exists.
    pub tokens: u64,
    /// The time between two tokens that the reader was promised, in nanoseconds.
    pub slo_ns: Option<u64>,
}

/// Why a new plan was made (PLAN-C1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Trigger {
    /// A request came or finished.
    BatchChange,
    /// Compute or transfers take longer, or less long, than planned with.
    ProfileMismatch,
    /// The plan does not hold for the next iteration.
    WindowEnd,
    /// A paused request has waited long enough.
    PauseEnd,
}

/// What the engine has to do before the next iteration, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Take the request out of the batch; its KV stays where it is.
    Pause(u64),
    /// Move these layers of a paused request to the pool.
    Evict {
        /// The request.
        id: u64,
        /// Its layers, counted from 1.
        layers: Vec<u16>,
    },
    /// Take the request into the batch again.
    Resume(u64),
    /// Offload these layers of the request, and keep the others on the GPU.
    Place {
        /// The request.
        id: u64,
        /// Its placement.
        placement: Placement,
    },
    /// The request cannot run on this machine, not even alone: give it up.
    Reject {
        /// The request.
        id: u64,
        /// Why.
        reason: Infeasible,
    },
}

/// What was decided between two iterations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// Why a new plan was made; `None` when the old one holds.
    pub trigger: Option<Trigger>,
    /// What to do.
    pub actions: Vec<Action>,
}

/// Decides what runs, and where its KV is.
#[derive(Debug)]
pub struct Controller {
    policy: Policy,
    profile: Profile,
    running: Vec<Entry>,
    /// In the order in which they were paused.
    paused: Vec<Entry>,
    changed: bool,
    /// When the last iteration ended, or the last tokens were released.
    now_ns: u64,
    /// Iterations for which the plan still holds.
    window_left: u32,
}

impl Controller {
    /// A controller that expects these times until it is told of measured ones.
    #[must_use]
    pub fn new(policy: Policy, expected: Measured) -> Self {
        let block_ns = expected.block_ns.unwrap_or(1).max(1);
        let profile = Profile::new(expected.layer_ns.max(1), block_ns, policy.measurements.max(1));
        let (running, paused) = (Vec::new(), Vec::new());
        Self { policy, profile, running, paused, changed: false, now_ns: 0, window_left: 0 }
    }

    /// A request came. It runs from the next decision on, if there is room. A request that has its name
    /// is over: an engine that computes a request again need not finish it first.
    pub fn arrive(&mut self, job: Job) {
        self.finish(job.id);
        let entry = Entry::new(job);
        if self.running.len() < REQUESTS_MAX {
            self.running.push(entry);
        } else {
            // PLAN-C6.
            self.paused.push(entry);
        }
        self.changed = true;
    }

    /// A request is over: finished, or given up.
    pub fn finish(&mut self, id: u64) {
        let before = self.running.len() + self.paused.len();
        self.running.retain(|entry| entry.job.id != id);
        self.paused.retain(|entry| entry.job.id != id);
        self.changed |= before > self.running.len() + self.paused.len();
    }

    /// An iteration ended at `now_ns`: each request that the last decision had in the batch has one more
    /// token. `None` where nothing was measured.
    pub fn stepped(&mut self, now_ns: u64, measured: impl Into<Option<Measured>>) {
        self.now_ns = now_ns;
        if let Some(measured) = measured.into() {
            self.profile.add(measured);
        }
        self.window_left = self.window_left.saturating_sub(1);
        for entry in &mut self.running {
            entry.ran(now_ns);
        }
        for entry in &mut self.paused {
            entry.paused_for += 1;
        }
    }

    /// The tokens that readers are to have now, as request and count (PLAN-D1).
    pub fn release(&mut self, now_ns: u64) -> Vec<(u64, usize)> {
        self.now_ns = self.now_ns.max(now_ns);
        let all = self.running.iter_mut().chain(&mut self.paused);
        let released = all.map(|entry| (entry.job.id, entry.release(now_ns)));
        released.filter(|(_, tokens)| *tokens > 0).collect()
    }

    /// The requests of the batch, in the order that decides between two layers that are due at the
    /// same time ([`Discipline::Edf`](super::Discipline::Edf)).
    pub fn running(&self) -> impl Iterator<Item = u64> {
        self.running.iter().map(|entry| entry.job.id)
    }

    /// The requests that wait, in the order in which they resume.
    pub fn paused(&self) -> impl Iterator<Item = u64> {
        self.paused.iter().map(|entry| entry.job.id)
    }

    /// Tokens of a request that are computed and not released.
    #[must_use]
    pub fn deposited(&self, id: u64) -> usize {
        let mut all = self.running.iter().chain(&self.paused);
        all.find(|entry| entry.job.id == id).map_or(0, Entry::deposited)
    }

    /// What to do before the next iteration. `proceed` may stop the search for a plan early.
    ///
    /// # Errors
    /// The policy is beyond what can be planned, for whatever requests.
    pub fn decide(&mut self, proceed: &mut dyn FnMut() -> bool) -> Result<Decision, PlanError> {
        let trigger = match self.trigger() {
            Some(trigger) => trigger,
            None => match self.room_for_growth() {
                // The requests have grown beyond what can be counted (PLAN-C8).
                Err(PlanError::Batch(BatchError::TooManyBlocks)) => Trigger::WindowEnd,
                decision => return decision,
            },
        };
        let (layer_ns, block_ns) = self.profile.plan_with();
        let link = link(layer_ns, block_ns);
        let mut actions = Vec::new();
        let mut removed = false;
        let mut found = None;
        self.reject_impossible(layer_ns, link, &mut actions)?;
        self.end_pauses(&mut actions);
        while !self.running.is_empty() && found.is_none() {
            let outcome = match self.planned(&self.running, layer_ns, link, proceed)? {
                // Of any reason, which may be one of later steps (PLAN-C5).
                Outcome::Infeasible(_) if self.running.len() == 1 => {
                    removed = true;
                    match self.planned_late(layer_ns, link, &mut || true)? {
                        Outcome::Infeasible(reason) => {
                            self.all_offloaded(layer_ns, link, reason)?
                        }
                        outcome => outcome,
                    }
                }
                // What fits is taken, and the next decision searches again.
                Outcome::Stopped => {
                    removed = true;
                    self.planned_late(layer_ns, link, &mut || false)?
                }
                outcome => outcome,
            };
            match outcome {
                Outcome::Plan(plan) => found = Some(plan),
                outcome => {
                    self.make_room(outcome, &mut actions);
                    removed = true;
                }
            }
            if self.running.is_empty() {
                // The last that ran was rejected: the next one runs.
                self.end_pauses(&mut actions);
            }
        }
        while !removed
            && self.running.len() < REQUESTS_MAX
            && let Some(first) = self.paused.first()
        {
            let mut more = self.running.clone();
            more.push(first.clone());
            let Outcome::Plan(plan) = self.planned(&more, layer_ns, link, proceed)? else { break };
            found = Some(plan);
            self.resume_first(&mut actions);
        }
        self.changed = false;
        self.window_left = found.as_ref().map_or(0, |plan| plan.window_steps);
        if let Some(plan) = found {
            self.evict_for(plan.evaluation.memory_blocks, &mut actions);
            for (entry, placement) in self.running.iter_mut().zip(plan.placements) {
                entry.place(placement, &mut actions);
            }
        }
        Ok(Decision { trigger: Some(trigger), actions })
    }

    /// The plan holds. Requests grow all the same, into the room of paused ones (PLAN-C3).
    fn room_for_growth(&mut self) -> Result<Decision, PlanError> {
        let mut decision = Decision::default();
        if self.paused.iter().any(|entry| entry.kept_blocks(&self.policy) > 0) {
            let (layer_ns, block_ns) = self.profile.planned();
            let batch = self.batch(&self.running, layer_ns, link(layer_ns, block_ns))?;
            let placements: Vec<_> = self.running.iter().map(Entry::placement).collect();
            let needed = evaluate(&batch, &placements, self.policy.model)?.memory_blocks;
            self.evict_for(needed, &mut decision.actions);
        }
        Ok(decision)
    }

    /// Rejects requests that no batch can have (PLAN-C5), before they are in one.
    ///
    /// # Errors
    /// No request can be planned for: the policy is wrong.
    fn reject_impossible(
        &mut self,
        layer_ns: u64,
        link: Ratio<u64>,
        actions: &mut Vec<Action>,
    ) -> Result<(), PlanError> {
        let is_new = |entry: &&Entry| !entry.is_placed();
        let mut bad = Vec::new();
        for entry in self.running.iter().chain(&self.paused).filter(is_new) {
            if entry.job.slo_ns == Some(0) {
                bad.push((entry.job.id, "its promise is 0 ns: a token takes longer".to_owned()));
            } else if let Err(error) = self.batch(std::slice::from_ref(entry), layer_ns, link) {
                let (layers, gpu_blocks) = (self.policy.layers.into(), self.policy.gpu_blocks);
                Batch::new(layers, link, gpu_blocks, vec![Request::new(1)])?;
                bad.push((entry.job.id, error.to_string()));
            }
        }
        for (id, reason) in bad {
            self.running.retain(|entry| entry.job.id != id);
            self.paused.retain(|entry| entry.job.id != id);
            actions.push(Action::Reject { id, reason: Infeasible::Request(reason) });
        }
        Ok(())
    }

    /// Whether requests wait, and nothing runs.
    const fn is_idle(&self) -> bool {
        self.running.is_empty() && !self.paused.is_empty()
    }

    fn trigger(&self) -> Option<Trigger> {
        let waited = |entry: &Entry| entry.paused_for >= self.policy.pause_steps_max;
        // Without a request that may be paused, the last plan had no room, and the next one has none.
        let can_end = || self.paused.iter().any(waited) && self.victim().is_some();
        if self.changed {
            Some(Trigger::BatchChange)
        } else if can_end() || self.is_idle() {
            Some(Trigger::PauseEnd)
        } else if self.running.is_empty() {
            None
        } else if self.profile.differs(self.policy.mismatch_percent) {
            Some(Trigger::ProfileMismatch)
        } else {
            (self.window_left == 0).then_some(Trigger::WindowEnd)
        }
    }

    /// Resumes requests that have waited long enough (PLAN-C4), or for which nothing else runs.
    fn end_pauses(&mut self, actions: &mut Vec<Action>) {
        let most = self.policy.pause_steps_max;
        while let Some(first) = self.paused.first()
            && (first.paused_for >= most || self.running.is_empty())
        {
            if self.running.len() >= REQUESTS_MAX {
                // PLAN-C6.
                let Some((victim, _)) = self.victim() else { return };
                self.pause(victim, actions);
            }
            self.resume_first(actions);
        }
    }

    fn resume_first(&mut self, actions: &mut Vec<Action>) {
        let mut entry = self.paused.remove(0);
        entry.resume(self.policy.run_steps_min.max(1));
        actions.push(Action::Resume(entry.job.id));
        self.running.push(entry);
    }

    /// Pauses a request (PLAN-C2), or rejects the only one.
    fn make_room(&mut self, outcome: Outcome, actions: &mut Vec<Action>) {
        if let ([alone], Outcome::Infeasible(reason)) = (self.running.as_slice(), outcome) {
            actions.push(Action::Reject { id: alone.job.id, reason });
            self.running.clear();
            return;
        }
        if let Some((victim, _)) = self.victim() {
            self.pause(victim, actions);
        } else if let Some(mut last) = self.running.pop() {
            // All have just resumed, or waited long. The last in the queue goes back to its front.
            let id = last.job.id;
            if last.resumed {
                actions.retain(|action| *action != Action::Resume(id));
                last.stay_paused();
            } else {
                actions.push(Action::Pause(id));
                last.pause(self.policy.layers);
                last.paused_for = self.policy.pause_steps_max;
            }
            self.paused.insert(0, last);
        }
    }

    fn pause(&mut self, running: usize, actions: &mut Vec<Action>) {
        let mut entry = self.running.remove(running);
        if entry.is_placed() {
            actions.push(Action::Pause(entry.job.id));
        }
        entry.pause(self.policy.layers);
        self.paused.push(entry);
    }

    /// The request to pause (PLAN-C2). Of equal ones the request that came last.
    fn victim(&self) -> Option<(usize, &Entry)> {
        let may_pause = |(_, entry): &(usize, &Entry)| entry.may_pause();
        let size = |(number, entry): &(usize, &Entry)| {
            (entry.blocks(&self.policy) + entry.deposited() as u64, *number)
        };
        self.running.iter().enumerate().filter(may_pause).max_by_key(size)
    }

    /// The best plan for these requests. The few choices for one request are all searched: so one
    /// runs, however early the search is stopped.
    fn planned(
        &self,
        entries: &[Entry],
        layer_ns: u64,
        link: Ratio<u64>,
        proceed: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, PlanError> {
        let horizon = self.policy.horizon.clone();
        let options = Options { model: self.policy.model, space: Space::DistanceDriven, horizon };
        let is_alone = entries.len() == 1;
        let batch = self.batch(entries, layer_ns, link);
        match batch.and_then(|batch| plan(&batch, &options, &mut || is_alone || proceed())) {
            // PLAN-C8.
            Err(
                error @ (PlanError::Batch(BatchError::TooManyBlocks)
                | PlanError::Horizon(HorizonError::Grown(_))),
            ) => Ok(Outcome::Infeasible(Infeasible::Request(error.to_string()))),
            outcome => outcome,
        }
    }

    /// The best plan for one step, however late its tokens are (PLAN-C5).
    fn planned_late(
        &self,
        layer_ns: u64,
        link: Ratio<u64>,
        proceed: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, PlanError> {
        let tolerated = Ratio::from_integer(1);
        let horizon = Horizon { steps: 1, steps_max: 1, tolerated, ..self.policy.horizon.clone() };
        let options = Options { model: self.policy.model, space: Space::DistanceDriven, horizon };
        plan(&self.batch(&self.running, layer_ns, link)?, &options, proceed)
    }

    /// A plan that offloads all layers of the only request, else the reason why there is none.
    fn all_offloaded(
        &self,
        layer_ns: u64,
        link: Ratio<u64>,
        reason: Infeasible,
    ) -> Result<Outcome, PlanError> {
        let placements = vec![Placement::every(1, self.policy.layers)];
        let batch = self.batch(&self.running, layer_ns, link)?;
        let evaluation = evaluate(&batch, &placements, self.policy.model)?;
        if !evaluation.feasible {
            return Ok(Outcome::Infeasible(reason));
        }
        let bound_blocks = BigRational::default();
        let (complete, window_steps) = (false, 1);
        Ok(Outcome::Plan(Plan { placements, evaluation, bound_blocks, complete, window_steps }))
    }

    fn batch(
        &self,
        entries: &[Entry],
        layer_ns: u64,
        link: Ratio<u64>,
    ) -> Result<Batch, PlanError> {
        let request = |entry: &Entry| entry.request(&self.policy, layer_ns, self.now_ns);
        let requests = entries.iter().map(request).collect();
        let (layers, gpu_blocks) = (self.policy.layers.into(), self.policy.gpu_blocks);
        Ok(Batch::new(layers, link, gpu_blocks, requests)?)
    }

    /// Moves as many layers of paused requests to the pool as the plan needs room (PLAN-C3).
    fn evict_for(&mut self, memory_blocks: u64, actions: &mut Vec<Action>) {
        let kept = |entry: &Entry| entry.kept_blocks(&self.policy);
        let mut used = memory_blocks + self.paused.iter().map(kept).sum::<u64>();
        for entry in self.paused.iter_mut().rev() {
            let missing = used.saturating_sub(self.policy.gpu_blocks);
            let layers = entry.evict(missing, &self.policy);
            used -= layers.len() as u64 * entry.blocks(&self.policy);
            if !layers.is_empty() {
                actions.push(Action::Evict { id: entry.job.id, layers });
            }
        }
    }
}

/// Blocks that the link brings in a layer time. Both times are measured: where the numbers are longer
/// than a plan takes, their last bits count for nothing.
fn link(layer_ns: u64, block_ns: u64) -> Ratio<u64> {
    let longest = layer_ns.max(block_ns).max(1);
    let bits = (u64::BITS - longest.leading_zeros()).saturating_sub(BLOCKS_MAX.trailing_zeros());
    Ratio::new((layer_ns >> bits).max(1), (block_ns >> bits).max(1))
}
