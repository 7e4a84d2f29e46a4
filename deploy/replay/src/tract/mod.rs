//! Workloads like those of TraCT: prompts that share prefixes, with the moments of the paper's Table 1.
//!
//! D. Yoon, Y. Min, H. Kim, S. H. Noh, J. Kim, *TraCT: Disaggregated LLM Serving with CXL Shared Memory
//! KV Cache at Rack-Scale*, arXiv:2512.18194, 2025. The paper gives means and deviations, and no traces.
//!
//! - **TRACE-T1** A request is a *shared* part and a *unique* one. The shared part is the beginning of a
//!   document, in whole blocks. No other request has the tokens of the unique part.
//! - **TRACE-T2** Documents are drawn by Zipf's law. They are the leaves of a tree: all begin with one
//!   text, and those of a topic share more.
//! - **TRACE-T3** Lengths of shared and unique parts are drawn from gamma distributions, independently of
//!   each other, and then moved and stretched until the drawn numbers have the mean and the deviation
//!   that are asked for.
//! - **TRACE-T4** The hits of a cache without bounds are counted while the trace is made: by how much of
//!   each text was used before, and not by a table of blocks.

mod lengths;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rand_distr::{Distribution as _, Exp, Zipf};
use serde::Serialize;

use self::lengths::{Moments, drawn, fitted, moments_of, whole};

/// Tokens of a block, as in the paper.
pub const BLOCK_TOKENS: u64 = 64;
/// Blocks with which every document begins: 512 tokens.
const COMMON_BLOCKS: u64 = 8;
/// Blocks that documents of one topic share, those before among them: 1,536 tokens.
const TOPIC_BLOCKS: u64 = 24;
/// Documents of a topic.
const TOPIC_DOCUMENTS: u64 = 8;

/// Steps in which the moments of the shared parts approach those that prompts need.
const STEPS: usize = 20;

const INPUT: Moments = Moments { mean: 4449.0, deviation: 2424.0 };
const OUTPUT: Moments = Moments { mean: 215.0, deviation: 263.0 };

/// A workload of Table 1. They differ in how much of a prompt is unique.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// 1,073 unique tokens, with a deviation of 1,549.
    A,
    /// 1,215 and 1,693.
    B,
    /// 1,631 and 2,027.
    C,
}

impl Workload {
    /// Tokens of a prompt that no other has.
    const fn unique(self) -> Moments {
        match self {
            Self::A => Moments { mean: 1073.0, deviation: 1549.0 },
            Self::B => Moments { mean: 1215.0, deviation: 1693.0 },
            Self::C => Moments { mean: 1631.0, deviation: 2027.0 },
        }
    }

    /// Tokens of the shared part: what is left of the prompt, of an independent length.
    fn shared(self) -> Moments {
        let unique = self.unique();
        let variance = INPUT.deviation.powi(2) - unique.deviation.powi(2);
        Moments { mean: INPUT.mean - unique.mean, deviation: variance.sqrt() }
    }
}

/// What a trace is made by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TractOptions {
    /// The workload.
    pub workload: Workload,
    /// Equal seeds make equal traces.
    pub seed: u64,
    /// Requests; at least 100, or their moments say nothing.
    pub requests: usize,
    /// Different documents. An assumption: the paper does not say.
    pub documents: u64,
    /// Exponent of Zipf's law. An assumption, too.
    pub zipf: f64,
    /// Requests a second: they arrive as a Poisson process.
    pub rate: f64,
}

/// Why no trace is made.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TractError {
    /// Too few requests.
    #[error("{0} requests are too few for means and deviations: ask for 100 or more")]
    Requests(usize),
    /// No document.
    #[error("there is no document: ask for one or more")]
    Documents,
    /// No exponent.
    #[error("{0} is no exponent of Zipf's law here: give 0 to 10")]
    Zipf(f64),
    /// No rate.
    #[error("{0} requests a second cannot arrive: give a number above 0")]
    Rate(f64),
}

/// A request, as a line of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TractRequest {
    /// When it arrives, in milliseconds.
    pub timestamp: u64,
    /// Tokens of the prompt.
    pub input_length: u64,
    /// Tokens of the answer.
    pub output_length: u64,
    /// The whole blocks of the prompt.
    pub hash_ids: Vec<u64>,
}

/// A trace, and what is known of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Tract {
    /// In the order of arrival.
    pub requests: Vec<TractRequest>,
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Blocks of those that a cache without bounds has, each with all before it (TRACE-T4).
    pub hits: u64,
}

/// What a trace has, and what the table asks for: means and deviations in tokens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Compared {
    /// What it is of.
    pub of: &'static str,
    /// Mean and deviation of the trace.
    pub found: (f64, f64),
    /// Those of the table.
    pub wanted: (f64, f64),
}

impl Compared {
    /// Whether both are within three percent.
    #[must_use]
    pub fn is_near(&self) -> bool {
        let is_near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.03;
        is_near(self.found.0, self.wanted.0) && is_near(self.found.1, self.wanted.1)
    }
}

impl Tract {
    /// The lengths of prompts and answers beside those of the table. Too few documents or requests, or
    /// documents that are used very unequally, do not reach them.
    #[must_use]
    pub fn compared(&self) -> [Compared; 2] {
        let compare = |of, length: fn(&TractRequest) -> u64, wanted: &Moments| {
            #[expect(clippy::cast_precision_loss, reason = "lengths of prompts")]
            let lengths: Vec<f64> = self.requests.iter().map(|it| length(it) as f64).collect();
            let found = moments_of(&lengths, &vec![1; lengths.len()]);
            let pair = |moments: &Moments| (moments.mean, moments.deviation);
            Compared { of, found: pair(&found), wanted: pair(wanted) }
        };
        [
            compare("prompts", |it| it.input_length, &INPUT),
            compare("answers", |it| it.output_length, &OUTPUT),
        ]
    }

