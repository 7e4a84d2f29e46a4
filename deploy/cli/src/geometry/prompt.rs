//! The KV of a prompt: its blocks, and the pieces that a store without blocks would move.

use bytesize::ByteSize;
use kv_cache::{Attention, KvGeometry};
use serde::Serialize;

use crate::output::{counted, say};

/// The KV of a prompt, as one rank moves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Prompt {
    /// Tokens of the prompt.
    pub(super) tokens: u64,
    /// Blocks, the last one possibly not full.
    pub(super) blocks: u64,
    /// Bytes that a rank holds of them.
    pub(super) rank_bytes: u64,
    /// Bytes of one layer of them.
    pub(super) rank_layer_bytes: u64,
    /// Pieces that lie apart in an engine's memory: K and V of each layer of each block. A latent
    /// vector is one piece.
    pub(super) objects: u64,
    /// Bytes of such a piece.
    pub(super) object_bytes: u64,
    #[serde(skip)]
    is_latent: bool,
}

impl Prompt {
    /// The KV of `tokens` tokens; `None` when it cannot be counted in 64 bits.
    pub(super) fn new(geometry: &KvGeometry, tokens: u64) -> Option<Self> {
        let blocks = tokens.div_ceil(geometry.block_tokens().into());
        let is_latent = matches!(geometry.attention(), Attention::Latent { .. });
        let pieces = if is_latent { 1 } else { 2 };
        Some(Self {
            tokens,
            blocks,
            rank_bytes: blocks.checked_mul(geometry.rank_block_bytes())?,
            rank_layer_bytes: blocks.checked_mul(geometry.rank_layer_bytes())?,
            objects: blocks.checked_mul(pieces * u64::from(geometry.layers()))?,
            object_bytes: geometry.rank_layer_bytes() / pieces,
            is_latent,
        })
    }

    pub(super) fn print(&self) {
        let Self { tokens, blocks, objects, .. } = self;
        let (bytes, object) = (ByteSize(self.rank_bytes), ByteSize(self.object_bytes));
        let (tokens, blocks) = (counted(*tokens, "token"), counted(*blocks, "block"));
        let objects = counted(*objects, "piece");
        let what = if self.is_latent { "the latent vectors" } else { "K and V" };
        say!("  prompt of {tokens}: {blocks}, {bytes} a rank");
        say!("    {objects} of {object} ({what} of each layer) without blocks as objects");
    }
}

#[cfg(test)]
mod tests {
    use kv_cache::Dtype;

    use super::*;

    fn prompt(layers: u32, block_tokens: u32, tp: u32, tokens: u64) -> Prompt {
        let attention = Attention::Heads { kv_heads: 8, head_dim: 128 };
        let geometry = KvGeometry::new(layers, attention, Dtype::Bf16, block_tokens).unwrap();
        Prompt::new(&geometry.rank(0, tp).unwrap(), tokens).unwrap()
    }

    /// Tutti (arXiv:2605.03375): 128K tokens of Qwen3-32B in blocks of 64 are 256K objects. The
    /// paper gives them 80 KB; 64 tokens of 8 heads of 128 elements of 2 bytes are 128 KiB.
    #[test]
    fn the_objects_of_tutti() {
        let found = prompt(64, 64, 1, 131_072);
        assert_eq!((found.blocks, found.objects), (2048, 262_144));
        assert_eq!(found.object_bytes, 131_072);
        assert_eq!(found.rank_bytes, 32 << 30);
        assert_eq!(found.rank_layer_bytes, 512 << 20);
    }

    /// KVDirect (arXiv:2501.14743): 16K tokens of a 70B model are 640 MB on one GPU of eight. The
    /// paper counts 2,048 pieces of 4 KB, which is one layer: there are 80 of them.
    #[test]
    fn the_pieces_of_kvdirect() {
        let found = prompt(80, 16, 8, 16_384);
        assert_eq!((found.rank_bytes, found.object_bytes), (640 << 20, 4096));
        assert_eq!(found.objects, 2048 * 80);
        assert_eq!(found.objects * found.object_bytes, found.rank_bytes);
    }

    #[test]
    fn a_latent_vector_is_one_piece_and_a_begun_block_counts() {
        let geometry =
            KvGeometry::new(61, Attention::Latent { elements: 576 }, Dtype::Bf16, 16).unwrap();
        let found = Prompt::new(&geometry, 17).unwrap();
        assert_eq!((found.blocks, found.objects, found.object_bytes), (2, 122, 16 * 576 * 2));
        assert_eq!(Prompt::new(&geometry, u64::MAX), None);
    }
}
