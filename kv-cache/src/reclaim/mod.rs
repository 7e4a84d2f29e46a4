//! Orphans: the blocks of a node whose slot is vacant, because its host died or left.
//!
//! The blocks stay readable where they are. No host evicts them until chunks run short. Then a live
//! host, the *reclaimer*, empties one of the orphan's chunks and returns it to the region. Other
//! hosts do nothing else to an orphan. The next life of the slot sweeps the rest, for example
//! blocks that the orphan was writing (BLOCK-E2, BLOCK-E3).
//!
//! Rules ORPHAN-W1 to ORPHAN-W4, in `cxl_shm`'s `lifecycle/orphans.rs`, say which host may write
//! what an orphan left. A host writes into a word of its own which orphan it empties, and then
//! checks that it may. A rejoining host says that it joins, and then looks for a reclaimer. Of the
//! area, a reclaimer may write only log and segment
//! ([`Areas::published`](crate::format::Areas::published)). It empties a chunk by the protocol by
//! which a node evicts its own blocks (EVICT-H1, `evict/protocol.rs`).
//!
//! A crash anywhere leaves each block of the orphan complete or free, as an eviction does. EVICTING
//! is as good as READY for a reader (EVICT-H2). It becomes READY again when the next reclaimer, or
//! the next life, comes.

mod choose;
mod orphan;
mod processes;
mod rejoin;
mod take;
mod unfinished;

#[cfg(test)]
pub(crate) use choose::AGAIN_MS;
pub(crate) use orphan::Orphan;
pub(crate) use take::end_reclaim;

pub use processes::reclaim_dead_processes;
pub use rejoin::ReclaimInProgress;
