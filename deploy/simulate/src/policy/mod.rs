//! Who decides which layers are offloaded, and which request waits.

mod choices;
mod ours;
mod waiting;

use kv_cache::placement::{Measured, Placement, PlanError, Space};

use self::choices::Choice;
use self::ours::Ours;
use self::waiting::Waiting;
use crate::machine::{Machine, Running};

/// A policy, by its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PolicyKind {
    /// Nothing is offloaded: requests wait until they fit.
    Resident,
    /// Every layer but the current one is offloaded, as `DeepSpeed` streams what does not fit.
    AllButCurrent,
    /// One distance for all requests and the whole run, as of `FlexGen`: the fewest offloaded layers
    /// with which a full batch of requests fits that are twice as long as the mean.
    Fixed,
    /// The same, chosen anew when the batch changes or outgrows the GPU (`FlexGen+`).
    FixedAnew,
    /// One distance for all requests: the most offloaded layers that keep the promise, else the least
    /// stall.
    Uniform,
    /// Another distance for the request with the most resident blocks, until all fit.
    Heuristic,
    /// The planner at each change of the batch, without promise, deposit and pauses by need of time.
    PlannerOnly,
    /// The same over all sets of layers, for models of few layers.
    FullSearch,
    /// `ours` without deposit: tokens are released when they are ready.
    OursNoDeposit,
    /// `ours` with any token allowed to be late: a request is paused for memory only.
    OursNoPause,
    /// Planner, controller, deposit and pauses.
    Ours,
}

impl PolicyKind {
    /// Those that stand side by side in most figures.
    pub const COMPARED: [Self; 7] = [
        Self::Resident,
        Self::AllButCurrent,
        Self::Fixed,
        Self::FixedAnew,
        Self::Uniform,
        Self::Heuristic,
        Self::Ours,
    ];
    /// What each part of `ours` gives.
    pub const ABLATION: [Self; 5] =
        [Self::FixedAnew, Self::PlannerOnly, Self::OursNoDeposit, Self::OursNoPause, Self::Ours];

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resident => "no-offload",
            Self::AllButCurrent => "deepspeed",
            Self::Fixed => "flexgen",
            Self::FixedAnew => "flexgen+",
            Self::Uniform => "uniform-slo",
            Self::Heuristic => "heuristic",
            Self::PlannerOnly => "planner-only",
            Self::FullSearch => "full-search",
            Self::OursNoDeposit => "ours-no-deposit",
            Self::OursNoPause => "ours-no-pause",
            Self::Ours => "ours",
        }
    }

    /// Whether tokens that are ready early wait for their time (PLAN-D1).
    pub(crate) const fn deposits(self) -> bool {
        matches!(self, Self::Ours | Self::OursNoPause)
    }

    pub(crate) fn start(self, aim: Aim) -> Box<dyn Policy> {
        let choice = match self {
            Self::Resident => Choice::Distance(0),
            Self::AllButCurrent => Choice::Distance(1),
            Self::Fixed => Choice::fixed(&aim),
            Self::FixedAnew => Choice::Fewest,
            Self::Uniform => Choice::Promise { slo_ns: aim.slo_ns },
            Self::Heuristic => Choice::Largest,
            Self::PlannerOnly => Choice::Planned(Space::DistanceDriven),
            Self::FullSearch => Choice::Planned(Space::Full),
            Self::OursNoDeposit | Self::OursNoPause | Self::Ours => {
                return Box::new(Ours::new(self, aim));
            }
        };
        Box::new(Waiting::new(choice, aim.machine))
    }
}

/// What a policy knows beforehand.
#[derive(Clone, Debug)]
pub(crate) struct Aim {
    pub(crate) machine: Machine,
    /// The time between two tokens that readers are promised.
    pub(crate) slo_ns: u64,
    pub(crate) batch_max: usize,
    /// Mean tokens of a request, in the middle of its answer.
    pub(crate) mean_tokens: u64,
}

/// What is decided between two iterations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Decided {
    /// Who runs, with its placement.
    pub(crate) batch: Vec<(Running, Placement)>,
    /// Layers of paused requests that leave the GPU.
    pub(crate) evicted: Vec<(u64, Vec<u16>)>,
    /// Requests that ran and wait now.
    pub(crate) paused: Vec<u64>,
    /// Requests that do not fit alone.
    pub(crate) rejected: Vec<u64>,
}

/// Decides between two iterations.
pub(crate) trait Policy {
    /// A request may run from the next decision on.
    fn arrive(&mut self, request: Running);

    /// A request is over.
    fn finish(&mut self, id: u64);

    /// What runs next.
    fn decide(&mut self) -> Result<Decided, PlanError>;

    /// An iteration of what was decided last ended at `now_ns`.
    fn stepped(&mut self, now_ns: u64, measured: Measured);
}
