//! Requests: when they arrive, and how long they are.

use std::io::BufRead;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rand_distr::{Distribution as _, Gamma, LogNormal};
use serde::Deserialize;

use crate::profile::whole;

/// A request that is to decode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its place in the order of arrival.
    pub id: u64,
    /// When it arrives.
    pub arrival_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens that it decodes; at least 1.
    pub output_tokens: u64,
}

/// Which waiting request is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The one that arrived first.
    #[default]
    Arrival,
    /// The one with the fewest tokens left. The lengths of answers are known beforehand.
    ShortestFirst,
}

/// How long requests are.
#[derive(Clone, PartialEq, Debug)]
pub enum Lengths {
    /// Prompts and answers of these mean lengths, log-normal, with a deviation of the mean and half
    /// of it. Prompts have 64 to 131,072 tokens, answers 2 to 4,096.
    Drawn {
        /// Mean of the prompts.
        prompt_tokens: u64,
        /// Mean of the answers.
        output_tokens: u64,
    },
    /// Those of a trace, in its order and then from its beginning again.
    Traced(Vec<(u64, u64)>),
}

/// Why a trace has no lengths.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LengthsError {
    /// It cannot be read.
    #[error("line {line} cannot be read: {error}")]
    Io {
        /// Counted from 1.
        line: usize,
        /// What the system says.
        error: std::io::Error,
    },
    /// A line is no request.
    #[error(
        "line {line} is no request: {error} (a request is a JSON object with \"input_length\" and \
         \"output_length\", in tokens)"
    )]
    NoRequest {
        /// Counted from 1.
        line: usize,
        /// What the parser says.
        error: serde_json::Error,
    },
    /// A request is longer than any.
    #[error("line {line} has {tokens} tokens: at most {TOKENS_MAX} can be simulated")]
    TooLong {
        /// Counted from 1.
        line: usize,
        /// Of prompt and answer.
        tokens: u64,
    },
    /// There is nothing in it.
    #[error("the trace has no request with an answer of two tokens at least")]
    Empty,
}

#[derive(Deserialize)]
struct Line {
    input_length: u64,
    output_length: u64,
}

/// Longest request of a trace.
const TOKENS_MAX: u64 = 16 << 20;
/// Longest prompt and answer that is drawn: what models of today have as their context.
const PROMPT_TOKENS_MAX: u64 = 131_072;
const OUTPUT_TOKENS_MAX: u64 = 4096;

impl Lengths {
    /// Reads the lengths of a trace in JSON lines, as `rackline replay` takes it. Says also how many
    /// requests were passed over: an answer of one token has no time between two tokens.
    ///
    /// # Errors
    /// [`LengthsError`], with the number of the line.
    pub fn read(source: impl BufRead) -> Result<(Self, usize), LengthsError> {
        let (mut lengths, mut passed_over) = (Vec::new(), 0);
        for (at, text) in source.lines().enumerate() {
            let line = at + 1;
            let text = text.map_err(|error| LengthsError::Io { line, error })?;
            if text.trim().is_empty() {
                continue;
            }
            let read: Line = serde_json::from_str(&text)
                .map_err(|error| LengthsError::NoRequest { line, error })?;
            let tokens = read.input_length.saturating_add(read.output_length);
            if tokens > TOKENS_MAX {
                return Err(LengthsError::TooLong { line, tokens });
            }
            if read.output_length >= 2 {
                lengths.push((read.input_length.max(1), read.output_length));
            } else {
                passed_over += 1;
            }
        }
        if lengths.is_empty() {
            return Err(LengthsError::Empty);
        }
        Ok((Self::Traced(lengths), passed_over))
    }

    /// Mean tokens of prompts and answers.
    #[must_use]
    pub fn means(&self) -> (u64, u64) {
        match self {
            Self::Drawn { prompt_tokens, output_tokens } => (*prompt_tokens, *output_tokens),
            Self::Traced(lengths) => {
                let count = lengths.len() as u64;
                let prompts: u64 = lengths.iter().map(|(prompt, _)| prompt).sum();
                let outputs: u64 = lengths.iter().map(|(_, output)| output).sum();
                (prompts / count, outputs / count)
            }
        }
    }

    fn of(&self, id: u64, random: &mut ChaCha8Rng) -> (u64, u64) {
        match self {
            Self::Drawn { prompt_tokens, output_tokens } => {
                let prompt = whole(log_normal(*prompt_tokens, 1.0, random));
                let output = whole(log_normal(*output_tokens, 0.5, random));
                (prompt.clamp(64, PROMPT_TOKENS_MAX), output.clamp(2, OUTPUT_TOKENS_MAX))
            }
            Self::Traced(lengths) => {
                let at = usize::try_from(id).unwrap_or(0) % lengths.len();
                lengths[at]
            }
        }
    }
}

/// Which requests come.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// How many.
    pub requests: u64,
    /// How long they are.
    pub lengths: Lengths,
    /// Mean time between two arrivals.
    pub interval_ns: u64,
    /// Coefficient of variation of that time: 1 is a Poisson process, more is bursty.
    pub arrival_cv: f64,
    /// From which number the random numbers grow.
    pub seed: u64,
}

impl Workload {
    /// The requests, in the order of arrival (SIM-D1).
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        // Other arrivals leave the lengths as they are.
        let mut of_lengths = ChaCha8Rng::seed_from_u64(self.seed);
        let mut of_arrivals = ChaCha8Rng::seed_from_u64(self.seed ^ 0x0061_7272_6976_616c);
        let mut now_ns = 0.0;
        let request = |id| {
            let (prompt_tokens, output_tokens) = self.lengths.of(id, &mut of_lengths);
            now_ns += gamma(self.arrival_cv, &mut of_arrivals) * self.interval_ns as f64;
            Request { id, arrival_ns: whole(now_ns), prompt_tokens, output_tokens }
        };
        (0..self.requests).map(request).collect()
    }
}

/// A number of this mean, and of a deviation of `relative` times the mean.
fn log_normal(mean: u64, relative: f64, random: &mut ChaCha8Rng) -> f64 {
    let mean = mean.max(1) as f64;
    LogNormal::from_mean_cv(mean, relative).map_or(mean, |drawn| drawn.sample(random))
}

/// A number of mean 1.
fn gamma(cv: f64, random: &mut ChaCha8Rng) -> f64 {
    let shape = 1.0 / (cv * cv);
    Gamma::new(shape, 1.0 / shape).map_or(1.0, |drawn| drawn.sample(random))
}
