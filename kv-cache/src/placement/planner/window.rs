//! The decode window: how long a plan holds while the requests grow.
//!
//! - **PLAN-W1** A plan holds for N steps when the memory suffices in each of them, and no request
//!   has more late tokens in them than tolerated. What is late, PLAN-D2 says; the deposited tokens
//!   are released first.

use num_bigint::Sign;
use num_rational::{BigRational, Ratio};

use super::PlanError;
use super::pace::Pace;
use crate::placement::evaluation::cost;
use crate::placement::timeline::Unwatched;
use crate::placement::{Batch, BatchError, Model, Placement, Request, evaluate};

/// Most steps that a window may have.
const STEPS_MAX: u32 = 1_000_000;

/// How long a plan is to hold, and which tokens may be late.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Horizon {
    /// Decode steps for which the plan has to hold. It is made for the sizes in the last of them.
    pub steps: u32,
    /// Most decode steps of which it is asked whether the plan holds. No more than a million are
    /// looked at.
    pub steps_max: u32,
    /// Tokens in a block: a request takes another block a layer when it has filled the last one.
    pub block_tokens: u32,
    /// The share of a request's tokens in the window that may be late, from 0 to 1: the paper's
    /// alpha.
    pub tolerated: Ratio<u64>,
}

impl Default for Horizon {
    fn default() -> Self {
        Self { steps: 1, steps_max: 100, block_tokens: 16, tolerated: Ratio::from_integer(0) }
    }
}

/// Why a horizon is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HorizonError {
    /// The window is empty, or longer than what is looked at.
    #[error(
        "the window has {steps} steps: it can have 1 to {most}, the most that are looked at \
         (`window_max`)"
    )]
    Steps {
        /// Steps given.
        steps: u32,
        /// The most.
        most: u32,
    },
    /// A block has no tokens.
    #[error("a block has 0 tokens: it has at least 1")]
    BlockTokens,
    /// More late tokens are tolerated than there are.
    #[error("{0} of the tokens may be late: the share is 0 to 1")]
    Tolerated(Ratio<u64>),
    /// An SLO of no time.
    #[error("the SLO of request {request} is 0 layer times: a token takes longer")]
    Slo {
        /// The request, counted from 1.
        request: usize,
    },
    /// A time since the last release that is no number.
    #[error("the time since the last token of request {request} is divided by 0")]
    SinceRelease {
        /// The request, counted from 1.
        request: usize,
    },
    /// The grown requests cannot be counted.
    #[error("in the last step of the window {0}")]
    Grown(#[from] BatchError),
}

/// For how long a plan holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The most steps for which it holds.
    pub steps: u32,
    /// Where late tokens and not memory end it: the request, counted from 1.
    pub late: Option<usize>,
}

impl Horizon {
    /// Whether it can be planned for.
    pub(super) fn check(&self, batch: &Batch) -> Result<&Self, HorizonError> {
        let most = self.steps_max.min(STEPS_MAX);
        if !(1..=most).contains(&self.steps) {
            return Err(HorizonError::Steps { steps: self.steps, most });
        }
        if self.block_tokens == 0 {
            return Err(HorizonError::BlockTokens);
        }
        if *self.tolerated.denom() == 0 || self.tolerated > Ratio::from_integer(1) {
            return Err(HorizonError::Tolerated(self.tolerated));
        }
        let no_time = |request: &Request| {
            request.slo_layer_times.is_some_and(|slo| *slo.numer() == 0 || *slo.denom() == 0)
        };
        if let Some(request) = batch.requests().iter().position(no_time) {
            return Err(HorizonError::Slo { request: request + 1 });
        }
        let no_time_ago =
            |request: &Request| request.since_release.is_some_and(|since| *since.denom() == 0);
        match batch.requests().iter().position(no_time_ago) {
            Some(request) => Err(HorizonError::SinceRelease { request: request + 1 }),
            None => Ok(self),
        }
    }

    /// The batch in decode step `step`, counted from 1: each step before it added a token.
    ///
    /// # Errors
    /// The requests are too large to be counted then.
    pub fn grown(&self, batch: &Batch, step: u32) -> Result<Batch, BatchError> {
        let grown = |request: &Request| {
            let tokens = step.saturating_sub(1).saturating_sub(request.free_tokens);
            let blocks = u64::from(tokens.div_ceil(self.block_tokens.max(1)));
            Request { blocks_per_layer: request.blocks_per_layer + blocks, ..request.clone() }
        };
        let requests = batch.requests().iter().map(grown).collect();
        Batch::new(batch.layers().into(), batch.link(), batch.gpu_blocks(), requests)
    }

