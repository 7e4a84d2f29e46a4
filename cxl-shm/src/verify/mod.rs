//! What shows that the protocols hold: memories that misbehave, and all runs of small
//! configurations.
//!
//! Nothing here is in a program that ships. The feature `sim` has the memories: [`simulated`] racks
//! of hosts with private caches, and real processes whose caches are [`shadowed`]; and what tests of
//! all crates start from ([`fixture`]). The feature `verify` has [`explored`] memory too, and the
//! [`scenarios`] that `prove explore` runs on it, with and without the rules that a [`Mutant`] breaks.

mod backend;
#[cfg(feature = "verify")]
pub mod explored;
pub mod fixture;
pub mod poison;
#[cfg(feature = "verify")]
pub mod scenarios;
pub mod shadowed;
pub mod simulated;
pub mod small_rack;

#[cfg(feature = "verify")]
pub use backend::ExploredBackend;
pub use backend::{BackendOf, SimulatedBackend};

#[cfg(feature = "verify")]
pub use crate::mutant::Mutant;

/// Runs `act`, on this thread, with one rule of the protocols broken, or with all of them kept: for
/// suites that are to show that they notice.
#[cfg(feature = "verify")]
pub fn as_mutant<T>(mutant: Option<Mutant>, act: impl FnOnce() -> T) -> T {
    crate::mutant::with(mutant, act)
}

/// Whether the program of this thread is `mutant`: for rules that only its caller can break.
#[cfg(feature = "verify")]
#[must_use]
pub fn is_mutant(mutant: Mutant) -> bool {
    crate::mutant::is(mutant)
}
