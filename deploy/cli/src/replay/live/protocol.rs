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
}
