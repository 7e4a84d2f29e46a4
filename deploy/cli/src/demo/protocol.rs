//! What the demonstration and its workers say to each other.

use std::collections::BTreeMap;

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
    /// Answer all prompts together, while only a part of their KV is in the memory of the worker.
    DecodeOffloaded {
        /// The prompts. Their whole blocks are published first, where the pool has them not.
        prompts: Vec<Vec<u32>>,
        /// Longest answer.
        max_tokens: usize,
        /// The part of the KV that there is memory for.
        memory_percent: u64,
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
    /// A plan was installed.
    Planned(Planned),
    /// An iteration has ended.
    Stepped {
        /// Tokens of all answers so far.
        tokens: usize,
    },
    /// All answers are complete.
    Offloaded {
        /// Their tokens, in the order of the prompts.
        answers: Vec<Vec<u32>>,
        /// What it took.
        figures: Offloaded,
    },
    /// Where the block lies.
    Located {
        /// Bytes from the start of the region.
        offset: u64,
        /// Its length in bytes.
        bytes: u64,
    },
}

/// Which layers of which prompt are in the pool alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Planned {
    /// Number of the plan.
    pub(super) version: u64,
    /// Why it was made.
    pub(super) trigger: String,
    /// Of each prompt that is decoded. A prompt that waits is not named.
    pub(super) placed: Vec<Placed>,
}

/// Which layers of one prompt are in the pool alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Placed {
    /// Number of the prompt, counted from 0.
    pub(super) prompt: u64,
    /// Layers, counted from 1.
    pub(super) offloaded: Vec<u16>,
}

/// What it took to answer with offloaded layers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Offloaded {
    /// Decode iterations.
    pub(super) iterations: u64,
    /// Plans that were installed.
    pub(super) plans: u64,
    /// Layers of blocks that were streamed.
    pub(super) streamed_layers: u64,
    /// Their bytes.
    pub(super) streamed_bytes: u64,
    /// Layers for which the engine waited.
    pub(super) stalls: u64,
    /// How long it waited in all.
    pub(super) stall_ms: u64,
    /// Bytes of keys and values for which the worker had memory.
    pub(super) limit_kv_bytes: u64,
    /// Most bytes of keys and values that were in the worker's memory, buffers among them.
    pub(super) peak_kv_bytes: u64,
    /// Bytes of keys and values of all prompts and answers.
    pub(super) whole_kv_bytes: u64,
    /// Blocks that were lost or damaged while their layers were in the pool alone, by reason. Their
    /// prompts were computed again from there.
    pub(super) lost_blocks: BTreeMap<String, u64>,
    /// Blocks that the pool did not keep: they were in the worker's memory in all layers, beyond what
    /// the limit allows.
    pub(super) unpooled_blocks: u64,
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
