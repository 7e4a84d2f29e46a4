//! What compute and the link take: a file for each GPU and model.

use serde::Deserialize;

/// A GPU, a model on it and the link to the pool.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is.
    pub name: String,
    /// Where its figures are from.
    pub source: String,
    /// Layers of the model.
    pub layers: u16,
    /// Bytes of KV of one token in one layer.
    pub kv_bytes: u64,
    /// Bytes of the weights, which tensor parallelism divides.
    pub weight_bytes: u64,
    /// Bytes for KV on one GPU that has all weights.
    pub gpu_kv_bytes: u64,
    /// What the link of one GPU brings, in 10^9 bytes a second.
    pub link_gb_per_s: f64,
    /// How long a layer executes, by tokens of context of the whole batch: ascending, linear between.
    pub layer_us: Vec<LayerTime>,
}

/// How long a layer executes with so many tokens of context.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTime {
    /// Tokens of context of all requests of the batch.
    pub context_tokens: u64,
    /// The time, in microseconds.
    pub us: f64,
}

/// Why a file is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It does not have the form.
    #[error("{0}; copy a profile of deploy/simulate/profiles and change its figures")]
    Form(#[from] toml::de::Error),
    /// A figure is none.
    #[error("{0}")]
    Figure(&'static str),
    /// Nobody has put such a profile in here.
    #[error("there is no profile \"{name}\": give {}, or a file that ends with .toml", Profile::NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
}

/// More than any GPU has.
const BYTES_MAX: u64 = 1_000_000_000_000_000;

impl Profile {
    /// The profiles that are built in. The first is the usual one.
    pub const NAMES: [&'static str; 3] = ["a6000-llama-8b", "a6000-cxl-llama-8b", "h100-llama-8b"];

    /// A profile that is built in.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let text = match name {
            "a6000-llama-8b" => include_str!("../profiles/a6000-llama-8b.toml"),
            "a6000-cxl-llama-8b" => include_str!("../profiles/a6000-cxl-llama-8b.toml"),
            "h100-llama-8b" => include_str!("../profiles/h100-llama-8b.toml"),
            _ => return Err(ProfileError::Unknown { name: name.to_owned() }),
        };
        Self::read(text)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`], with what to change.
    pub fn read(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text)?;
        let wrong = |what| Err(ProfileError::Figure(what));
        let is_time = |us: f64| (0.001..=1e6).contains(&us);
        if profile.layers == 0 || profile.layers > kv_cache::placement::LAYERS_MAX {
            return wrong("layers is not from 1 to 1024: give the layers of the model");
        }
        if !(1..=1_000_000).contains(&profile.kv_bytes) {
            return wrong(
                "kv_bytes is not from 1 to 1000000: give those of one token in one layer",
            );
        }
        let (kv, weights) = (profile.gpu_kv_bytes, profile.weight_bytes);
        if kv == 0 || kv > BYTES_MAX || weights > BYTES_MAX {
            return wrong("gpu_kv_bytes or weight_bytes is none of a GPU: give at most 10^15");
        }
        if !(0.1..=1e6).contains(&profile.link_gb_per_s) {
            return wrong("link_gb_per_s is not from 0.1 to 1000000: give 10^9 bytes a second");
        }
        if profile.layer_us.is_empty() || !profile.layer_us.iter().all(|it| is_time(it.us)) {
            return wrong("layer_us has no point, or a time below 0.001 or above 1000000 us");
        }
        let ascending = |pair: &[LayerTime]| {
            pair[0].context_tokens < pair[1].context_tokens && pair[0].us <= pair[1].us
        };
        if !profile.layer_us.windows(2).all(ascending) {
            return wrong("layer_us does not ascend: sort its points; more context takes longer");
        }
        Ok(profile)
    }

    /// How long a layer executes, in nanoseconds, on each of `ranks` GPUs. At least 1.
    #[must_use]
    pub fn layer_ns(&self, context_tokens: u64, ranks: u16) -> u64 {
        let next = self.layer_us.partition_point(|it| it.context_tokens <= context_tokens);
        let us = match (next, self.layer_us.len()) {
            (0, _) | (_, 1) => self.layer_us[0].us,
            (next, points) => {
                let next = next.min(points - 1);
                let (from, to) = (self.layer_us[next - 1], self.layer_us[next]);
                let tokens = (to.context_tokens - from.context_tokens) as f64;
                let beyond = (context_tokens - from.context_tokens) as f64;
                from.us + (to.us - from.us) * beyond / tokens
            }
        };
        whole(us * 1000.0 / f64::from(ranks)).max(1)
    }

    /// How long the link brings a block of `tokens` in a layer to each of `ranks` GPUs, in
    /// nanoseconds. At least 1.
    #[must_use]
    pub fn block_ns(&self, tokens: u32, ranks: u16) -> u64 {
        let bytes = (self.kv_bytes * u64::from(tokens)) as f64 / f64::from(ranks);
        whole(bytes / self.link_gb_per_s).max(1)
    }

    /// Blocks of `tokens` in a layer for which each of `ranks` GPUs has room.
    #[must_use]
    pub fn gpu_blocks(&self, tokens: u32, ranks: u16) -> u64 {
        let ranks = u64::from(ranks);
        let room = self.gpu_kv_bytes + self.weight_bytes - self.weight_bytes / ranks;
        (room * ranks / (self.kv_bytes * u64::from(tokens)).max(1)).max(1)
    }
}

/// The nearest whole number.
pub(crate) fn whole(number: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates, and no time is below 0"
    )]
    let whole = number.round() as u64;
    whole
}
