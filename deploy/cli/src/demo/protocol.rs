//! What the demonstration and its workers say to each other.

use serde::{Deserialize, Serialize};

/// To a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "task")]
pub(super) enum Task {
    /// Make the pool hold every whole block of the prompt: fetch what it has, compute the rest,
    /// publish that.
    Prefill {
        /// The prompt.
        tokens: Vec<u32>,
    },
    /// Take the prompt's blocks from the pool and generate an answer.
    Decode {
        /// The prompt.
        tokens: Vec<u32>,
        /// Longest answer.
        max_tokens: usize,
    },
    /// Compute the whole prompt without any pool and generate an answer.
    Alone {
        /// The prompt.
        tokens: Vec<u32>,
        /// Longest answer.
        max_tokens: usize,
    },
    /// Say where in the region block `block` of the prompt lies.
    Locate {
        /// The prompt.
        tokens: Vec<u32>,
        /// Which of its blocks.
        block: usize,
    },
}

/// From a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(super) enum Event {
    /// The model is loaded and the pool attached.
    Ready,
    /// The pool holds the prompt.
    Prefilled {
        /// What was moved.
        moved: Moved,
    },
    /// Text of the answer; the first event says that the first token is there.
    Text {
        /// The text, possibly empty.
        text: String,
    },
    /// The answer is complete.
    Answered {
        /// Its tokens.
        tokens: Vec<u32>,
        /// What was moved.
        moved: Moved,
    },
    /// Where the block lies.
    Located {
        /// Bytes from the start of the region.
        offset: u64,
        /// Its length in bytes.
        bytes: u64,
    },
}

/// What one task moved between a worker and the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Moved {
    /// Tokens of the prompt that came from the pool.
    pub(super) cached_tokens: usize,
    /// Of those, tokens whose blocks an agent brought back from a drive for this task.
    pub(super) restored_tokens: usize,
    /// Tokens that were computed.
    pub(super) computed_tokens: usize,
    /// Bytes fetched and found good.
    pub(super) fetched_bytes: u64,
    /// Bytes published.
    pub(super) published_bytes: u64,
    /// Blocks that could not be published, because the pool was full for example.
    pub(super) refused_blocks: u64,
    /// Blocks of its node that the worker evicted to make room, since the task before.
    pub(super) evicted_blocks: u64,
    /// Blocks that were fetched and found bad.
    pub(super) corrupt_blocks: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        self.cached_tokens += other.cached_tokens;
        self.restored_tokens += other.restored_tokens;
        self.computed_tokens += other.computed_tokens;
        self.fetched_bytes += other.fetched_bytes;
        self.published_bytes += other.published_bytes;
        self.refused_blocks += other.refused_blocks;
        self.evicted_blocks += other.evicted_blocks;
        self.corrupt_blocks += other.corrupt_blocks;
    }
}
