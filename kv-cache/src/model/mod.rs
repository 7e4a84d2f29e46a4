//! How large the KV of a model is, and which rank holds which part of it.
//!
//! ```text
//! per token    layers x elements of a layer x bytes of an element
//! elements     2 x KV heads x head size (K and V), or the latent vector of MLA, once
//! ```
//!
//! With tensor parallelism every rank holds some of the KV heads. Where there are fewer heads than
//! ranks, and with MLA always, several ranks hold the same bytes: such ranks have the same
//! [`Part`], the same fingerprint and thus the same blocks in the pool, which are stored once.

use std::fmt;
use std::str::FromStr;

use crate::identity::Model;

/// Type of the elements of the KV.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponent of 32-bit ones.
    Bf16,
    /// 8-bit floats with four bits of exponent.
    Fp8E4m3,
    /// 8-bit floats with five bits of exponent.
    Fp8E5m2,
}

impl Dtype {
    /// All types.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Fp8E4m3, Self::Fp8E5m2];

    /// Its name, which goes into the fingerprint: `f32`, `f16`, `bf16`, `fp8_e4m3` or `fp8_e5m2`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8E5m2 => "fp8_e5m2",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8E4m3 | Self::Fp8E5m2 => 1,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no KV type \"{0}\"; there are f32, f16, bf16, fp8_e4m3 and fp8_e5m2")]
pub struct UnknownDtype(pub String);

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        let known = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        known.ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

/// What a layer keeps of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Attention {
    /// K and V of every KV head: multi-head, grouped-query and multi-query attention.
    Heads {
        /// KV heads of a layer, over all ranks.
        kv_heads: u32,
        /// Elements of a head of K, and of V.
        head_dim: u32,
    },
    /// One vector that all heads share: multi-head latent attention (MLA).
    Latent {
        /// Its elements, those for the position among them.
        elements: u32,
    },
}

/// One of the parts into which the KV of a model is divided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// Which one, from 0.
    pub number: u32,
    /// Of how many.
    pub of: u32,
}

/// Why a geometry cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvGeometryError {
    /// Something of which there must be one at least is 0.
    #[error("{what} is 0: at least 1 is needed")]
    Zero {
        /// What it is.
        what: &'static str,
    },
    /// There is no such rank.
    #[error(
        "tensor-parallel rank {rank} of {size} does not exist: ranks are counted from 0 to {}",
        size - 1
    )]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Ranks there are.
        size: u32,
    },
    /// The heads cannot be divided evenly.
    #[error(
        "{kv_heads} KV heads cannot be divided over {size} tensor-parallel ranks: one number must \
         be a multiple of the other"
    )]
    UnevenHeads {
        /// KV heads of a layer.
        kv_heads: u32,
        /// Ranks there are.
        size: u32,
    },
    /// A block is larger than any memory.
    #[error("a block of the whole model has more than 2^48 bytes: check the numbers")]
    TooLarge,
}

/// The KV of a model as one rank of an engine holds it: checked.
///
/// # Example
/// ```
/// use kv_cache::{Attention, Dtype, KvGeometry};
///
/// let llama_70b = Attention::Heads { kv_heads: 8, head_dim: 128 };
/// let geometry = KvGeometry::new(80, llama_70b, Dtype::Bf16, 16)?.rank(3, 4)?;
/// assert_eq!(geometry.token_bytes(), 327_680);
/// assert_eq!(geometry.rank_block_bytes(), 327_680 / 4 * 16);
/// # Ok::<(), kv_cache::KvGeometryError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KvGeometry {
    layers: u32,
    attention: Attention,
    dtype: Dtype,
    block_tokens: u32,
    rank: u32,
    ranks: u32,
}

