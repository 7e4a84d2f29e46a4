//! Bytes that several hosts see: memory shared over CXL without cache coherence and without
//! atomic operations between hosts, made safe to build on.
//!
//! Bottom up: [`units`] (addresses as types), [`fabric`] (load, store, publish, refresh, over real
//! and simulated memory), [`region`] (files and devices), [`layout`] (where things are in a
//! region), [`lock`] (two tiers), [`member`] (node slots, processes), [`alloc`] (chunks and
//! objects), [`root`] (names for objects), [`qualify`] (what this platform's memory does); [`fork`]
//! (which process is which); and [`log_thread`] (logs that delay nobody).
//!
//! Nothing here knows about KV blocks. [`guide`] has the region drawn, the rules by number, the
//! state machines, and what was explored exhaustively.

pub mod alloc;
pub mod clock;
pub mod crash;
pub mod fabric;
pub mod fork;
mod intent;
pub mod layout;
pub mod lock;
pub mod log_thread;
pub mod member;
mod mutant;
#[cfg(any(test, feature = "proof"))]
pub mod proof;
pub mod qualify;
pub mod region;
pub mod root;
pub mod units;

/// The region drawn, the rules by number, the state machines, what was explored, and how fast it is.
pub mod guide {
    #[doc = include_str!("../docs/region.md")]
    pub mod region {}
    #[doc = include_str!("../docs/rules.md")]
    pub mod rules {}
    #[doc = include_str!("../docs/state_machines.md")]
    pub mod state_machines {}
    #[doc = include_str!("../docs/explored.md")]
    pub mod explored {}
    #[doc = include_str!("../docs/speed.md")]
    pub mod speed {}
}
