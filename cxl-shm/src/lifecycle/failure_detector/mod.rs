//! Whose heartbeat stands still, by the watcher's own clock (BEAT-G0): a suspicion, never a proof
//! of death.

mod hearts;
mod suspicion;

pub use hearts::{NodeHeart, watch_hearts};
pub(crate) use suspicion::Suspicion;