    /// Whether no late token is tolerated.
    pub(super) fn is_strict(&self) -> bool {
        *self.tolerated.numer() == 0
    }

    /// Whether a plan is to hold for one step, without late tokens.
    pub(super) fn is_one_step(&self) -> bool {
        self.steps == 1 && self.is_strict()
    }

    /// The last step in which all requests are as large as in `step`.
    pub(super) fn same_until(&self, batch: &Batch, step: u32) -> u32 {
        let until = |request: &Request| match (step - 1).checked_sub(request.free_tokens) {
            None | Some(0) => request.free_tokens.saturating_add(1),
            Some(tokens) => {
                let blocks = tokens.div_ceil(self.block_tokens);
                let filled = blocks.saturating_mul(self.block_tokens);
                filled.saturating_add(request.free_tokens).saturating_add(1)
            }
        };
        batch.requests().iter().map(until).min().unwrap_or(step)
    }
}

/// For how many decode steps these placements hold (PLAN-W1), up to the horizon's `steps_max`. The
/// steps behind those that the horizon asks for are looked at as long as `proceed` says yes.
///
/// # Errors
/// There is not one placement of this model for each request, or the horizon is none.
pub fn window_steps(
    batch: &Batch,
    placements: &[Placement],
    model: Model,
    horizon: &Horizon,
    proceed: &mut dyn FnMut() -> bool,
) -> Result<Window, PlanError> {
    horizon.check(batch)?;
    // Whether there is a placement for each request is the same in all steps.
    evaluate(batch, placements, model)?;
    let offloaded: Vec<_> = placements.iter().map(Placement::offloaded).collect();
    let most = horizon.steps_max.min(STEPS_MAX);
    let mut proceed = |step| step <= horizon.steps || proceed();
    Ok(window_of(batch, &offloaded, model, horizon, most, &mut proceed))
}

/// For how many of the first `most` steps the plan holds that offloads these layers. It looks at no
/// step from the first one on to which `proceed` says no. The horizon was checked.
pub(super) fn window_of(
    batch: &Batch,
    offloaded: &[&[u16]],
    model: Model,
    horizon: &Horizon,
    most: u32,
    proceed: &mut dyn FnMut(u32) -> bool,
) -> Window {
    let mut window = Window { steps: 0, late: None };
    let mut pace = Pace::new(batch, horizon);
    let mut step = 1;
    let link = BigRational::new((*batch.link().numer()).into(), (*batch.link().denom()).into());
    while step <= most {
        if !proceed(step) {
            break;
        }
        let Ok(grown) = horizon.grown(batch, step) else { break };
        let cost = cost(&grown, offloaded, model, &mut Unwatched);
        if !cost.feasible {
            break;
        }
        let last = horizon.same_until(batch, step).clamp(step, most);
        let length = cost.stall_blocks / &link + BigRational::from_integer(batch.layers().into());
        pace.advance(&length, step..=last, &mut window);
        step = last + 1;
    }
    window
}

/// The longest stall of the first step with which no token is late, in ticks; `None` where there is no
/// such bound, or where the plan is to hold for more (PLAN-S5).
pub(super) fn most_stall_ticks(batch: &Batch, horizon: &Horizon) -> Option<u64> {
    if !horizon.is_one_step() {
        return None;
    }
    let longest = Pace::new(batch, horizon).longest_step()?;
    let stall = longest - BigRational::from_integer(batch.layers().into());
    let ticks = stall * BigRational::from_integer(batch.layer_ticks().into());
    // Below 0 a token is late in any case; beyond 64 bits no stall is too long.
    let beyond = if ticks.numer().sign() == Sign::Minus { 0 } else { u64::MAX };
    Some(u64::try_from(ticks.floor().to_integer()).unwrap_or(beyond))
}

/// Whether the tokens of a request are late also when no iteration stalls, so that no plan holds.
pub(super) fn is_hopeless(batch: &Batch, horizon: &Horizon) -> bool {
    let mut window = Window { steps: 0, late: None };
    let length = BigRational::from_integer(batch.layers().into());
    let most = horizon.steps_max.min(STEPS_MAX);
    Pace::new(batch, horizon).advance(&length, 1..=most, &mut window);
    window.steps < horizon.steps
}
