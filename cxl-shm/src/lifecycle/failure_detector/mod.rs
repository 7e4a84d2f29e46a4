//! Whose heartbeat stands still, by the watcher's own clock (BEAT-G0): a suspicion, never a proof
//! of death.

mod heartbeats;
mod suspicion;

pub use heartbeats::{NodeHeartbeat, watch_heartbeats};
pub(crate) use suspicion::Suspicion;
