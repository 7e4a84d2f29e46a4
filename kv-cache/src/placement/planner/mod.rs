//! The cheapest choice of placements for a batch.
//!
//! Branch and bound over the requests, the largest first. A choice for some of the requests has a
//! lower bound for all choices that complete it; a choice whose bound is not below the best choice
//! found so far is not completed.
//!
//! - **PLAN-S1** The bound of a choice is at most the stall of every choice that completes it. By
//!   the begin of a layer, all KV that is due by then has passed the link. The link passes nothing
//!   of these requests while a layer executes in which all of them rest. What remains was a stall.
//! - **PLAN-S2** Of choices that stall equally long, the choice that moves the fewest blocks wins.
//!   All requests of a batch share the length of an iteration: in one step, the choice with the
//!   least stall is also the choice with the fewest late tokens.
//! - **PLAN-S3** A search that is stopped says so, and gives its best choice with a bound below
//!   which no choice stalls. Before it found one, it gives one distance for all, where one fits.
//! - **PLAN-S4** Over several steps, a choice that stalls more in the last one may have fewer late
//!   tokens. So a choice counts that holds for the window (PLAN-W1), and others do not. After 1,000
//!   choices that fit and do not hold, choices that stall as long as the best of these are left out.
//!   Where no plan without stalls would hold, they are left out from the beginning, and where one
//!   step without late tokens is asked for (PLAN-S2).
//! - **PLAN-S5** Where a plan is to hold for one step without late tokens, no token of a request may
//!   come later than promised. So choices that stall longer are not completed. Where no choice is
//!   left, none holds. Choices that fit are looked at again then, to name a stall.
//! - **PLAN-S6** One placement offloads more layers than each of the others. A choice needs the
//!   fewest blocks when all requests have this placement. Where these blocks have no room, no choice
//!   is looked at: that no plan fits is known at once, also by a search that may not take a step.
//!   This holds for the paper's buffer, too: in the space of distances each other placement offloads
//!   at least one layer less, so that it frees no more than this one and its buffer.

mod bound;
mod pace;
mod search;
mod window;

use num_rational::{BigRational, Ratio};

pub use self::window::{Horizon, HorizonError, Window, window_steps};

use self::search::{Found, Growth, Search};
use self::window::most_stall_ticks;
use super::{
    Batch, BatchError, Evaluation, EvaluationError, Model, Placement, distance_driven, evaluate,
};

/// Most layers of a model for which all placements are searched.
pub const FULL_LAYERS_MAX: u16 = 12;

/// Steps of a search for a plan that is named where none holds.
const NAMED_STEPS: u32 = 10_000;

/// Which placements are considered for each request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Space {
    /// Those of [`distance_driven`], and none offloaded.
    #[default]
    DistanceDriven,
    /// Every set of layers: for small cases, and to see what distances give away.
    Full,
}

/// What a plan is to respect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// How link and memory are modelled.
    pub model: Model,
    /// Which placements are considered.
    pub space: Space,
    /// How long the plan is to hold, and which tokens may be late.
    pub horizon: Horizon,
}

/// A choice of placements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// One for each request.
    pub placements: Vec<Placement>,
    /// What an iteration costs, in the last step of the window that was asked for.
    pub evaluation: Evaluation,
    /// No choice stalls less (PLAN-S3).
    pub bound_blocks: BigRational,
    /// Whether the search came to its end: no choice stalls less, and none that stalls equally long
    /// moves fewer blocks.
    pub complete: bool,
    /// Decode steps for which the plan holds, up to the most that the horizon asks about. Fewer when
    /// the search was stopped meanwhile.
    pub window_steps: u32,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Infeasible {
    /// The KV does not fit with any placements that were considered.
    #[error(
        "the GPU has room for {gpu_blocks} blocks, and the choices that were considered need at \
         least {least_blocks}{}: pause a request{}, or give the GPU more room",
        if *step > 1 { format!(" by decode step {step}") } else { String::new() },
        if *step > 1 { ", shorten the window" } else { "" }
    )]
    Memory {
        /// In the decode steps up to this one: the last for which the plan is to hold.
        step: u32,
        /// No choice needs fewer in all of them.
        least_blocks: u64,
        /// Room of the GPU.
        gpu_blocks: u64,
    },
    /// The best plan has too many late tokens before as many steps as it is to hold for.
    #[error(
        "the best plan stalls {stall_blocks} block-transfer times, and holds for {window_steps} \
         decode steps of {wanted}{}{}: pause a request, shorten the window, or tolerate more late \
         tokens",
        because_of(*late),
        if *tried_all { "" } else { "; not all plans were tried" }
    )]
    Window {
        /// Stall of the best plan that was looked at.
        stall_blocks: BigRational,
        /// Steps for which it holds.
        window_steps: u32,
        /// Steps that were asked for.
        wanted: u32,
        /// The request whose tokens are late, counted from 1.
        late: Option<usize>,
        /// Whether no other plan holds. Otherwise one that stalls longer may (PLAN-S4).
        tried_all: bool,
    },
    /// A request is beyond what can be planned, also alone.
    #[error("{0}: give the request up")]
    Request(String),
}