    /// Makes a trace.
    ///
    /// # Errors
    /// [`TractError`].
    pub fn new(options: &TractOptions) -> Result<Self, TractError> {
        let TractOptions { workload, seed, requests, documents, zipf, rate } = *options;
        if requests < 100 {
            return Err(TractError::Requests(requests));
        }
        if documents == 0 {
            return Err(TractError::Documents);
        }
        #[expect(clippy::cast_precision_loss, reason = "documents are counted in millions at most")]
        let popularity = Zipf::new(documents as f64, zipf).map_err(|_| TractError::Zipf(zipf))?;
        if !(0.0..=10.0).contains(&zipf) {
            return Err(TractError::Zipf(zipf));
        }
        let gap = Exp::new(rate / 1000.0).map_err(|_| TractError::Rate(rate))?;
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(TractError::Rate(rate));
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let chosen: Vec<u64> =
            (0..requests).map(|_| whole(popularity.sample(&mut random)) - 1).collect();
        let ones = vec![1; requests];
        let mut numbers = |moments: &Moments| {
            let raw = drawn(moments, requests, &mut random);
            fitted(raw, &ones, moments, 1.0)
        };
        let (unique, outputs) = (numbers(&workload.unique()), numbers(&OUTPUT));
        let shared_blocks = shared_blocks(workload, &chosen, &unique, &mut random);
        let mut texts = Texts::default();
        let (mut at_ms, mut all) = (0.0, Vec::with_capacity(requests));
        for ((document, unique), output) in chosen.into_iter().zip(unique).zip(outputs) {
            at_ms += gap.sample(&mut random);
            let shared = shared_blocks[&document];
            let input_length = shared * BLOCK_TOKENS + whole(unique);
            let hash_ids = texts.prompt(document, shared, input_length / BLOCK_TOKENS);
            let (timestamp, output_length) = (whole(at_ms), whole(output));
            all.push(TractRequest { timestamp, input_length, output_length, hash_ids });
        }
        let Texts { blocks, hits, .. } = texts;
        Ok(Self { requests: all, blocks, hits })
    }
}

/// Blocks of the shared part, by document: one length each, so that the requests have the moments.
fn shared_blocks(
    workload: Workload,
    chosen: &[u64],
    unique: &[f64],
    random: &mut ChaCha8Rng,
) -> BTreeMap<u64, u64> {
    let mut uses = BTreeMap::<u64, u64>::new();
    for document in chosen {
        *uses.entry(*document).or_default() += 1;
    }
    let mut moments = workload.shared();
    let raw = drawn(&moments, uses.len(), random);
    let weights: Vec<u64> = uses.values().copied().collect();
    let ones = vec![1; chosen.len()];
    let mut blocks = BTreeMap::new();
    // The two parts of so few prompts are not quite independent, and blocks are whole.
    for _ in 0..STEPS {
        let lengths = fitted(raw.clone(), &weights, &moments, 0.0);
        let of_tokens = |tokens| (whole(tokens) + BLOCK_TOKENS / 2) / BLOCK_TOKENS;
        blocks = uses.keys().copied().zip(lengths.into_iter().map(of_tokens)).collect();
        #[expect(clippy::cast_precision_loss, reason = "lengths of prompts")]
        let input =
            |(document, unique): (&u64, &f64)| (blocks[document] * BLOCK_TOKENS) as f64 + unique;
        let inputs: Vec<f64> = chosen.iter().zip(unique).map(input).collect();
        let found = moments_of(&inputs, &ones);
        moments.mean += INPUT.mean - found.mean;
        moments.deviation *= INPUT.deviation / found.deviation;
    }
    blocks
}

/// The texts of which prompts are made, and how many blocks of each were used.
#[derive(Debug, Default)]
struct Texts {
    /// By text and place: the name of the block.
    names: BTreeMap<(Text, u64), u64>,
    /// Blocks of a text that were used: always its first ones.
    used: BTreeMap<Text, u64>,
    next_name: u64,
    blocks: u64,
    hits: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Text {
    /// TRACE-T2: of all documents, of those of a topic, of one.
    Common,
    Topic(u64),
    Document(u64),
}

impl Texts {
    /// The blocks of a prompt: `shared` ones of the document, and then new ones, `all` in all (TRACE-T1).
    fn prompt(&mut self, document: u64, shared: u64, all: u64) -> Vec<u64> {
        let topic = document / TOPIC_DOCUMENTS;
        let parts = [
            (Text::Common, 0, COMMON_BLOCKS),
            (Text::Topic(topic), COMMON_BLOCKS, TOPIC_BLOCKS),
            (Text::Document(document), TOPIC_BLOCKS, u64::MAX),
        ];
        let mut ids = Vec::new();
        let mut is_known = true;
        for (text, first, end) in parts {
            let count = shared.min(all).min(end).saturating_sub(first);
            let used = self.used.entry(text).or_default();
            if is_known {
                self.hits += count.min(*used);
                // What follows a block that is new is new, too.
                is_known = count <= *used;
            }
            *used = (*used).max(count);
            for place in 0..count {
                let next = &mut self.next_name;
                let name = self.names.entry((text, place)).or_insert_with(|| {
                    *next += 1;
                    *next - 1
                });
                ids.push(*name);
            }
        }
        let unique = all.saturating_sub(ids.len() as u64);
        ids.extend(self.next_name..self.next_name + unique);
        self.next_name += unique;
        self.blocks += all;
        ids
    }
}
