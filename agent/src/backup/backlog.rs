//! Blocks that were admitted and wait to be written: bounded in bytes, in the order of their prefixes.

use std::collections::BTreeMap;

use kv_cache::{BlockKey, Descriptor, Handle, NamespaceTag};

/// A block of the pool that may be backed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    /// What it is known by.
    pub(crate) key: BlockKey,
    /// Where it is in the pool.
    pub(crate) handle: Handle,
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// Blocks before it in its prefix.
    pub(crate) depth: u16,
    /// Its namespace, for accounting.
    pub(crate) tag: NamespaceTag,
}

impl From<&Descriptor> for Candidate {
    fn from(block: &Descriptor) -> Self {
        Self {
            key: block.key,
            handle: block.handle,
            bytes: block.payload.bytes(),
            depth: block.depth,
            tag: block.namespace,
        }
    }
}

/// Blocks that wait for a drive (AGENT-B2, AGENT-B4).
#[derive(Debug)]
pub(crate) struct Backlog {
    /// By depth, then by arrival.
    blocks: BTreeMap<(u16, u64), Candidate>,
    bytes: u64,
    bytes_max: u64,
    next: u64,
}

impl Backlog {
    /// An empty one, of at most so many bytes.
    #[must_use]
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { blocks: BTreeMap::new(), bytes: 0, bytes_max, next: 0 }
    }

    /// Adds a block. Says whether there was room for it.
    pub(crate) fn push(&mut self, block: Candidate) -> bool {
        if self.bytes.saturating_add(block.bytes) > self.bytes_max && !self.blocks.is_empty() {
            return false;
        }
        self.next += 1;
        self.bytes += block.bytes;
        self.blocks.insert((block.depth, self.next), block);
        true
    }

    /// Takes the blocks that are written next, at most so many.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Candidate> {
        let first = |_| self.blocks.pop_first().map(|(_, block)| block);
        let taken: Vec<_> = (0..count).map_while(first).collect();
        self.bytes -= taken.iter().map(|block| block.bytes).sum::<u64>();
        taken
    }

    /// Bytes of the blocks that wait.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether none waits.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use kv_cache::{BlockHash, KeySpace, MatchedBlock, ModelFingerprint, Namespace};

    pub(in super::super) fn block(number: u8, depth: u16, bytes: u64) -> Candidate {
        let model: ModelFingerprint = kv_cache::Model {
            name: "m",
            revision: "1",
            dtype: "f16",
            layout_version: 1,
            block_tokens: 16,
            tensor_parallel_rank: 0,
            tensor_parallel_size: 1,
            layers: 1,
            kv_heads: 1,
            head_dim: 1,
        }
        .into();
        let key =
            KeySpace::new(model, Namespace::default(), bytes).key(&BlockHash::new([number; 32]));
        let handle = MatchedBlock::from_bytes(&[number; MatchedBlock::BYTES]).handle;
        Candidate { key, handle, bytes, depth, tag: NamespaceTag::default() }
    }

    #[test]
    fn the_first_blocks_of_prefixes_go_first() {
        let mut backlog = Backlog::new(1000);
        for (number, depth) in [(1, 2), (2, 0), (3, 1), (4, 0)] {
            assert!(backlog.push(block(number, depth, 10)));
        }
        assert_eq!(backlog.bytes(), 40);
        let taken: Vec<_> = backlog.take(3).iter().map(|it| it.key).collect();
        assert_eq!(taken, [2, 4, 3].map(|number| block(number, 0, 10).key));
        assert_eq!((backlog.bytes(), backlog.is_empty()), (10, false));
        assert_eq!(backlog.take(9).len(), 1);
        assert_eq!((backlog.bytes(), backlog.is_empty()), (0, true));
    }

    #[test]
    fn what_is_beyond_the_bound_does_not_wait() {
        let mut backlog = Backlog::new(100);
        assert!(backlog.push(block(1, 0, 60)));
        assert!(!backlog.push(block(2, 0, 60)));
        assert!(backlog.push(block(3, 0, 40)));
        assert_eq!(backlog.take(9).len(), 2);
        assert!(backlog.push(block(4, 0, 500)), "a single block always has room");
    }
}
