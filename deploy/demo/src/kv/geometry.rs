//! The shape of a KV cache, and the sizes that follow from it.

use std::ops::Range;

use kv_cache::{Attention, Dtype, KvGeometryError};

/// Type of what is stored.
const DTYPE: Dtype = Dtype::F16;
/// Bytes of one stored value.
pub(super) const VALUE_BYTES: usize = DTYPE.bytes() as usize;

/// Tokens of one block.
const BLOCK_TOKENS: usize = 16;

/// The shape of a KV cache and of its blocks: what [`kv_cache::KvGeometry`] computes, in the units
/// of slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Decoder layers.
    pub layers: usize,
    /// Tokens of one block.
    pub block_tokens: usize,
    row_values: usize,
    layer_bytes: usize,
    block_bytes: usize,
    pool: kv_cache::KvGeometry,
}

impl KvGeometry {
    /// Blocks of 16 tokens of a model with so many layers, KV heads of a layer, and values of a
    /// head.
    ///
    /// # Errors
    /// A number is 0, or larger than any model has.
    pub fn new(layers: usize, kv_heads: usize, head_dim: usize) -> Result<Self, KvGeometryError> {
        Self::with_block_tokens(layers, kv_heads, head_dim, BLOCK_TOKENS)
    }

    pub(super) fn with_block_tokens(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        block_tokens: usize,
    ) -> Result<Self, KvGeometryError> {
        let number = |number| u32::try_from(number).map_err(|_| KvGeometryError::TooLarge);
        let attention =
            Attention::Heads { kv_heads: number(kv_heads)?, head_dim: number(head_dim)? };
        let block = number(block_tokens)?;
        let pool = kv_cache::KvGeometry::new(number(layers)?, attention, DTYPE, block)?;
        let bytes = |bytes| usize::try_from(bytes).map_err(|_| KvGeometryError::TooLarge);
        Ok(Self {
            layers,
            block_tokens,
            row_values: kv_heads * head_dim,
            layer_bytes: bytes(pool.rank_layer_bytes())?,
            block_bytes: bytes(pool.rank_block_bytes())?,
            pool,
        })
    }

    /// The shape as the pool knows it: for the length and the identity of blocks.
    pub const fn pool(&self) -> &kv_cache::KvGeometry {
        &self.pool
    }

    /// Values of the keys (or of the values) of one token in one layer.
    pub const fn row_values(&self) -> usize {
        self.row_values
    }

    /// Bytes of one layer's part of a block.
    pub const fn layer_bytes(&self) -> usize {
        self.layer_bytes
    }

    /// Bytes of one block.
    pub const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Where `layer` lies in the payload of a block, in bytes.
    pub const fn layer_range(&self, layer: usize) -> Range<usize> {
        layer * self.layer_bytes..(layer + 1) * self.layer_bytes
    }
}
