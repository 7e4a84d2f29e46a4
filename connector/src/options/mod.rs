//! What a program chooses: how its process keeps and uses a pool, and what the blocks of a session
//! are.
//!
//! Options are built by methods that return them, and are checked where they are used.

mod asynchronous;
mod pool;
mod restore;
mod session;

use kv_cache::QUOTAS_MAX;

pub use asynchronous::AsyncOptions;
pub use pool::PoolOptions;
pub use restore::RestoreOptions;
pub use session::SessionOptions;

/// Most threads that copy, and most threads that only fetch.
pub const COPY_THREADS_MAX: usize = 64;
/// Most transfers that wait in one queue.
pub const QUEUE_DEPTH_MAX: usize = 1 << 20;
/// Most bytes of a quota.
pub const QUOTA_BYTES_MAX: u64 = (1 << 63) - 1;

/// Options out of range, or in conflict with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// No thread that copies, or too many.
    #[error("copy_threads is {0}: it must be from 1 to {COPY_THREADS_MAX}")]
    CopyThreads(usize),
    /// Too many threads that fetch.
    #[error("fetch_threads is {0}: {COPY_THREADS_MAX} at most")]
    FetchThreads(usize),
    /// A queue without room, or with too much.
    #[error("queue_depth is {0}: it must be from 1 to {QUEUE_DEPTH_MAX}")]
    QueueDepth(usize),
    /// More namespaces with quotas than a host has room for.
    #[error("quotas for {0} namespaces: {QUOTAS_MAX} at most")]
    Quotas(usize),
    /// A namespace has two quotas.
    #[error("quota {0} is for a namespace that already has a quota")]
    SameNamespace(usize),
    /// Two namespaces that the pool counts as one: a quota of either would hold for both.
    #[error(
        "quotas {first} and {second} are for namespaces that the pool counts together: their tags of \
         16 bits are equal. Give one of the tenants another name or salt, or only one of the quotas"
    )]
    SameTag {
        /// Which quota, from 0.
        first: usize,
        /// The other one.
        second: usize,
    },
    /// A share of more than everything.
    #[error("quota {index} has percent {percent}: 100 at most")]
    Percent {
        /// Which quota, from 0.
        index: usize,
        /// Its share.
        percent: u16,
    },
    /// A quota of too many bytes.
    #[error("quota {index} has {bytes} bytes: {QUOTA_BYTES_MAX} at most")]
    Bytes {
        /// Which quota, from 0.
        index: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// A hold longer than the pool grants.
    #[error("hold_ms is {hold_ms}, {} at most", kv_cache::HOLD_MS_MAX)]
    Hold {
        /// Length asked for, in milliseconds.
        hold_ms: u64,
    },
}
