//! Locks between threads of several hosts, in two tiers.
//!
//! The *host tier* is a queue in the host's DRAM (LOCK-Q1 to LOCK-Q6, in `queue`). One thread of a
//! host at a time, first come, first served, competes in the *shared tier*. The shared tier works
//! in memory that has neither coherence nor atomic operations between hosts. Its protocol is chosen
//! when the region is formatted: [`arbitrated`] (a lock manager grants) or `bakery` (numbers, no
//! manager). A holder whose host has more waiters passes the shared lock on with the host's turn,
//! at most [`PASSES_MAX`] times and for [`PASSING_US_MAX`]. Then other hosts come first.
//!
//! - **LOCK-L1** The holder refreshes protected lines before it first reads them.
//! - **LOCK-L2** Every multi-line update writes an intent first and closes it afterwards. Recovery
//!   is redo, then close, then release, in that order.
//! - **LOCK-L3** A prefix lookup or a fetch takes no lock between hosts. These locks guard the
//!   chunk table, named roots and the formatting of segments.
//! - **LOCK-L4** No waiter is overtaken without bound. Threads of a host take turns in the order in
//!   which they came, except for a thread that is stopped (LOCK-Q6 in `queue`). A host that has had
//!   the lock goes to the end of the hosts' queue. Passing within a host is bounded.
//! - **LOCK-L5** Nothing that a dead holder of a program's lock stored appears after the lock was
//!   released on its behalf. Every later holder is told of the death, until one of them says that
//!   the data is consistent (`tally`).
//!
//! A thread that holds one of the region's own locks waits at most 2 ms for a process of its own
//! host that may be stopped: all hosts would wait with it. `Unlocked` in
//! `heap/unlocked.rs` of `cxl-shm-objects` holds the heap to that.

pub mod arbitrated;
mod bakery;
mod competitor;
mod contention;
mod error;
mod guard;
mod handoff_flush;
mod manage;
mod manager_watch;
mod member;
mod pending;
mod shared_tier;
mod tally;
#[cfg(test)]
mod tests;

pub use arbitrated::is_wanted;
pub(crate) use competitor::{Competitor, clear_requests_of};
pub use contention::Contention;
pub use error::LockError;
#[cfg(feature = "verify")]
pub(crate) use guard::recover_dead_holder;
pub use guard::{PASSES_MAX, PASSING_US_MAX, SharedGuard};
pub(crate) use guard::{end_abandoned, recover_all};
pub(crate) use handoff_flush::HandoffFlush;
pub use manage::{Manage, ManageError, ManagerSeen};
pub use pending::{PendingLock, TRY_MS};
#[cfg(feature = "verify")]
pub(crate) use shared_tier::Held;
pub(crate) use shared_tier::SharedTier;
pub(crate) use tally::is_for_programs;