fn because_of(late: Option<usize>) -> String {
    late.map_or_else(String::new, |request| {
        format!(", as request {request} has too many late tokens")
    })
}

/// What came of planning.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// A plan.
    Plan(Plan),
    /// There is none.
    Infeasible(Infeasible),
    /// The search was stopped before it found one that holds.
    Stopped,
}

/// Why nothing was planned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// All sets of layers are too many.
    #[error(
        "a full search is for models of up to {FULL_LAYERS_MAX} layers, and this has {layers}: \
         search the distance-driven placements"
    )]
    TooManyLayers {
        /// Layers of the model.
        layers: u16,
    },
    /// The batch cannot be planned.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The horizon is none.
    #[error(transparent)]
    Horizon(#[from] HorizonError),
    /// The placements are not of this batch.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
}

/// Finds the choice of placements that stalls least (PLAN-S1, PLAN-S2).
///
/// `proceed` is asked before each step of the search; where it says no, the search stops (PLAN-S3).
///
/// # Errors
/// The options do not fit the batch.
pub fn plan(
    batch: &Batch,
    options: &Options,
    proceed: &mut dyn FnMut() -> bool,
) -> Result<Outcome, PlanError> {
    let layers = batch.layers();
    let space = match options.space {
        Space::DistanceDriven => distance_driven(layers),
        Space::Full if layers <= FULL_LAYERS_MAX => all_placements(layers),
        Space::Full => return Err(PlanError::TooManyLayers { layers }),
    };
    let grown = options.horizon.check(batch)?.grown(batch, options.horizon.steps);
    let grown = grown.map_err(HorizonError::from)?;
    let growth = Growth { batch, horizon: &options.horizon };
    let search = || Search::new(&grown, growth, options.model, &space);
    let most_ticks = most_stall_ticks(batch, &options.horizon).unwrap_or(u64::MAX);
    let found = match search().no_longer_than(most_ticks).run(proceed) {
        Found::TooLong => named(search(), proceed),
        found => found,
    };
    Ok(match found {
        Found::Best { placements, bound_ticks, tried_all } => {
            held(batch, &grown, options, placements, (bound_ticks, tried_all), proceed)?
        }
        Found::Nothing { least_blocks } => {
            let gpu_blocks = batch.gpu_blocks();
            let step = options.horizon.steps;
            Outcome::Infeasible(Infeasible::Memory { step, least_blocks, gpu_blocks })
        }
        Found::TooLong | Found::Stopped => Outcome::Stopped,
    })
}

/// Where no choice holds: one that stalls little (PLAN-S5).
fn named(search: Search<'_>, proceed: &mut dyn FnMut() -> bool) -> Found {
    let mut left = NAMED_STEPS;
    let mut proceed = || {
        left -= 1;
        left > 0 && proceed()
    };
    match search.run(&mut proceed) {
        Found::Best { placements, .. } => {
            Found::Best { placements, bound_ticks: None, tried_all: true }
        }
        found => found,
    }
}

/// The plan with its window, or that it does not hold long enough.
fn held(
    batch: &Batch,
    grown: &Batch,
    options: &Options,
    placements: Vec<Placement>,
    (bound_ticks, tried_all): (Option<u64>, bool),
    proceed: &mut dyn FnMut() -> bool,
) -> Result<Outcome, PlanError> {
    let evaluation = evaluate(grown, &placements, options.model)?;
    let (model, horizon) = (options.model, &options.horizon);
    let window = window_steps(batch, &placements, model, horizon, proceed)?;
    if window.steps < options.horizon.steps {
        if bound_ticks.is_some() {
            return Ok(Outcome::Stopped);
        }
        return Ok(Outcome::Infeasible(Infeasible::Window {
            stall_blocks: evaluation.stall_blocks,
            window_steps: window.steps,
            wanted: options.horizon.steps,
            late: window.late,
            tried_all,
        }));
    }
    let bound_blocks = match bound_ticks {
        Some(ticks) => Ratio::new(ticks.into(), grown.block_ticks().into()),
        None => evaluation.stall_blocks.clone(),
    };
    let bound_blocks = bound_blocks.min(evaluation.stall_blocks.clone());
    let (complete, window_steps) = (bound_ticks.is_none(), window.steps);
    Ok(Outcome::Plan(Plan { placements, evaluation, bound_blocks, complete, window_steps }))
}

/// Every set of layers but the empty one.
fn all_placements(layers: u16) -> Vec<Placement> {
    let placement = |set: u64| {
        let offloaded: Vec<_> = (1..=layers).filter(|layer| set >> (layer - 1) & 1 == 1).collect();
        Placement::of_ascending(offloaded)
    };
    (1..1 << layers).map(placement).collect()
}
