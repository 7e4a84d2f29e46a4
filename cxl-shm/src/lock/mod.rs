//! Locks between threads of several hosts, in two tiers.
//!
//! The *host tier* is a queue in the host's DRAM (rules Q1 to Q4, in `queue`): one thread of a host
//! at a time, first come, first served, competes in the *shared tier*, which works in memory that has
//! neither coherence nor atomic operations between hosts. A region has one of two protocols there,
//! chosen when it is formatted: [`arbitrated`] (a lock manager grants) or `bakery` (numbers, no
//! manager). A holder whose host has more waiters passes the shared lock on with the host's turn, at
//! most [`PASSES_MAX`] times and for [`PASSING_US_MAX`]; then other hosts come first.
//!
//! - **L1** Before the first read of protected lines the holder refreshes them.
//! - **L2** Every multi-line update writes an intent first and closes it after. Recovery is redo,
//!   then close, then release, in that order.
//! - **L3** No lock between hosts is taken on the path of a prefix lookup or a fetch. They guard
//!   the chunk table, named roots and the formatting of segments.
//! - **L4** No waiter is overtaken without bound: threads of a host take turns in the order in which
//!   they came, but for one that is stopped (Q6 in `queue`), a host that has had the lock goes to the end
//!   of the hosts' queue, and what is passed within a host is bounded.
//! - **L5** Nothing that a dead holder of a program's lock stored appears after the lock was released for
//!   it. Every later holder is told of the death, until one says that the data is consistent (`tally`).
//!
//! While a thread holds one of the region's own locks it waits for no process of its own host that may
//! stand still, or for 2 ms at most: all hosts would wait with it. `Unlocked` in `alloc/heap/unlocked.rs`
//! holds the heap to that.

pub mod arbitrated;
mod bakery;
mod contention;
mod error;
mod guard;
mod host;
mod host_turn;
mod manager_watch;
mod pending;
mod queue;
mod shared_tier;
pub(crate) mod stamp;
mod stopped_watch;
mod table;
mod tally;
#[cfg(test)]
mod tests;

pub use contention::Contention;
pub use error::LockError;
#[cfg(any(test, feature = "proof"))]
pub(crate) use guard::recover_seat;
pub use guard::{PASSES_MAX, PASSING_US_MAX, SharedGuard};
pub(crate) use guard::{end_abandoned, recover_all};
pub use host::{HolderToken, HostAcquire, HostLock};
pub(crate) use host_turn::{wait_for_host_lock, wait_for_host_lock_until};
pub use pending::{PendingLock, TRY_MS};
pub(crate) use queue::{HostQueue, Living, QueueWords};
#[cfg(any(test, feature = "proof"))]
pub(crate) use shared_tier::Held;
pub(crate) use shared_tier::{Competitor, SharedTier, clear_requests_of};
pub use table::{AllocateLockError, FreeLockError};
pub(crate) use tally::is_for_programs;
