//! What arrives when.

use rackline_replay::Trace;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it arrives, after the first one.
    pub at_ns: u64,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u64,
    /// Tokens of its answer, at least 1.
    pub output_tokens: u64,
    /// The whole blocks of its prompt, from the root on.
    pub blocks: Vec<u32>,
}

impl Request {
    /// Tokens of its first `blocks` blocks.
    #[must_use]
    pub fn tokens_of(&self, blocks: usize, block_tokens: u64) -> u64 {
        (blocks as u64 * block_tokens).min(self.prompt_tokens)
    }
}

/// Requests in the order of arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    /// The requests.
    pub requests: Vec<Request>,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Different blocks: they are numbered below this.
    pub unique_blocks: u32,
}

impl Workload {
    /// The first `most` requests of a trace. Where a line does not say how long prompt and answer are,
    /// they have the tokens of the blocks, and one token. With `rate`, so many requests arrive in a
    /// second as the mean, with the gaps of the trace in proportion; without it, when the trace says so.
    #[must_use]
    pub fn of(trace: &Trace, block_tokens: u64, most: usize, rate: Option<f64>) -> Self {
        let times = trace.times_ms();
        let first_ms = times.first().copied().unwrap_or(0);
        let count = trace.requests().len().min(most);
        let last_ms = count.checked_sub(1).map_or(first_ms, |last| times[last]);
        let stretch = rate.map_or(1.0, |rate| stretch(count, last_ms - first_ms, rate));
        #[expect(clippy::cast_precision_loss, reason = "a trace lasts less than 2^52 ms")]
        let at_ns = |ms: u64| crate::numbers::whole((ms - first_ms) as f64 * stretch * 1e6);
        let request = |number: usize| {
            let blocks = trace.requests()[number].clone();
            let lengths = trace.lengths()[number];
            let of_blocks = blocks.len() as u64 * block_tokens;
            Request {
                at_ns: at_ns(times[number]),
                prompt_tokens: lengths.input.unwrap_or(of_blocks).max(of_blocks).max(1),
                output_tokens: lengths.output.unwrap_or(1).max(1),
                blocks,
            }
        };
        let requests = (0..count).map(request).collect();
        Self { requests, block_tokens, unique_blocks: trace.unique_blocks() }
    }

    /// The same requests, no two with a block in common: as if nothing was ever computed before.
    /// `None` when these are more blocks than can be numbered.
    #[must_use]
    pub fn without_reuse(&self) -> Option<Self> {
        let mut next = 0_u32;
        let mut requests = Vec::with_capacity(self.requests.len());
        for request in &self.requests {
            let count = u32::try_from(request.blocks.len()).ok()?;
            let end = next.checked_add(count)?;
            requests.push(Request { blocks: (next..end).collect(), ..request.clone() });
            next = end;
        }
        Some(Self { requests, unique_blocks: next, ..*self })
    }

    /// Blocks of all prompts.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.requests.iter().map(|request| request.blocks.len() as u64).sum()
    }
}

/// By what the gaps of a trace are multiplied, so that `rate` requests arrive in a second.
#[expect(clippy::cast_precision_loss, reason = "a trace lasts less than 2^52 ms")]
fn stretch(requests: usize, duration_ms: u64, rate: f64) -> f64 {
    let gaps = requests.saturating_sub(1) as f64;
    if duration_ms == 0 { 1.0 } else { gaps / rate * 1e3 / duration_ms as f64 }
}
