//! Publishing blocks, in batches.
//!
//! ```text
//! reserve   descriptors WRITING, published           (one fence)
//! -> the caller copies the payloads, and gets them to the device (MEM-M9), with a fence
//! commit    descriptors READY with checksum, and log entries, published    (one fence)
//!           log head, published                           (one fence)
//! ```
//!
//! - **WRITE-B1** WRITING is fully published before the first byte of the payload changes
//!   (EVICT-H2).
//! - **WRITE-B2** The payload is on the device before READY is stored. That is the caller's part: a
//!   `store` of the DMA engines returns only then.
//! - **WRITE-B3** READY is visible before the head of the log counts the entry that says so: a reader
//!   that follows the log finds a complete block. No reader reads an entry that the head does not
//!   count, so READY and the entry need no order.
//!
//! No lock between hosts is taken, unless this node has no free payload slot of the size. Then it
//! takes a chunk from the region, without holding the heap lock (LOCK-L3).
//!
//! A crash anywhere leaves a block either complete or free. The sweep frees WRITING. The rescan
//! that the sweep causes finds READY without a log entry.

mod block;
mod commit;
mod reserve;
mod room;

use cxl_shm::chunk::AllocateError;
use cxl_shm::host::{LossCause, MembershipLost};

pub use block::{BlockSpec, ReadyBlock, WritingBlock};
pub use commit::CommitError;
pub use reserve::Reservation;

/// Why a block was not reserved. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A block has at least one byte, and fits a chunk and 32 bits.
    #[error("a block cannot have {bytes} bytes: the length must be 1 to {most_bytes} bytes")]
    Length {
        /// Length asked for.
        bytes: u64,
        /// Longest possible.
        most_bytes: u64,
    },
    /// The node's descriptors are used up, or all those where this key could be found.
    #[error(
        "the descriptor segment of this node is full: {blocks} of {slots} slots hold blocks; \
         format the region with more descriptors a node"
    )]
    SegmentFull {
        /// Blocks of this node.
        blocks: u64,
        /// Descriptors of this node.
        slots: u32,
    },
    /// No payload slot is free, and no chunk was available.
    #[error("no room for the payload: {0}")]
    NoChunk(#[from] AllocateError),
    /// This node does not take part any more: nothing of it may be written.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
    /// Somebody drains this node.
    #[error("this node is drained: it publishes no new blocks; `rackline drain --undo` ends that")]
    Drained,
    /// Other processes of this host took every payload slot that this one added.
    #[error("no room for the payload: other processes of this host took it; publish again")]
    Outrun,
}

impl Refusal {
    /// A short name, for metrics. That of a lost membership is `declared_dead`, whatever the cause, but
    /// for failed memory of metadata.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Length { .. } => "longer_than_chunk",
            Self::SegmentFull { .. } => "segment_full",
            Self::NoChunk(AllocateError::Lock(_)) => "chunk_lock",
            Self::NoChunk(_) => "no_chunk",
            Self::MembershipLost(MembershipLost { cause: LossCause::MemoryFailed, .. }) => {
                "memory_failed"
            }
            Self::MembershipLost(_) => "declared_dead",
            Self::Drained => "drained",
            Self::Outrun => "outrun",
        }
    }
}
