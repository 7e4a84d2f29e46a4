//! Branch and bound.

use num_rational::BigRational;

use super::bound::{Bound, Load};
use super::window::{Horizon, is_hopeless, window_of};
use crate::placement::evaluation::{Evaluation, cost};
use crate::placement::memory::planned_blocks;
use crate::placement::timeline::Unwatched;
use crate::placement::{Batch, MemoryModel, Model, Placement};

/// Choices that fit and do not hold, after which only better ones are looked for.
const LATE_MAX: usize = 1000;

/// What came of a search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The best choice, one placement for each request.
    Best {
        /// The placements.
        placements: Vec<Placement>,
        /// Where the search was stopped: a bound of the stall of all choices, in ticks.
        bound_ticks: Option<u64>,
        /// Whether no other choice holds, where this one does not (PLAN-S4).
        tried_all: bool,
    },
    /// No choice fits the memory.
    Nothing {
        /// Every choice needs at least that much.
        least_blocks: u64,
    },
    /// Each choice that fits stalls longer than it may.
    TooLong,
    /// The search was stopped before it found a choice that fits.
    Stopped,
}

/// A choice for all requests.
struct Best {
    stall: BigRational,
    /// The stall in ticks, rounded down. Bounds are whole numbers of ticks.
    whole_ticks: u64,
    /// Whether the stall is a whole number of ticks.
    whole: bool,
    moved_blocks: u64,
    /// By request: the number of the placement in the space, from 1, or 0 for none offloaded.
    chosen: Vec<usize>,
}

/// The steps before the last one that a plan is to hold for. It is made for the sizes in the last.
#[derive(Clone, Copy)]
pub(super) struct Growth<'a> {
    /// The batch in the first step.
    pub(super) batch: &'a Batch,
    pub(super) horizon: &'a Horizon,
}

/// One way to continue a partial choice.
#[derive(Clone, Copy)]
struct Branch {
    choice: usize,
    stall_ticks: u64,
    moved_blocks: u64,
    /// How far it is from a fair share of what the requests must free.
    unevenness: u64,
}

