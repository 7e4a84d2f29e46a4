//! What the bench and its workers say to each other. All times are those of the bench, which may pass
//! faster than those of a clock.

use serde::{Deserialize, Serialize};

/// To a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "task")]
pub(super) enum Task {
    /// A prefill worker computes a prompt and publishes its blocks. They are held until the release.
    Prefill(Prompt),
    /// A decode worker reads the blocks of a prompt and answers.
    Decode {
        /// The prompt.
        #[serde(flatten)]
        prompt: Prompt,
        /// Tokens of the answer.
        output_tokens: u64,
        /// When the worker is told, by the machine's monotonic clock.
        told_ns: u64,
    },
    /// The decode worker has read the blocks of a request.
    Release {
        /// The request.
        request: usize,
    },
}

/// The prompt of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Prompt {
    /// The request.
    pub(super) request: usize,
    /// Its tokens.
    pub(super) tokens: u64,
    /// Its whole blocks, from the root on.
    pub(super) blocks: Vec<u32>,
}

/// From a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(super) enum Event {
    /// The pool is attached.
    Ready,
    /// The blocks of a prompt are in the pool.
    Prefilled(Prefilled),
    /// They are read, and those that were missing are computed.
    Fetched(Fetched),
    /// The first token, so long after the prompt was there. What was computed of the prompt is not in it.
    FirstToken { request: usize, waited_ns: u64 },
    /// The last token.
    Answered { request: usize },
}

/// What a prefill worker did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Prefilled {
    pub(super) request: usize,
    pub(super) lookup_ns: u64,
    pub(super) read_ns: u64,
    pub(super) compute_ns: u64,
    pub(super) write_ns: u64,
    /// Blocks that were found and read.
    pub(super) hits: u64,
    /// Those of them that were on a drive.
    pub(super) from_drives: u64,
    /// Blocks that were written.
    pub(super) published: u64,
    /// Blocks that the pool had no room for.
    pub(super) refused: u64,
    /// Blocks of the prompt that left the pool before they could be held.
    pub(super) not_held: u64,
    /// Why the first of them was refused.
    pub(super) why_refused: Option<String>,
    /// Processor time of its calls of the pool, of this machine.
    pub(super) cpu_ns: u64,
    /// What the machine did not do in time.
    pub(super) late: Late,
}

/// What a decode worker did before it decoded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Fetched {
    pub(super) request: usize,
    /// Since it was told: what it reads for others before is in it.
    pub(super) lookup_ns: u64,
    pub(super) read_ns: u64,
    /// What the next iteration computes of the prompt.
    pub(super) compute_ns: u64,
    /// Blocks that it did not find.
    pub(super) lost: u64,
    /// Those that it found and that came from a drive.
    pub(super) from_drives: u64,
    /// Processor time of its calls of the pool, of this machine.
    pub(super) cpu_ns: u64,
    /// What the machine did not do in time.
    pub(super) late: Late,
}

/// What took longer on this machine than on the one that it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Late {
    /// Transfers whose bytes moved slower than the imposed device.
    pub(super) transfers: u64,
    /// By how much, together.
    pub(super) transfers_ns: u64,
    /// Prompts whose bytes were made slower than the prompts are computed.
    pub(super) prompts: u64,
    /// By how much, together.
    pub(super) prompts_ns: u64,
}

impl Late {
    pub(super) fn add(&mut self, other: Self) {
        self.transfers += other.transfers;
        self.transfers_ns += other.transfers_ns;
        self.prompts += other.prompts;
        self.prompts_ns += other.prompts_ns;
    }
}
