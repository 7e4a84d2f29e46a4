//! vLLM's chain: the hashes of its `sha256_cbor` algorithm, byte for byte.
//!
//! ```text
//! h(-1) = SHA-256(CBOR(seed))
//! h(i)  = SHA-256(CBOR([h(i-1), [the tokens of block i], extra keys or null]))
//! ```
//!
//! CBOR is the canonical form of RFC 8949. The extra keys of a block are, in this order: the LoRA
//! adapter; each multimodal item in the block; in the first block, the cache salt; the digest of
//! the block's prompt embeddings.
//!
//! An engine hashes so when it is started with `--prefix-caching-hash-algo sha256_cbor`. Its
//! default, `sha256`, hashes Python's own pickle format and cannot be reproduced elsewhere. The
//! seed is the environment variable `PYTHONHASHSEED`; without it vLLM uses [`DEFAULT_SEED`] (older
//! versions a random one, and then no two processes share blocks).
//!
//! Checked against vLLM 0.32.0: `kv-cache/vectors`.

use std::convert::Infallible;

use minicbor::Encoder;
use minicbor::encode::Error;
use sha2::{Digest, Sha256};

use crate::identity::BlockHash;

/// The seed of vLLM where none is set.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// A LoRA adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lora<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where the engine loaded it from, as the engine writes it.
    pub path: &'a str,
}

/// A multimodal item: an image, say, and which tokens stand for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// The engine's hash of it.
    pub identifier: &'a str,
    /// Its first token in the prompt.
    pub offset: usize,
    /// How many tokens stand for it.
    pub length: usize,
}

impl Item<'_> {
    fn end(&self) -> usize {
        self.offset.saturating_add(self.length)
    }
}

/// What makes a block more than its tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtraKey<'a> {
    /// The adapter that the whole request uses.
    Lora(Lora<'a>),
    /// An item in the block.
    Item {
        /// The engine's hash of it.
        identifier: &'a str,
        /// Where it begins, in tokens from the start of the block; before it when negative.
        offset: i64,
    },
    /// Who shares blocks with this request.
    CacheSalt(&'a str),
    /// SHA-256 of the embeddings that the block was given instead of tokens.
    PromptEmbeds(&'a [u8; 32]),
}

/// A prompt, with all that vLLM hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prompt<'a> {
    /// Its tokens; zeros where there are embeddings instead.
    pub tokens: &'a [u32],
    /// The adapter it uses.
    pub lora: Option<Lora<'a>>,
    /// The request's `cache_salt`. An empty one is none.
    pub cache_salt: Option<&'a str>,
    /// Its multimodal items, by offset.
    pub items: &'a [Item<'a>],
    /// SHA-256 of the embeddings of each full block, when the prompt is given as embeddings.
    pub prompt_embeds: &'a [[u8; 32]],
}

/// Hashes prompts block by block as vLLM does.
///
/// # Example
/// ```
/// use kv_cache::vllm::{Prompt, VllmHasher};
///
/// let hasher = VllmHasher::new(None, 16);
/// let prompt = Prompt { tokens: &[7; 40], ..Prompt::default() };
/// let hashes = hasher.chain(&prompt);
/// assert_eq!(hashes.len(), 2, "a block that is not full has no hash");
/// let other = hasher.chain(&Prompt { cache_salt: Some("tenant-a"), ..prompt });
/// assert_ne!(hashes[1], other[1], "the salt is in the first block, and in all that follow");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct VllmHasher {
    none_hash: BlockHash,
    block_tokens: usize,
}

impl VllmHasher {
    /// A hasher for blocks of `block_tokens` tokens, with the engine's `PYTHONHASHSEED`; `None`
    /// where that is not set.
    ///
    /// # Panics
    /// When a block has no tokens.
    #[must_use]
    pub fn new(seed: Option<&str>, block_tokens: usize) -> Self {
        assert!(block_tokens > 0, "a block has at least one token");
        let seed = seed.unwrap_or(DEFAULT_SEED);
        Self { none_hash: digest(seed.len(), |cbor| cbor.str(seed).map(drop)), block_tokens }
    }

    /// Tokens in a block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// What stands for the parent of a first block: vLLM's `NONE_HASH`.
    #[must_use]
    pub fn none_hash(&self) -> BlockHash {
        self.none_hash
    }

