//! Eviction: which blocks make room for others, and how.
//!
//! The owner evicts, under its host's heap lock; of a vacant node its reclaimer does (`reclaim`).
//! Both follow one protocol (`evict/protocol.rs`). A batch of the owner has these steps:
//!
//! ```text
//! order     candidates, leaf first                          (this process's own memory)
//! look      their reader words, freshly: used since? held?  (two fences)  -> stays
//! announce  descriptors EVICTING, published                 (one fence)
//! decide    their reader words again, freshly (EVICT-H1)    (two fences)
//! commit    held: READY again, published                    (one fence, seldom)
//!           else: FREE, published; the slot is free         (one fence)
//!           tombstones cleaned up; log entries; log head    (one fence each)
//! ```
//!
//! - **EVICT-V1** A block that is held (EVICT-H1 to EVICT-H5) or being written is never evicted.
//! - **EVICT-V2** A block that any host used since the last look stays for another round, within
//!   the bound of EVICT-V3.
//! - **EVICT-V3** A batch looks at no more than [`LOOKED_AT_MAX`] blocks before it takes what it
//!   finds. So a publish that has to make room itself waits for a bounded time. After twice as
//!   many, counting held ones, the batch lets others have the heap lock. It does so between parts
//!   of a first look at all blocks, too.
//! - **EVICT-V4** Deeper blocks of a prefix leave before those that they build on ([`policy`]).
//! - **EVICT-V5** Namespaces over their quota give first ([`Quota`](crate::Quota)). Pinned ones give
//!   last (CLEAR-D5).
//! - **EVICT-V6** Between two watermarks eviction happens in the background ([`Cache::upkeep`]). A
//!   publish that finds no room, or does not get the lock of the chunk table, evicts what it needs
//!   itself, at most [`BATCH`] blocks at a time.
//! - **EVICT-V7** A chunk that is to be returned takes no payload from then on. One that is returned
//!   because it is empty must still be empty then: nothing is evicted for it. A chunk is returned once
//!   all its slots are free, outside the heap lock (LOCK-L3). Nothing is evicted for that while a
//!   reader holds a block in it, or while the lock of the chunk table cannot be acquired. After a
//!   death in between, the chunk belongs to this node or to nobody. The next process finds that out
//!   from the chunk table, once the dead process's update there is redone.
//!
//! A crash anywhere leaves each block complete or free. EVICTING goes back to READY in the sweep,
//! because a reader may hold the block (EVICT-H6), even when the line that says so is torn. The
//! sweep also skips the log ahead, so that no reader keeps believing in a block that is gone
//! (INDEX-G3).
//!
//! [`Cache::upkeep`]: crate::Cache::upkeep

mod batch;
mod look;
mod order;
pub mod policy;
mod protocol;
mod watch;

pub(crate) use look::last_uses;
pub(crate) use order::Order;
pub(crate) use protocol::{Announced, Decision, SegmentWriter};
pub(crate) use watch::HoldWatch;

/// Most blocks that are evicted in one go, under one hold of the heap lock.
pub const BATCH: usize = 64;
/// Most blocks that are looked at for a batch, before it takes what it finds.
pub const LOOKED_AT_MAX: usize = 8 * BATCH;
