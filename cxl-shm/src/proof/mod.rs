//! Small configurations of the real protocols, and what is claimed of them: the suite behind
//! `prove explore`.
//!
//! Every model starts from a region that the real sources wrote on a simulated rack ([`ground`]),
//! and then runs in all ways that there are on [`explored`](crate::fabric::explored) memory.
//!
//! Heartbeats are left out of all models: they are counters without bound that no decision here
//! depends on. Whoever would act on a heart that stands still (a standby that takes over, a
//! proposer that suspects) acts at any time instead, which is more than a heart can cause.

mod arbitrated;
mod asking;
mod broken;
mod client;
mod consensus;
mod ground;
mod intents;
mod joining;
mod lock_task;
mod newcomers;
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
mod twins;
mod two_locks;
mod wards;

pub use crate::mutant::Mutant;
pub use broken::{Broken, broken};
pub use racks::{RackScenario, rack_scenarios};
pub use scenario::{Scenario, Variant, scenarios};

/// Runs `act`, on this thread, with one rule of the protocols broken, or with all of them kept: for
/// suites that are to show that they notice.
pub fn as_mutant<T>(mutant: Option<Mutant>, act: impl FnOnce() -> T) -> T {
    crate::mutant::with(mutant, act)
}

/// Whether the program of this thread is `mutant`: for rules that only its caller can break.
#[must_use]
pub fn is_mutant(mutant: Mutant) -> bool {
    crate::mutant::is(mutant)
}
