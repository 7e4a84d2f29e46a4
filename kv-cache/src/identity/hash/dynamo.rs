//! The hashes by which routers of NVIDIA Dynamo know blocks.
//!
//! ```text
//! seed  = 1337 + XXH3(adapter) + XXH3 with seed 1 (namespace), each where there is one
//! b(i)  = XXH3 with seed (the tokens of block i, 4 bytes each, little-endian
//!                         | the hashes of its multimodal items, sorted, 8 bytes each)
//! s(0)  = b(0)        s(i) = XXH3 with seed 1337 (s(i-1) | b(i))
//! ```
//!
//! These are 64 bits of a fast hash without a secret: good to find out what a router believes to be
//! where, never an identity under which blocks are shared. Blocks of speculative decoding by Eagle,
//! which overlap by a token, are not made here.
//!
//! Checked against ai-dynamo-runtime and dynamo-tokens 1.6.1: `kv-cache/vectors`.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of the chain, and of blocks without adapter and namespace.
const SEED: u64 = 1337;

/// Hashes prompts block by block as a Dynamo router does.
///
/// # Example
/// ```
/// use kv_cache::dynamo::DynamoHasher;
///
/// let hasher = DynamoHasher::new(2, None, None);
/// let blocks = hasher.blocks(&[1, 2, 1, 2, 3], &[]);
/// assert_eq!(blocks[0], blocks[1], "a block's own hash does not depend on its place");
/// let sequence = hasher.sequence(&blocks);
/// assert_ne!(sequence[0], sequence[1]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DynamoHasher {
    seed: u64,
    block_tokens: usize,
}

impl DynamoHasher {
    /// A hasher for blocks of `block_tokens` tokens of requests with this cache namespace and LoRA
    /// adapter. Empty names are none.
    ///
    /// # Panics
    /// When a block has no tokens.
    #[must_use]
    pub fn new(block_tokens: usize, namespace: Option<&str>, lora: Option<&str>) -> Self {
        assert!(block_tokens > 0, "a block has at least one token");
        // The different inner seeds keep an adapter and a namespace of the same name apart.
        let part = |name: Option<&str>, inner_seed| match name {
            None | Some("") => 0,
            Some(name) => xxh3_64_with_seed(name.as_bytes(), inner_seed),
        };
        let seed = SEED.wrapping_add(part(lora, 0)).wrapping_add(part(namespace, 1));
        Self { seed, block_tokens }
    }

    /// The hash of each full block of a prompt, by its own contents alone: what a router calls a
    /// local block hash. `items` has the hashes of the multimodal items of each block, as far as
    /// it goes.
    #[must_use]
    pub fn blocks(&self, tokens: &[u32], items: &[&[u64]]) -> Vec<u64> {
        let mut bytes = Vec::new();
        let block = |(index, tokens): (usize, &[u32])| {
            bytes.clear();
            bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
            let mut items = items.get(index).copied().unwrap_or_default().to_vec();
            items.sort_unstable();
            bytes.extend(items.iter().flat_map(|item| item.to_le_bytes()));
            xxh3_64_with_seed(&bytes, self.seed)
        };
        tokens.chunks_exact(self.block_tokens).enumerate().map(block).collect()
    }

    /// The hash of each block with all before it, from the blocks' own hashes.
    #[must_use]
    pub fn sequence(&self, blocks: &[u64]) -> Vec<u64> {
        let mut parent = None;
        let next = |block: &u64| {
            let hash = match parent {
                None => *block,
                Some(parent) => chained(parent, *block),
            };
            parent = Some(hash);
            hash
        };
        blocks.iter().map(next).collect()
    }
}

fn chained(parent: u64, block: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..].copy_from_slice(&block.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    /// What `kv-cache/vectors/dynamo_block_hashes.py` wrote.
    const VECTORS: &str = include_str!("../../../vectors/dynamo_block_hashes.json");

    #[derive(Deserialize)]
    struct Vectors {
        library: String,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        name: String,
        block_tokens: usize,
        tokens: Vec<u32>,
        namespace: Option<String>,
        lora: Option<String>,
        items: Vec<Vec<u64>>,
        blocks: Vec<u64>,
        sequence: Vec<u64>,
    }

    #[test]
    fn hashes_are_those_of_the_library() {
        let vectors: Vectors = serde_json::from_str(VECTORS).unwrap();
        assert_eq!(vectors.library, "ai-dynamo-runtime");
        assert!(vectors.cases.len() >= 14);
        for case in &vectors.cases {
            let hasher = DynamoHasher::new(
                case.block_tokens,
                case.namespace.as_deref(),
                case.lora.as_deref(),
            );
            let items: Vec<_> = case.items.iter().map(|items| &items[..]).collect();
            let blocks = hasher.blocks(&case.tokens, &items);
            assert_eq!(blocks, case.blocks, "{}", case.name);
            assert_eq!(hasher.sequence(&blocks), case.sequence, "{}", case.name);
        }
        for (what, some) in [
            ("adapter", (|case| case.lora.is_some()) as fn(&Case) -> bool),
            ("namespace", |case| case.namespace.is_some()),
            ("several items in a block", |case| case.items.iter().any(|items| items.len() > 1)),
        ] {
            assert!(vectors.cases.iter().any(some), "the vectors have no {what}");
        }
    }
}
