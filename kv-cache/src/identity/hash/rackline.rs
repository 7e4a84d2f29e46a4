//! Our own chain, for engines and tools that have no hasher of their own.
//!
//! ```text
//! h(-1) = SHA-256("rackline chain 1" | seed)
//! h(i)  = SHA-256(h(i-1) | the tokens of block i, 4 bytes each, little-endian)
//! ```

use sha2::{Digest, Sha256};

use crate::identity::BlockHash;

/// Hashes tokens block by block, each with everything before it.
///
/// # Example
/// ```
/// use kv_cache::ChainHasher;
///
/// let hasher = ChainHasher::new(b"", 2);
/// let long = hasher.chain(&[1, 2, 3, 4, 5]);
/// assert_eq!(long.len(), 2, "a block that is not full has no hash");
/// assert_eq!(hasher.chain(&[1, 2, 3, 4])[..], long[..]);
/// assert_ne!(hasher.chain(&[9, 2, 3, 4])[1], long[1]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ChainHasher {
    root: BlockHash,
    block_tokens: usize,
}

impl ChainHasher {
    /// A hasher for blocks of `block_tokens` tokens. Hashers with different seeds never agree.
    ///
    /// # Panics
    /// When a block has no tokens.
    #[must_use]
    pub fn new(seed: &[u8], block_tokens: usize) -> Self {
        assert!(block_tokens > 0, "a block has at least one token");
        let mut hasher = Sha256::new();
        hasher.update(b"rackline chain 1");
        hasher.update(seed);
        Self { root: BlockHash::new(hasher.finalize().into()), block_tokens }
    }

    /// Tokens in a block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// The hash of a block of `tokens` after `parent`; `None` is the start of a prompt.
    #[must_use]
    pub fn next(&self, parent: Option<&BlockHash>, tokens: &[u32]) -> BlockHash {
        let mut hasher = Sha256::new();
        hasher.update(parent.unwrap_or(&self.root).as_bytes());
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        BlockHash::new(hasher.finalize().into())
    }

    /// The hashes of all full blocks of a prompt.
    #[must_use]
    pub fn chain(&self, tokens: &[u32]) -> Vec<BlockHash> {
        let mut parent = None;
        let hash = |block| {
            let hash = self.next(parent.as_ref(), block);
            parent = Some(hash);
            hash
        };
        tokens.chunks_exact(self.block_tokens).map(hash).collect()
    }
}
