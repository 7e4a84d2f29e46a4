//! Why the model could not be loaded, and why a forward pass failed.

use std::error::Error;

use crate::gguf::GgufError;

/// Why the model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read, or is not the expected model.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor does not have the expected shape or format.
    #[error("cannot prepare the weights: {0}")]
    Weights(#[from] candle_core::Error),
    /// The engine needs at least two query heads for each KV head.
    #[error("the model has {heads} query heads for {kv_heads} KV heads; at least twice is needed")]
    Heads {
        /// Query heads.
        heads: usize,
        /// KV heads.
        kv_heads: usize,
    },
    /// The KV cache of such a model cannot be.
    #[error("the model has an impossible KV cache: {0}")]
    Kv(#[from] kv_cache::KvGeometryError),
    /// The first forward pass, which prepares the kernels, failed.
    #[error("cannot warm the model up: {0}")]
    WarmUp(#[source] Box<ForwardError>),
}

/// Why a forward pass failed.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// There was nothing to compute.
    #[error("a forward pass needs at least one token")]
    NoTokens,
    /// The cache does not hold the tokens before the first one.
    #[error("layer {layer} holds {held} tokens, but the first token to compute is number {start}")]
    Missing {
        /// The layer.
        layer: usize,
        /// Tokens it holds.
        held: usize,
        /// Position of the first token to compute.
        start: usize,
    },
    /// The sequence is longer than the cache or the model allows.
    #[error("{needed} tokens do not fit: the cache holds {cache}, the model's context {context}")]
    TooLong {
        /// Tokens of the sequence so far.
        needed: usize,
        /// Tokens the cache has room for.
        cache: usize,
        /// Tokens of the model's context.
        context: usize,
    },
    /// The cache was made for another model.
    #[error("the cache has another shape than the model")]
    Geometry,
    /// What the caller wanted done before or after a layer failed.
    #[error("layer {layer}: {source}")]
    Step {
        /// The layer.
        layer: usize,
        /// What went wrong.
        source: Box<dyn Error + Send + Sync>,
    },
    /// candle refused an operation, for example an unknown token id.
    #[error("forward pass: {0}")]
    Candle(#[from] candle_core::Error),
}
