//! The sizes of the model, from the file's metadata.

use kv_cache::KvGeometryError;

use crate::gguf::{Gguf, GgufError};
use crate::kv::KvGeometry;

/// The sizes and constants of a Llama-style decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Values of one head.
    pub head_dim: usize,
    /// Width inside the feed-forward part.
    pub feed_forward: usize,
    /// Longest context the model was trained for, in tokens.
    pub context_tokens: usize,
    /// Added to the mean square in RMS normalisation.
    pub rms_epsilon: f32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
}

impl ModelConfig {
    /// Reads the sizes from `gguf`.
    ///
    /// # Errors
    /// The file is not a Llama-style model, or a key is missing.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, GgufError> {
        if gguf.string("general.architecture")? != "llama" {
            return Err(gguf.missing("general.architecture", "value \"llama\""));
        }
        let hidden = gguf.usize("llama.embedding_length")?;
        let heads = gguf.usize("llama.attention.head_count")?;
        let kv_heads = gguf.usize("llama.attention.head_count_kv")?;
        let head_dim = gguf.usize("llama.rope.dimension_count")?;
        if heads * head_dim != hidden || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(gguf.missing("llama.attention.head_count", "head count that fits"));
        }
        Ok(Self {
            layers: gguf.usize("llama.block_count")?,
            hidden,
            heads,
            kv_heads,
            head_dim,
            feed_forward: gguf.usize("llama.feed_forward_length")?,
            context_tokens: gguf.usize("llama.context_length")?,
            rms_epsilon: gguf.f32("llama.attention.layer_norm_rms_epsilon")?,
            rope_base: gguf.f32("llama.rope.freq_base")?,
        })
    }

    /// The shape of this model's KV cache.
    ///
    /// # Errors
    /// A size is 0, or larger than any model has.
    pub fn kv_geometry(&self) -> Result<KvGeometry, KvGeometryError> {
        KvGeometry::new(self.layers, self.kv_heads, self.head_dim)
    }

    /// Values of all query heads of one token.
    pub(crate) fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of all keys (or all values) of one token.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
