//! What a cache of some size would have hit: request traces, replayed through the eviction
//! policies that the pool itself uses.
//!
//! A hit is *prefix-closed*, as engines need it: a block counts only when all blocks before it in
//! the same request hit too. After a request all of its blocks are in the cache; how full that may
//! be is its [`Capacity`].
//!
//! [`tract`] makes traces like those of a paper. A [`TierSimulation`] adds a drive behind the pool, with the policy that drives use.

mod capacity;
mod optimum;
mod pool;
mod simulation;
mod tiers;
mod trace;
pub mod tract;

pub use capacity::{Capacity, CapacityError};
pub use optimum::optimum;
pub use pool::{PoolModel, PoolPublished, PoolShape, PoolSimulation};
pub use simulation::{Outcome, Simulation, Touch};
pub use tiers::{
    Drive, DriveFigures, DriveModel, TierOptions, TierOutcome, TierPool, TierSimulation, depths,
};
pub use trace::{Lengths, Trace, TraceError};

#[cfg(test)]
mod tests;
