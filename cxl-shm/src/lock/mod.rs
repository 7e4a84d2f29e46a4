//! Locks between threads of several hosts, in two tiers.
//!
//! The *host tier* ([`HostLock`]) is a word in the host's DRAM: at most one thread of a host
//! competes in the *shared tier*, which works in memory that has neither coherence nor atomic
//! operations between hosts ([`arbitrated`]).
//!
//! - **L1** Before the first read of protected lines the holder refreshes them.
//! - **L2** Every multi-line update writes an intent first and closes it after. Recovery is redo,
//!   then close, then release, in that order.
//! - **L3** No lock between hosts is taken on the path of a prefix lookup or a fetch. They guard
//!   the chunk table, named roots and the formatting of segments.

pub mod arbitrated;
mod host;
pub(crate) mod stamp;
mod two_tier;

pub use host::{HolderToken, HostAcquire, HostLock};
pub(crate) use two_tier::recover;
pub use two_tier::{LockError, SharedGuard};
