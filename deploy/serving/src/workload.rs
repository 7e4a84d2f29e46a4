//! What arrives when.

use std::collections::HashMap;

use rackline_replay::Trace;

use crate::numbers::ns;
use crate::profile::Profile;
use crate::served::Served;

/// Times up to this, 104 days, are exact.
const NS_MAX: f64 = 9e15;
/// More tokens than any prompt or answer has.
const TOKENS_MAX: u64 = 1 << 24;

/// Why a trace is no workload. Requests are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The blocks are of another size.
    #[error(
        "request {number} has {prompt_tokens} tokens and {blocks} blocks, which are not {block_tokens} \
         tokens long: give --block-tokens as in the trace"
    )]
    BlockTokens {
        /// The request.
        number: usize,
        /// Tokens of its prompt.
        prompt_tokens: u64,
        /// Its blocks.
        blocks: usize,
        /// Tokens that a block was said to have.
        block_tokens: u64,
    },
    /// A request arrives after more than 104 days.
    #[error("request {number} arrives after more than 104 days: give a higher rate")]
    Late {
        /// The request.
        number: usize,
    },
    /// A prompt or an answer is too long.
    #[error("request {number} has a prompt or an answer of more than 16777216 tokens")]
    Long {
        /// The request.
        number: usize,
    },
    /// All requests together take too long.
    #[error("the requests take more than 104 days by this profile: give fewer, or another profile")]
    Slow,
}

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
    /// The first `most` requests of a trace, whose blocks are numbered anew. Where a line does not say
    /// how long prompt and answer are, they have the tokens of the blocks, and one token. A last block
    /// that the prompt does not fill is left out. With `rate`, so many requests arrive in a second as the
    /// mean, with the gaps of the trace in proportion, or equal ones where it has none; without it, when
    /// the trace says so.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn of(
        trace: &Trace,
        block_tokens: u64,
        most: usize,
        rate: Option<f64>,
    ) -> Result<Self, WorkloadError> {
        let times = trace.times_ms();
        let first_ms = times.first().copied().unwrap_or(0);
        let count = trace.requests().len().min(most);
        let last_ms = count.checked_sub(1).map_or(first_ms, |last| times[last]);
        let mut names = HashMap::new();
        let mut name = |id: &u32| {
            let next = u32::try_from(names.len()).unwrap_or(u32::MAX);
            *names.entry(*id).or_insert(next)
        };
        let mut requests = Vec::with_capacity(count);
        let lines = trace.requests().iter().zip(trace.lengths()).zip(times);
        for (number, ((ids, lengths), at_ms)) in lines.enumerate().take(count) {
            let since_ms = at_ms - first_ms;
            #[expect(clippy::cast_precision_loss, reason = "checked below")]
            let at_ns = match rate {
                None => since_ms as f64 * 1e6,
                Some(rate) if last_ms == first_ms => number as f64 / rate * 1e9,
                Some(rate) => {
                    let share = since_ms as f64 / (last_ms - first_ms) as f64;
                    share * (count - 1) as f64 / rate * 1e9
                }
            };
            if at_ns > NS_MAX {
                return Err(WorkloadError::Late { number });
            }
            let of_blocks = ids.len() as u64 * block_tokens;
            let prompt_tokens = lengths.input.unwrap_or(of_blocks).max(1);
            let output_tokens = lengths.output.unwrap_or(1).max(1);
            if prompt_tokens.max(output_tokens) > TOKENS_MAX {
                return Err(WorkloadError::Long { number });
            }
            // Some traces leave a last block out that the prompt fills: engines compute its last token.
            let fewest = (prompt_tokens - 1) / block_tokens;
            if !(fewest..=prompt_tokens.div_ceil(block_tokens)).contains(&(ids.len() as u64)) {
                let blocks = ids.len();
                return Err(WorkloadError::BlockTokens {
                    number,
                    prompt_tokens,
                    blocks,
                    block_tokens,
                });
            }
            let whole = usize::try_from(prompt_tokens / block_tokens).unwrap_or(usize::MAX);
            let blocks = ids.iter().take(whole).map(&mut name).collect();
            let at_ns = crate::numbers::whole(at_ns);
            requests.push(Request { at_ns, prompt_tokens, output_tokens, blocks });
        }
        let unique_blocks = u32::try_from(names.len()).unwrap_or(u32::MAX);
        Ok(Self { requests, block_tokens, unique_blocks })
    }

    /// Whether the requests are served in a time that can be counted, one after the other.
    ///
    /// # Errors
    /// [`WorkloadError::Slow`].
    pub fn check(&self, profile: &Profile) -> Result<(), WorkloadError> {
        let of = |request: &Request| {
            let tokens = request.prompt_tokens + request.output_tokens;
            let iteration = ns(profile.iteration_ns(1, tokens));
            #[expect(clippy::cast_precision_loss, reason = "at most TOKENS_MAX")]
            let decoding = iteration * request.output_tokens as f64;
            2.0 * ns(profile.prefill_ns(request.prompt_tokens, 0)) + decoding
        };
        let all: f64 = self.requests.iter().map(of).sum();
        if all > NS_MAX { Err(WorkloadError::Slow) } else { Ok(()) }
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

    /// What is known of each request before it is served, by its number.
    #[must_use]
    pub fn unserved(&self) -> Vec<Served> {
        let unserved = |(number, request): (usize, &Request)| Served {
            request: number,
            arrived_ns: request.at_ns,
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            blocks: request.blocks.len() as u64,
            ..Served::default()
        };
        self.requests.iter().enumerate().map(unserved).collect()
    }
}
