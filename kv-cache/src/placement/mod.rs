//! Which layers' KV of which request stays on the GPU while it decodes.
//!
//! For long contexts the KV of the running requests does not fit on the GPU. A *placement* says for
//! one request which layers are *offloaded*: their KV lies in the pool, and a stream brings it to
//! the GPU before each of these layers executes, in every decode iteration. This module computes
//! what a choice of placements costs, and finds the cheapest choice. It is pure logic: no clock, no
//! I/O, no engine. `docs/placement.md` of this package explains the model with a picture.
//!
//! The model follows X. Ma, H. Hong, T. Um, J. Lee, S. Choy, W. Lee, M. Jeon: *OrbitFlow: SLO-Aware
//! Long-Context LLM Serving with Fine-Grained KV Cache Reconfiguration*, PVLDB 19, 2026.
//!
//! The latency of one decode iteration:
//!
//! - **PLAN-L1** Layers execute one after another. A layer begins when the layer before it ended
//!   and all KV of the batch for this layer is on the GPU. The time between the two is a *stall*.
//! - **PLAN-L2** Each request has one stream, which fetches its offloaded layers in the order of
//!   the layers. The stream rests while one of the request's own offloaded layers executes.
//! - **PLAN-L3** All sums and comparisons are exact: integers, or fractions of integers. Two
//!   placements that stall equally long compare equal.
//! - **PLAN-L4** An iteration begins with nothing fetched. So a plan never counts on transfers
//!   that the iteration before it had no time for.
//!
//! The memory:
//!
//! - **PLAN-M1** `paper` (Eq. 1 of the paper): all resident blocks, and the largest sum over the
//!   requests that offload the same layer. Streams that fetch ahead for different layers need more.
//! - **PLAN-M2** `safe`: all resident blocks, and the most blocks that streams have brought and
//!   layers have not yet used, at any time of the iteration.
//! - **PLAN-M3** `buffers`: all resident blocks, and two buffers of a layer for each request that
//!   offloads two layers or more, one for a request that offloads one. A stream waits for a buffer. So
//!   the executor of this project does it (PLAN-X2).

mod batch;
mod controller;
mod deposit;
mod edf;
mod equal_share;
mod evaluation;
mod exact;
mod install;
mod memory;
mod offload;
mod planner;
mod stream;
#[cfg(test)]
mod tests;
mod timeline;

pub use batch::{BLOCKS_MAX, Batch, BatchError, LAYERS_MAX, REQUESTS_MAX, Request};
pub use controller::{Action, Controller, Decision, Job, Measured, Policy, Trigger};
pub use deposit::{Deposit, Released};
pub use evaluation::{Evaluation, EvaluationError, evaluate};
pub use install::{
    Fetch, InstallError, Installed, Lead, MessageError, Move, PlanMessage, Prefetch, Rank, slowest,
};
pub use num_rational::{BigRational, Ratio};
pub use offload::{Placement, PlacementError, distance_driven};
pub use planner::{
    FULL_LAYERS_MAX, Horizon, HorizonError, Infeasible, Options, Outcome, Plan, PlanError, Space,
    Window, plan, window_steps,
};
pub use timeline::{Interval, Phase, Timeline, Transfer, timeline};

/// How the link serves streams that are ready at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Discipline {
    /// One stream at a time: the stream whose layer executes soonest. Of equal ones, that of the
    /// request given first.
    #[default]
    Edf,
    /// All of them at once, each at an equal share of the link.
    EqualShare,
}

/// How memory on the GPU is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemoryModel {
    /// PLAN-M1.
    #[default]
    Paper,
    /// PLAN-M2.
    Safe,
    /// PLAN-M3.
    Buffers,
}

/// What holds for every placement of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Model {
    /// How the link is shared.
    pub discipline: Discipline,
    /// How memory is counted.
    pub memory: MemoryModel,
}