    /// The hash of a block of `tokens` after `parent`; `None` is the start of a prompt.
    #[must_use]
    pub fn next(
        &self,
        parent: Option<&BlockHash>,
        tokens: &[u32],
        extra_keys: &[ExtraKey<'_>],
    ) -> BlockHash {
        let parent = parent.unwrap_or(&self.none_hash);
        // Five bytes a token at most; extra keys are rare.
        digest(5 * tokens.len(), |cbor| encode_block(cbor, parent, tokens, extra_keys))
    }

    /// The hashes of all full blocks of a prompt.
    #[must_use]
    pub fn chain(&self, prompt: &Prompt<'_>) -> Vec<BlockHash> {
        let mut hashes: Vec<BlockHash> = Vec::new();
        let mut items = prompt.items;
        for (index, tokens) in prompt.tokens.chunks_exact(self.block_tokens).enumerate() {
            let start = index * self.block_tokens;
            let extra_keys = self.extra_keys(prompt, &mut items, start);
            hashes.push(self.next(hashes.last(), tokens, &extra_keys));
        }
        hashes
    }

    /// The extra keys of the block at token `start`; `items` are those that it may contain, and
    /// then those that the next one may.
    fn extra_keys<'a>(
        &self,
        prompt: &Prompt<'a>,
        items: &mut &'a [Item<'a>],
        start: usize,
    ) -> Vec<ExtraKey<'a>> {
        let end = start + self.block_tokens;
        let mut keys = Vec::new();
        keys.extend(prompt.lora.map(ExtraKey::Lora));
        // The library looks no further once the last item is over.
        let over = prompt.items.last().is_none_or(|last| last.end() <= start);
        while let [item, later @ ..] = *items
            && !over
            && item.offset < end
        {
            let item_end = item.end();
            if item_end > start {
                keys.push(ExtraKey::Item {
                    identifier: item.identifier,
                    offset: signed(item.offset) - signed(start),
                });
            }
            if item_end > end {
                break;
            }
            *items = later;
        }
        let salt = prompt.cache_salt.filter(|salt| start == 0 && !salt.is_empty());
        keys.extend(salt.map(ExtraKey::CacheSalt));
        let embeds = prompt.prompt_embeds.get(start / self.block_tokens);
        keys.extend(embeds.map(ExtraKey::PromptEmbeds));
        keys
    }
}

fn signed(tokens: usize) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

type Encoded = Result<(), Error<Infallible>>;

fn encode_block(
    cbor: &mut Encoder<&mut Vec<u8>>,
    parent: &BlockHash,
    tokens: &[u32],
    extra_keys: &[ExtraKey<'_>],
) -> Encoded {
    cbor.array(3)?.bytes(parent.as_bytes())?.array(tokens.len() as u64)?;
    for token in tokens {
        cbor.u32(*token)?;
    }
    if extra_keys.is_empty() {
        cbor.null()?;
        return Ok(());
    }
    cbor.array(extra_keys.len() as u64)?;
    for key in extra_keys {
        match key {
            ExtraKey::Lora(Lora { name, path }) => cbor.array(3)?.str("lora")?.str(name)?.str(path),
            ExtraKey::Item { identifier, offset } => {
                cbor.array(3)?.str("mm")?.str(identifier)?.i64(*offset)
            }
            ExtraKey::CacheSalt(salt) => cbor.array(2)?.str("cache_salt")?.str(salt),
            ExtraKey::PromptEmbeds(digest) => {
                cbor.array(2)?.str("prompt_embeds")?.bytes(&digest[..])
            }
        }?;
    }
    Ok(())
}

/// SHA-256 of what `encode` writes: little more than `about_bytes`.
fn digest(
    about_bytes: usize,
    encode: impl FnOnce(&mut Encoder<&mut Vec<u8>>) -> Encoded,
) -> BlockHash {
    let mut bytes = Vec::with_capacity(about_bytes + 64);
    encode(&mut Encoder::new(&mut bytes)).expect("a vector takes all that is written to it");
    BlockHash::new(Sha256::digest(&bytes).into())
}

#[cfg(test)]
mod tests;
