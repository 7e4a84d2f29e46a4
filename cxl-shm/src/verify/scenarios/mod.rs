//! Small configurations of the real protocols, and what is claimed of them: the suite behind
//! `prove explore`.
//!
//! Every model starts from a region that the real sources wrote on a simulated rack ([`ground`]),
//! and then runs in all ways that there are on [`explored`](crate::verify::explored) memory.
//!
//! Heartbeats are left out of all models: they are counters without bound that no decision here
//! depends on. A process that would act on a stopped heartbeat (a standby that takes over, a
//! proposer that suspects) acts at any time instead, which is more than a heartbeat can cause.

mod arbitrated;
mod asking;
mod broken;
mod client;
mod consensus;
mod double_buffers;
mod ground;
mod intents;
mod joining;
mod lock_task;
mod newcomers;
mod orphans;
mod passing;
mod profiles;
mod racks;
mod records;
mod recoveries;
mod recovery;
mod scenario;
mod succession;
#[cfg(test)]
mod tests;
mod two_locks;

pub use broken::{Broken, broken};
pub use racks::{RackScenario, rack_scenarios};
pub use scenario::{Scenario, Variant, scenarios};
