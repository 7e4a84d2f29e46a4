//! What computing takes: a file for each GPU and model.

use serde::Deserialize;

use crate::numbers::whole;

/// A GPU and a model on it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is.
    pub name: String,
    /// Where its figures are from.
    pub source: String,
    /// Bytes of KV of one token in all layers.
    pub kv_bytes: u64,
    /// Computing a prompt.
    pub prefill: Prefill,
    /// Computing one token of each request of a batch.
    pub decode: Decode,
}

/// What a prompt takes: `base_us`, and `token_us` for each token that is computed, and `pair_ns` for
/// each of these and each token before it.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefill {
    /// Of every prompt, in microseconds.
    pub base_us: f64,
    /// Of a token that is computed, in microseconds.
    pub token_us: f64,
    /// Of a token that is computed and one before it, in nanoseconds: attention.
    pub pair_ns: f64,
}

/// What an iteration takes: `base_us`, and `request_us` for each request, and `context_token_us` for
/// each token of their contexts.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// Of every iteration, in microseconds.
    pub base_us: f64,
    /// Of a request, in microseconds.
    pub request_us: f64,
    /// Of a token of context, in microseconds.
    pub context_token_us: f64,
    /// Most requests of a batch.
    pub batch_max: u32,
    /// Tokens whose KV the GPU has room for.
    pub kv_tokens_max: u64,
}

/// Why a file is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It does not have the form.
    #[error("{0}; copy a profile of deploy/serving/profiles and change its figures")]
    Form(#[from] toml::de::Error),
    /// A figure is none.
    #[error("{figure} is {value}: give {expected}")]
    Figure {
        /// Its name.
        figure: &'static str,
        /// What the file has.
        value: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// Nobody has put such a profile in here.
    #[error(
        "there is no profile \"{name}\": give {}, or a file that ends with .toml",
        Profile::NAMES.join(", ")
    )]
    Unknown {
        /// The name.
        name: String,
    },
}

impl Profile {
    /// The profiles that are built in. The first is the usual one.
    pub const NAMES: [&'static str; 3] = ["a6000-llama-8b", "h200-llama-8b-fp8", "smollm-cpu"];

    /// A profile that is built in.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        Self::read(Self::text_of(name)?)
    }

    /// The text of a profile that is built in.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn text_of(name: &str) -> Result<&'static str, ProfileError> {
        match name {
            "a6000-llama-8b" => Ok(include_str!("../profiles/a6000-llama-8b.toml")),
            "h200-llama-8b-fp8" => Ok(include_str!("../profiles/h200-llama-8b-fp8.toml")),
            "smollm-cpu" => Ok(include_str!("../profiles/smollm-cpu.toml")),
            _ => Err(ProfileError::Unknown { name: name.to_owned() }),
        }
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`], with what to change.
    pub fn read(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text)?;
        let Self { prefill, decode, .. } = &profile;
        let times = [
            ("prefill.base_us", prefill.base_us),
            ("prefill.token_us", prefill.token_us),
            ("prefill.pair_ns", prefill.pair_ns),
            ("decode.base_us", decode.base_us),
            ("decode.request_us", decode.request_us),
            ("decode.context_token_us", decode.context_token_us),
        ];
        let wrong = |figure, value, expected| Err(ProfileError::Figure { figure, value, expected });
        if let Some((figure, value)) = times.into_iter().find(|(_, it)| !(0.0..=1e9).contains(it)) {
            return wrong(figure, value, "a time from 0 to 1000000000");
        }
        if prefill.token_us <= 0.0 {
            return wrong("prefill.token_us", prefill.token_us, "a time above 0");
        }
        if decode.base_us <= 0.0 {
            return wrong("decode.base_us", decode.base_us, "a time above 0");
        }
        if !(1..=1_000_000_000).contains(&profile.kv_bytes) {
            let expected = "the bytes of one token in all layers, 1 to 1000000000";
            #[expect(clippy::cast_precision_loss, reason = "for an error")]
            return wrong("kv_bytes", profile.kv_bytes as f64, expected);
        }
        if !(1..=1_000_000_000_000).contains(&decode.kv_tokens_max) {
            #[expect(clippy::cast_precision_loss, reason = "for an error")]
            let value = decode.kv_tokens_max as f64;
            return wrong("decode.kv_tokens_max", value, "1 to 1000000000000 tokens");
        }
        if !(1..=65_536).contains(&decode.batch_max) {
            return wrong("decode.batch_max", decode.batch_max.into(), "1 to 65536 requests");
        }
        Ok(profile)
    }

    /// How long the tokens of a prompt behind the first `found` take, in nanoseconds. The last token is
    /// computed in any case: the next one comes of it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "prompts have less than 2^32 tokens")]
    pub fn prefill_ns(&self, prompt_tokens: u64, found: u64) -> u64 {
        let found = found.min(prompt_tokens.saturating_sub(1));
        let computed = (prompt_tokens - found) as f64;
        let pairs = computed * (found as f64 + computed / 2.0);
        let Prefill { base_us, token_us, pair_ns } = self.prefill;
        whole((base_us + computed * token_us) * 1e3 + pairs * pair_ns)
    }

    /// How long an iteration of so many requests takes, in nanoseconds, with all tokens of their
    /// contexts. At least 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "contexts have less than 2^52 tokens")]
    pub fn iteration_ns(&self, requests: usize, context_tokens: u64) -> u64 {
        let Decode { base_us, request_us, context_token_us, .. } = self.decode;
        let us = base_us + requests as f64 * request_us + context_tokens as f64 * context_token_us;
        whole(us * 1e3).max(1)
    }
}