/// A search through all choices of a space.
pub(super) struct Search<'a> {
    batch: &'a Batch,
    growth: Growth<'a>,
    model: Model,
    /// Layers offloaded by each placement of the space; the first offloads none.
    space: Vec<&'a [u16]>,
    /// Requests, the largest first.
    order: Vec<usize>,
    /// By depth: blocks that the requests from there on can free at most.
    freeable: Vec<u64>,
    /// By depth and placement: the bound of the request alone.
    alone_ticks: Vec<Vec<u64>>,
    /// By depth: what the requests before it offload.
    loads: Vec<Load>,
    chosen: Vec<usize>,
    best: Option<Best>,
    /// The best of those that do not hold for the window (PLAN-S4).
    best_late: Option<Best>,
    /// How many of these were found.
    late: usize,
    /// Whether no choice holds where the one with the least stall does not (PLAN-S4).
    least_stall_decides: bool,
    /// The least bound of what was left out when the search was stopped.
    open_ticks: Option<u64>,
    /// The most that a choice may stall (PLAN-S5).
    most_ticks: u64,
    /// Whether choices were left out that stall more.
    too_long: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        batch: &'a Batch,
        growth: Growth<'a>,
        model: Model,
        placements: &'a [Placement],
    ) -> Self {
        let none: &[u16] = &[];
        let mut space = vec![none];
        space.extend(placements.iter().map(Placement::offloaded));
        let requests = batch.requests();
        let mut order: Vec<_> = (0..requests.len()).collect();
        order.sort_by_key(|&request| std::cmp::Reverse(requests[request].blocks_per_layer));
        let most = space.iter().map(|layers| layers.len()).max().unwrap_or(0) as u64;
        let mut freeable = vec![0; order.len() + 1];
        for depth in (0..order.len()).rev() {
            freeable[depth] = freeable[depth + 1] + requests[order[depth]].blocks_per_layer * most;
        }
        let none = Load::none(batch.layers());
        let alone = |&request: &usize| {
            let blocks = requests[request].blocks_per_layer;
            space
                .iter()
                .map(|layers| none.bound(batch, model.memory, blocks, layers).stall_ticks)
                .collect()
        };
        let alone_ticks = order.iter().map(alone).collect();
        let loads = vec![none; order.len() + 1];
        let chosen = vec![0; order.len()];
        let least_stall_decides =
            growth.horizon.is_one_step() || is_hopeless(growth.batch, growth.horizon);
        Self {
            batch,
            growth,
            model,
            space,
            order,
            freeable,
            alone_ticks,
            loads,
            chosen,
            best: None,
            best_late: None,
            late: 0,
            least_stall_decides,
            open_ticks: None,
            most_ticks: u64::MAX,
            too_long: false,
        }
    }

    /// Leaves out choices that stall more than `most_ticks` (PLAN-S5).
    pub(super) const fn no_longer_than(mut self, most_ticks: u64) -> Self {
        self.most_ticks = most_ticks;
        self
    }

    /// Searches to the end, or until `proceed` says no.
    pub(super) fn run(mut self, proceed: &mut dyn FnMut() -> bool) -> Found {
        let least_blocks = self.least_blocks();
        if least_blocks > self.batch.gpu_blocks() {
            return Found::Nothing { least_blocks };
        }
        self.descend(0, 0, proceed);
        if self.open_ticks.is_some() && self.best.is_none() {
            self.one_for_all();
        }
        match self.best.or(self.best_late) {
            Some(best) => {
                let placement =
                    |&choice: &usize| Placement::of_ascending(self.space[choice].into());
                let placements = best.chosen.iter().map(placement).collect();
                let tried_all = self.least_stall_decides || self.late < LATE_MAX;
                Found::Best { placements, bound_ticks: self.open_ticks, tried_all }
            }
            None if self.open_ticks.is_some() => Found::Stopped,
            None if self.too_long => Found::TooLong,
            // Blocks on their way need more room than the least (PLAN-M2).
            None => Found::Nothing { least_blocks: least_blocks.max(self.batch.gpu_blocks() + 1) },
        }
    }

    /// No choice needs fewer blocks (PLAN-S6).
    fn least_blocks(&self) -> u64 {
        let most = self.space.iter().max_by_key(|layers| layers.len()).copied();
        let most = vec![most.unwrap_or_default(); self.batch.requests().len()];
        let memory = match self.model.memory {
            // By PLAN-M2 no choice needs less than by PLAN-M1.
            MemoryModel::Safe => MemoryModel::Paper,
            memory => memory,
        };
        planned_blocks(self.batch, &most, memory).unwrap_or(0)
    }

    /// Considers all choices for the request at `depth`, and those after it. What is chosen before
    /// it stalls at least `stall_ticks`.
    fn descend(&mut self, depth: usize, stall_ticks: u64, proceed: &mut dyn FnMut() -> bool) {
        if depth == self.order.len() {
            if !self.finish(proceed) {
                self.left_out(stall_ticks);
            }
            return;
        }
        let request = self.order[depth];
        let blocks = self.batch.requests()[request].blocks_per_layer;
        for branch in self.branches(depth, stall_ticks) {
            if branch.stall_ticks > self.most_ticks {
                // The branches are sorted: the others stall no less.
                self.too_long = true;
                return;
            }
            if self.is_beaten(branch) {
                continue;
            }
            if self.open_ticks.is_some() || !proceed() {
                self.left_out(branch.stall_ticks);
                // The branches are sorted: the others have no smaller bound.
                return;
            }
            self.chosen[request] = branch.choice;
            let (before, after) = self.loads.split_at_mut(depth + 1);
            after[0].set(&before[depth], blocks, self.space[branch.choice]);
            self.descend(depth + 1, branch.stall_ticks, proceed);
        }
    }

    /// The choices for the request at `depth` that may fit, the most promising first.
    fn branches(&self, depth: usize, stall_ticks: u64) -> Vec<Branch> {
        let batch = self.batch;
        let request = self.order[depth];
        let blocks = batch.requests()[request].blocks_per_layer;
        let load = &self.loads[depth];
        let (all, room) = (batch.all_blocks(), batch.gpu_blocks());
        let missing = all.saturating_sub(room).saturating_sub(load.freed_blocks);
        let own = self.freeable[depth] - self.freeable[depth + 1];
        let share = u128::from(missing) * u128::from(own) / u128::from(self.freeable[depth].max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let mut branches = Vec::with_capacity(self.space.len());
        for (choice, &layers) in self.space.iter().enumerate() {
            let own = blocks * layers.len() as u64;
            let Bound { stall_ticks: volume, buffer_blocks } =
                load.bound(batch, self.model.memory, blocks, layers);
            let freed = load.freed_blocks + own;
            // Memory: PLAN-M1 holds in all models, as the others never count less.
            if all - freed - self.freeable[depth + 1] + buffer_blocks > room {
                continue;
            }
            // What must be freed is moved; all of it before the last layer begins.
            let moved_blocks = freed.max((all + buffer_blocks).saturating_sub(room));
            let link = batch.layer_ticks() * u64::from(batch.layers() - 1);
            let all_moved = (moved_blocks * batch.block_ticks()).saturating_sub(link);
            let alone = self.alone_ticks[depth][choice];
            let stall_ticks = stall_ticks.max(volume).max(alone).max(all_moved);
            let unevenness = own.abs_diff(share);
            branches.push(Branch { choice, stall_ticks, moved_blocks, unevenness });
        }
        branches.sort_unstable_by_key(|branch| (branch.stall_ticks, branch.unevenness));
        branches
    }

    /// Whether no completion is better than the best choice (PLAN-S2).
    fn is_beaten(&self, branch: Branch) -> bool {
        let enough = self.least_stall_decides || self.late >= LATE_MAX;
        let late = self.best_late.as_ref().filter(|_| enough);
        let Some(best) = self.best.as_ref().or(late) else { return false };
        match branch.stall_ticks.cmp(&best.whole_ticks) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => best.whole && branch.moved_blocks >= best.moved_blocks,
            std::cmp::Ordering::Greater => true,
        }
    }

    /// The search was stopped before choices of at least this stall.
    fn left_out(&mut self, stall_ticks: u64) {
        let open = self.open_ticks.unwrap_or(u64::MAX);
        self.open_ticks = Some(open.min(stall_ticks));
    }

    /// A choice that is looked at without asking whether the search goes on: the same for all
    /// requests, with as few offloaded layers as fit.
    fn one_for_all(&mut self) {
        let mut by_layers: Vec<_> = (0..self.space.len()).collect();
        by_layers.sort_by_key(|&choice| self.space[choice].len());
        for choice in by_layers {
            self.chosen.fill(choice);
            self.finish(&mut || true);
            if self.best.is_some() {
                return;
            }
        }
    }

    /// All requests are chosen for: simulates the choice. Returns `false` when the search was stopped
    /// before it was known whether the choice fits.
    fn finish(&mut self, proceed: &mut dyn FnMut() -> bool) -> bool {
        let offloaded: Vec<_> = self.chosen.iter().map(|&choice| self.space[choice]).collect();
        let needed = planned_blocks(self.batch, &offloaded, self.model.memory);
        if needed.is_some_and(|needed| needed > self.batch.gpu_blocks()) {
            return true;
        }
        let cost = cost(self.batch, &offloaded, self.model, &mut Unwatched);
        if !cost.feasible {
            return true;
        }
        if !is_better(&cost, self.best.as_ref()) {
            return true;
        }
        match self.growth.fits(&offloaded, self.model, proceed) {
            Some(true) => {}
            Some(false) => return true,
            None => return false,
        }
        let Some(holds) = self.growth.holds(&offloaded, self.model, proceed) else { return false };
        if !holds && !is_better(&cost, self.best_late.as_ref()) {
            self.late = self.late.saturating_add(1);
            return true;
        }
        let ticks = &cost.stall_blocks * BigRational::from_integer(self.batch.block_ticks().into());
        let best = Best {
            whole_ticks: u64::try_from(ticks.to_integer()).unwrap_or(u64::MAX),
            whole: ticks.is_integer(),
            stall: cost.stall_blocks,
            moved_blocks: cost.moved_blocks,
            chosen: self.chosen.clone(),
        };
        if holds {
            self.best = Some(best);
        } else {
            self.late = self.late.saturating_add(1);
            self.best_late = Some(best);
        }
        true
    }
}