impl KvGeometry {
    /// Blocks of `block_tokens` tokens of a model with so many layers that have KV, held by one
    /// rank.
    ///
    /// # Errors
    /// [`KvGeometryError`] when a number is 0, or a block would be larger than any memory.
    pub fn new(
        layers: u32,
        attention: Attention,
        dtype: Dtype,
        block_tokens: u32,
    ) -> Result<Self, KvGeometryError> {
        let (first, second) = match attention {
            Attention::Heads { kv_heads, head_dim } => {
                (("the number of KV heads", kv_heads), ("the head size", head_dim))
            }
            Attention::Latent { elements } => {
                (("the size of the latent vector", elements), ("the size of the latent vector", 1))
            }
        };
        let numbers = [
            ("the number of layers", layers),
            first,
            second,
            ("the number of tokens in a block", block_tokens),
        ];
        if let Some((what, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(KvGeometryError::Zero { what });
        }
        // K and V of four bytes an element, at most.
        let elements = numbers.into_iter().try_fold(8, |product: u64, (_, number)| {
            product.checked_mul(number.into()).filter(|product| *product <= 1 << 48)
        });
        elements.ok_or(KvGeometryError::TooLarge)?;
        Ok(Self { layers, attention, dtype, block_tokens, rank: 0, ranks: 1 })
    }

    /// The same, as rank `rank` of `size` tensor-parallel ones holds it.
    ///
    /// # Errors
    /// [`KvGeometryError`] when there is no such rank, or the heads cannot be divided evenly.
    pub fn rank(self, rank: u32, size: u32) -> Result<Self, KvGeometryError> {
        if size == 0 {
            return Err(KvGeometryError::Zero { what: "the number of tensor-parallel ranks" });
        }
        if rank >= size {
            return Err(KvGeometryError::NoSuchRank { rank, size });
        }
        if let Attention::Heads { kv_heads, .. } = self.attention
            && !kv_heads.is_multiple_of(size)
            && !size.is_multiple_of(kv_heads)
        {
            return Err(KvGeometryError::UnevenHeads { kv_heads, size });
        }
        Ok(Self { rank, ranks: size, ..self })
    }

    /// The part that this rank holds. Ranks with the same part hold the same bytes.
    #[must_use]
    pub fn part(&self) -> Part {
        let of = match self.attention {
            Attention::Heads { kv_heads, .. } => kv_heads.min(self.ranks),
            Attention::Latent { .. } => 1,
        };
        Part { number: self.rank / (self.ranks / of), of }
    }

    /// Bytes of KV of a token, over all layers and parts, each part once.
    #[must_use]
    pub fn token_bytes(&self) -> u64 {
        let elements = match self.attention {
            Attention::Heads { kv_heads, head_dim } => {
                2 * u64::from(kv_heads) * u64::from(head_dim)
            }
            Attention::Latent { elements } => elements.into(),
        };
        u64::from(self.layers) * elements * u64::from(self.dtype.bytes())
    }

    /// Bytes of KV of a token that this rank holds, over all layers.
    #[must_use]
    pub fn rank_token_bytes(&self) -> u64 {
        self.token_bytes() / u64::from(self.part().of)
    }

    /// Bytes of a block of this rank: the payload of one block in the pool.
    #[must_use]
    pub fn rank_block_bytes(&self) -> u64 {
        self.rank_token_bytes() * u64::from(self.block_tokens)
    }

    /// Bytes of a block of this rank in one layer.
    #[must_use]
    pub fn rank_layer_bytes(&self) -> u64 {
        self.rank_block_bytes() / u64::from(self.layers)
    }

    /// Layers with KV.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// What a layer keeps of a token.
    #[must_use]
    pub fn attention(&self) -> Attention {
        self.attention
    }

    /// Type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Tokens in a block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The identity of the blocks: of a model by name and revision, in the order of bytes of
    /// `layout_version`. Ranks that hold the same bytes get the same one. A latent vector counts
    /// as no head of its size.
    #[must_use]
    pub fn model<'a>(&self, name: &'a str, revision: &'a str, layout_version: u32) -> Model<'a> {
        let (kv_heads, head_dim) = match self.attention {
            Attention::Heads { kv_heads, head_dim } => (kv_heads, head_dim),
            Attention::Latent { elements } => (0, elements),
        };
        let part = self.part();
        Model {
            name,
            revision,
            dtype: self.dtype.name(),
            layout_version,
            block_tokens: self.block_tokens,
            tensor_parallel_rank: part.number,
            tensor_parallel_size: part.of,
            layers: self.layers,
            kv_heads,
            head_dim,
        }
    }
}

#[cfg(test)]
mod tests;
