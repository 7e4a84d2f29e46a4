//! The blocks of the prompts: name, hash and content of each follow from its number.

use kv_cache::KeySpace;
use rackline::{BlockHash, Model, Namespace, SessionOptions};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 16 << 10;
/// Blocks of a prompt, one after the other.
pub(crate) const PROMPT_BLOCKS: u32 = 4;

const MODEL: Model<'_> = Model {
    name: "story",
    revision: "1",
    dtype: "u8",
    layout_version: 1,
    block_tokens: 16,
    tensor_parallel_rank: 0,
    tensor_parallel_size: 1,
    layers: 1,
    kv_heads: 1,
    head_dim: 1,
};

pub(crate) fn options() -> SessionOptions {
    SessionOptions::new(MODEL, BLOCK_BYTES as u64)
}

pub(crate) fn of_prompt(prompt: u32) -> std::ops::Range<u32> {
    prompt * PROMPT_BLOCKS..(prompt + 1) * PROMPT_BLOCKS
}

pub(crate) fn hash(block: u32) -> BlockHash {
    let mut bytes = [0x5a; 32];
    bytes[..4].copy_from_slice(&block.to_le_bytes());
    BlockHash::new(bytes)
}

/// Its key, as `rackline spill list` prints it.
pub(crate) fn key(block: u32) -> String {
    let space = KeySpace::new(MODEL.fingerprint(), Namespace::default(), BLOCK_BYTES as u64);
    space.key(&hash(block)).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The words of no two blocks are the same.
pub(crate) fn content(block: u32) -> Vec<u8> {
    let words = (0..BLOCK_BYTES as u64 / 8)
        .map(|word| (u64::from(block) << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}