/// Whether a choice with this cost wins against `best` (PLAN-S2).
fn is_better(cost: &Evaluation, best: Option<&Best>) -> bool {
    best.is_none_or(|best| {
        (&cost.stall_blocks, cost.moved_blocks) < (&best.stall, best.moved_blocks)
    })
}

impl Growth<'_> {
    /// Whether these layers hold for the window (PLAN-S4); `None` when the search was stopped.
    fn holds(
        self,
        offloaded: &[&[u16]],
        model: Model,
        proceed: &mut dyn FnMut() -> bool,
    ) -> Option<bool> {
        let (batch, horizon) = (self.batch, self.horizon);
        if batch.requests().iter().all(|request| request.slo_layer_times.is_none()) {
            return Some(true);
        }
        let mut stopped = false;
        let mut proceed = |step| {
            stopped = step > 1 && !proceed();
            !stopped
        };
        // With late tokens in the first steps it may hold for more steps, and not for these.
        let more = (!horizon.is_strict()).then_some(horizon.steps_max);
        let holds = std::iter::once(horizon.steps).chain(more).any(|most| {
            let window = window_of(batch, offloaded, model, horizon, most, &mut proceed);
            window.steps >= horizon.steps
        });
        (holds || !stopped).then_some(holds)
    }

    /// Whether these layers leave enough room in each step before the last; `None` when the search was
    /// stopped. By PLAN-M1 smaller requests need less memory. By PLAN-M2 they may need more, because
    /// their streams run further ahead: each step is simulated.
    fn fits(
        self,
        offloaded: &[&[u16]],
        model: Model,
        proceed: &mut dyn FnMut() -> bool,
    ) -> Option<bool> {
        let mut step = 1;
        while model.memory == MemoryModel::Safe && step < self.horizon.steps {
            let same_until = self.horizon.same_until(self.batch, step);
            if same_until >= self.horizon.steps {
                break;
            }
            if !proceed() {
                return None;
            }
            let grown = self.horizon.grown(self.batch, step).ok()?;
            if !cost(&grown, offloaded, model, &mut Unwatched).feasible {
                return Some(false);
            }
            step = same_until + 1;
        }
        Some(true)
    }
}
