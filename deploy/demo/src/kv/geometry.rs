//! The shape of a KV cache, and the sizes that follow from it.

use std::ops::Range;

/// Bytes of one stored value.
pub(super) const VALUE_BYTES: usize = 2;

/// The shape of a KV cache and of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Decoder layers.
    pub layers: usize,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Values of one head.
    pub head_dim: usize,
    /// Tokens of one block.
    pub block_tokens: usize,
}

impl KvGeometry {
    /// SmolLM2-135M in blocks of 16 tokens: 23,040 bytes a token, 368,640 a block.
    pub const SMOLLM2_135M: Self = Self { layers: 30, kv_heads: 3, head_dim: 64, block_tokens: 16 };

    /// Values of the keys (or of the values) of one token in one layer.
    pub const fn row_values(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of one token over all layers.
    pub const fn token_bytes(&self) -> usize {
        self.layers * 2 * self.row_values() * VALUE_BYTES
    }

    /// Bytes of one layer's part of a block.
    pub const fn layer_bytes(&self) -> usize {
        self.block_tokens * 2 * self.row_values() * VALUE_BYTES
    }

    /// Bytes of one block.
    pub const fn block_bytes(&self) -> usize {
        self.layers * self.layer_bytes()
    }

    /// Where `layer` lies in the payload of a block, in bytes.
    pub const fn layer_range(&self, layer: usize) -> Range<usize> {
        layer * self.layer_bytes()..(layer + 1) * self.layer_bytes()
    }
}
