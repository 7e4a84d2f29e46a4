//! Eviction: which blocks make room for others, and how.
//!
//! Only the owner evicts, under its host's heap lock. A batch goes like this:
//!
//! ```text
//! order     candidates, leaf first                          (this process's own memory)
//! look      their stamps, freshly: used since? held?        (two fences)  -> stays
//! attempt   descriptors EVICTING, published                 (one fence)
//!           their stamps again, freshly (H1)                (two fences)
//!           held: READY again, published                    (one fence, seldom)
//!           else: FREE, published; the slot is free         (one fence)
//!           tombstones cleaned up; log entries; log head    (one fence each)
//! ```
//!
//! - **V1** A block that is held (H1 to H5) or being written is never evicted.
//! - **V2** A block that was used on any host since it was last looked at stays for another round,
//!   within the bound of V3.
//! - **V3** A batch looks at no more than [`LOOKED_AT_MAX`] blocks before it takes what it finds, so a
//!   publish that has to make room itself waits for a bounded time. After twice as many, held ones
//!   counted, it lets others have the heap lock, and so it does between parts of a first look at all
//!   blocks.
//! - **V4** Deeper blocks of a prefix leave before those that they build on ([`policy`]).
//! - **V5** Namespaces over their quota give first ([`Quota`]).
//! - **V6** Between two watermarks it happens in the background ([`Cache::upkeep`]); a publish that
//!   finds no room, or is not granted the lock of the chunk table, evicts what it needs itself, at most
//!   [`BATCH`] blocks at a time.
//! - **V7** A chunk that is given back takes no payload from then on; it is given back once all its
//!   slots are free, outside the heap lock (L3). Nothing is evicted for that while somebody holds
//!   something in it, or while the lock of the chunk table is not to be had. A death in between
//!   leaves it this node's or nobody's, which the next process finds out from the chunk table once
//!   what the dead left there is redone.
//!
//! A crash anywhere leaves each block complete or free: EVICTING goes back to READY in the sweep,
//! since somebody may hold it (H6), also where the line that says so is torn, and the log is skipped over, so that nobody goes on believing in
//! what is gone (G3).
//!
//! [`Cache::upkeep`]: crate::Cache::upkeep

mod attempt;
mod chunk_wait;
mod give_back;
mod look;
mod order;
pub mod policy;
mod quota;
mod room;
mod touch;
mod upkeep;

pub(crate) use attempt::Decision;
pub(crate) use chunk_wait::ChunkWait;
#[cfg(test)]
pub(crate) use give_back::GivenBack;
pub(crate) use look::look_at_stamps;
pub(crate) use order::Order;
pub(crate) use quota::{QUOTA_WORDS, QuotaTable};
pub(crate) use room::Lack;

pub use quota::{QUOTAS_MAX, Quota, TooManyQuotas};
pub use upkeep::{Upkeep, WatermarkError, Watermarks};

/// Most blocks that are evicted in one go, under one hold of the heap lock.
pub const BATCH: usize = 64;
/// Most blocks that are looked at for a batch, before it takes what it finds.
pub const LOOKED_AT_MAX: usize = 8 * BATCH;
