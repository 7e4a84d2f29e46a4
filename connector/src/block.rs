//! A block on its way into the pool.

use kv_cache::BlockHash;

/// A block to be published.
///
/// What its bytes are depends on who publishes it. [`Session::publish`](crate::Session::publish)
/// takes parts that it gathers in order; [`AsyncSession::publish`](crate::AsyncSession::publish)
/// takes a [`Source`](crate::Source), and gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewBlock<B> {
    /// The engine's hash of the block and of all blocks before it.
    pub hash: BlockHash,
    /// Number of blocks before it in its prompt.
    pub depth: u32,
    /// Its bytes.
    pub bytes: B,
}

impl<B> NewBlock<B> {
    /// Blocks that follow one another in a prompt, the first of them behind `first_depth` others:
    /// as many as the shorter of the two lists has.
    ///
    /// # Example
    /// ```
    /// use rackline::{ChainHasher, NewBlock};
    ///
    /// let hashes = ChainHasher::new(b"", 2).chain(&[1, 2, 3, 4]);
    /// let blocks = NewBlock::chain(0, hashes, [vec![0u8; 64], vec![1; 64]]);
    /// assert_eq!((blocks.len(), blocks[1].depth), (2, 1));
    /// ```
    pub fn chain(
        first_depth: u32,
        hashes: impl IntoIterator<Item = BlockHash>,
        bytes: impl IntoIterator<Item = B>,
    ) -> Vec<Self> {
        let block = |((depth, hash), bytes)| Self { hash, depth, bytes };
        (first_depth..=u32::MAX).zip(hashes).zip(bytes).map(block).collect()
    }
}
