//! Bytes that several hosts see: memory shared over CXL without cache coherence and without
//! atomic operations between hosts, made safe to build on.
//!
//! One floor a folder, and imports run downward only, which a test holds them to:
//!
//! ```text
//! lifecycle     a node's life: claim and join a slot, heartbeat, failure detector, consensus on
//!               deaths, fencing, recovery, orphaned resources, leave
//! chunk         large pieces of the region that one node owns at a time
//! lock          locks between hosts, in two tiers
//! intent        updates under a lock are redone or never seen
//! node          the lines of one node, and what all hosts read of it; `Member`, this process
//! host          what the processes of one host share in its own DRAM
//! region        files and devices, mapped
//! layout        where everything is in a region: records and offsets
//! fabric        load, store, publish, refresh
//! units, clock, fork, crash, mutant, log_thread
//! ```
//!
//! On top of it, in a crate of its own, is `cxl-shm-objects`: a heap of objects, names for them,
//! locks for programs. What it alone needs of this crate is hidden from the documentation.
//!
//! With the features `sim` and `verify` there is `verify` on top, for tests alone.
//!
//! Nothing here knows about KV blocks. [`guide`] has the region drawn, the
//! state machines, and what was explored exhaustively.

pub mod chunk;
pub mod clock;
pub mod crash;
pub mod fabric;
pub mod fork;
pub mod host;
#[doc(hidden)]
pub mod intent;
pub mod layout;
pub mod lifecycle;
pub mod lock;
pub mod log_thread;
mod mutant;
pub mod node;
pub mod region;
pub mod units;
#[cfg(feature = "sim")]
pub mod verify;

/// The region drawn, the protocols step by step, the state machines, what was
/// explored, and how fast it is.
pub mod guide {
    #[doc = include_str!("../docs/region.md")]
    pub mod region {}
    #[doc = include_str!("../docs/protocols.md")]
    pub mod protocols {}
    #[doc = include_str!("../docs/state_machines.md")]
    pub mod state_machines {}
    #[doc = include_str!("../docs/explored.md")]
    pub mod explored {}
    #[doc = include_str!("../docs/speed.md")]
    pub mod speed {}
}
