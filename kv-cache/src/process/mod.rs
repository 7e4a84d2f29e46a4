//! What the threads of a process share, and the cache as one of them uses it.
//!
//! [`ProcessState`] is the process's own memory: its replica, its order of eviction, its counters,
//! and what it puts off until one of them has the heap lock. [`Cache`] is a thread's way to all of
//! it, and has its operations in the folders above: `read`, `hold`, `reclaim`, `upkeep`, `publish`.

mod cache;
mod chunk_wait;
mod drive_watch;
mod failures;
mod figures;
mod metrics;
mod orphan_watch;
mod state;
mod summary_turn;
mod uses;

pub(crate) use cache::occupancy_of;
pub(crate) use chunk_wait::ChunkWait;
pub(crate) use drive_watch::DriveWatch;
pub(crate) use figures::{count_ended, count_moved};
pub(crate) use orphan_watch::OrphanWatch;

pub use cache::{AttachedCache, Cache, HeapUse, Occupancy, PrefetchCounts};
pub use figures::{HostFigures, Latency};
pub use metrics::Metrics;
pub use state::ProcessState;
