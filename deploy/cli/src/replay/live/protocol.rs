//! What a live replay and its workers say to each other.

use serde::{Deserialize, Serialize};

/// To a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "task")]
pub(super) enum Task {
    /// Serve a request: fetch what the pool has of it, publish the rest.
    Serve {
        /// Its blocks, from the root on.
        blocks: Vec<u32>,
        /// When it comes, by the trace.
        now_ms: u64,
    },
}

/// From a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(super) enum Event {
    /// The pool is attached.
    Ready,
    /// The request is served.
    Served(Served),
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    /// Blocks that were fetched, and had the right bytes.
    pub(super) hits: u64,
    /// Blocks that were published.
    pub(super) published: u64,
    /// Blocks that there was no room for.
    pub(super) refused: u64,
    /// Why, when it was for another reason than a full pool.
    pub(super) trouble: Option<String>,
    /// Blocks that were evicted to make room.
    pub(super) evicted: u64,
    /// How long the lookup took.
    pub(super) lookup_ns: u64,
    /// How long it took to hold what was found.
    pub(super) hold_ns: u64,
    /// How long the fetch took.
    pub(super) fetch_ns: u64,
    /// How long the publish took.
    pub(super) publish_ns: u64,
    /// What the drive did, if there is one.
    pub(super) drive: DriveServed,
}

/// What a drive did before and for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct DriveServed {
    /// Blocks of the pool that count as hits because the drive had what was missing before them.
    pub(super) pool_hits: u64,
    /// Blocks that were read from the drive, and had the right bytes.
    pub(super) hits: u64,
    /// Blocks that were written.
    pub(super) written_blocks: u64,
    /// Bytes of their extents.
    pub(super) written_bytes: u64,
    /// Blocks that left.
    pub(super) left_blocks: u64,
    /// Blocks that were due, and that the pool had no more, or the drive had already.
    pub(super) gone_blocks: u64,
    /// Blocks that were not admitted since the replay began.
    pub(super) refused_blocks: u64,
    /// How long the reads took.
    pub(super) get_ns: u64,
    /// How long the writes took, with their commits.
    pub(super) put_ns: u64,
    /// Bytes that the folder wrote since it was made, metadata among them.
    pub(super) folder_written_bytes: u64,
}
