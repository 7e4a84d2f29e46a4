//! What became of a request.

use serde::{Deserialize, Serialize};

/// How long each stage of a request took, in nanoseconds. They follow each other, and together are the
/// time from arrival to the last token, but for messages between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Until a prefill worker is free.
    pub queue_ns: u64,
    /// Looking the prompt up, and holding what is found.
    pub lookup_ns: u64,
    /// Until drives have restored what they have of it. In a run with real bytes this is a part of the
    /// lookup.
    #[serde(default)]
    pub restore_ns: u64,
    /// Reading what is found.
    pub read_ns: u64,
    /// Computing the rest.
    pub compute_ns: u64,
    /// Writing the rest, and holding it for the decode worker.
    pub write_ns: u64,
    /// Until a decode worker has a slot.
    pub decode_queue_ns: u64,
    /// Looking the prompt up again, and what the worker reads for others before.
    pub decode_lookup_ns: u64,
    /// Reading the prompt.
    pub decode_read_ns: u64,
    /// Computing what was not found.
    pub decode_compute_ns: u64,
    /// Until the iteration under way has ended, and the first one of the request.
    pub first_token_ns: u64,
    /// From the first token to the last.
    pub decode_ns: u64,
}

/// A stage: what it is called, and its time.
pub type Stage = (&'static str, fn(&Times) -> u64);

impl Times {
    /// The stage in which drives restore. A run with real bytes has none.
    pub const RESTORE: &'static str = "restore";

    /// The stages up to the first token, in order.
    pub const TO_FIRST_TOKEN: [Stage; 11] = [
        ("queue", |it| it.queue_ns),
        ("lookup", |it| it.lookup_ns),
        (Self::RESTORE, |it| it.restore_ns),
        ("KV read", |it| it.read_ns),
        ("compute", |it| it.compute_ns),
        ("KV write", |it| it.write_ns),
        ("decode queue", |it| it.decode_queue_ns),
        ("decode lookup", |it| it.decode_lookup_ns),
        ("decode KV read", |it| it.decode_read_ns),
        ("decode compute", |it| it.decode_compute_ns),
        ("first token", |it| it.first_token_ns),
    ];
}

/// A request that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Served {
    /// The request, counted from 0.
    pub request: usize,
    /// When it arrived, after the first one.
    pub arrived_ns: u64,
    /// From its arrival to its first token.
    pub ttft_ns: u64,
    /// From its arrival to its last token.
    pub latency_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens of its answer.
    pub output_tokens: u64,
    /// Whole blocks of its prompt.
    pub blocks: u64,
    /// Those that its prefill worker found and read.
    pub hits: u64,
    /// Blocks that drives restored for it.
    #[serde(default)]
    pub from_drives: u64,
    /// Those that were written. Blocks that another worker wrote meanwhile are not.
    pub published: u64,
    /// Those that the pool had no room for.
    pub refused: u64,
    /// Those that the decode worker did not find, and computed.
    pub lost: u64,
    /// Processor time of the calls of the pool for it, by the threads that called; 0 in virtual time.
    pub cpu_ns: u64,
    /// How often it began again, because a worker died. The stages are those of the time that gave its
    /// first token; the queue counts from the arrival.
    pub restarts: u64,
    /// Blocks that its prefill worker found when it began again. Most of them it had written itself, so
    /// they are no hits.
    #[serde(default)]
    pub found_again: u64,
    /// The stages.
    #[serde(flatten)]
    pub times: Times,
}

impl Served {
    /// From one token to the next, as the mean. `None` when the answer has one token.
    #[must_use]
    pub fn token_ns(&self) -> Option<u64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(self.times.decode_ns / gaps)
    }
}
