//! Blocks that were admitted and wait to be written: bounded in bytes, in the order of their prefixes.

use std::collections::BTreeMap;

use kv_cache::{BlockKey, Descriptor, Handle, NamespaceTag};

use crate::schedule::{Next, Waiting};

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
    blocks: BTreeMap<(u16, u64), Queued>,
    /// By arrival: their depths.
    arrivals: BTreeMap<u64, u16>,
    bytes: u64,
    bytes_max: u64,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    block: Candidate,
    since_us: u64,
}

impl Backlog {
    /// An empty one, of at most so many bytes.
    #[must_use]
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { blocks: BTreeMap::new(), arrivals: BTreeMap::new(), bytes: 0, bytes_max, next: 0 }
    }

    /// Adds a block, and says the number of its write. `None` when there is no room for it.
    pub(crate) fn push(&mut self, now_us: u64, block: Candidate) -> Option<u64> {
        if self.bytes.saturating_add(block.bytes) > self.bytes_max && !self.blocks.is_empty() {
            return None;
        }
        self.next += 1;
        self.bytes += block.bytes;
        self.blocks.insert((block.depth, self.next), Queued { block, since_us: now_us });
        self.arrivals.insert(self.next, block.depth);
        Some(self.next)
    }

    /// What is worth most and what waits longest; `None` when nothing waits.
    #[must_use]
    pub(crate) fn next(&self) -> Option<Next> {
        let waiting = |(_, write): (u16, u64), queued: &Queued| Waiting {
            write,
            bytes: queued.block.bytes,
            since_us: queued.since_us,
        };
        let (first_at, first) = self.blocks.first_key_value()?;
        let (write, depth) = self.arrivals.first_key_value()?;
        let oldest_at = (*depth, *write);
        let oldest = self.blocks.get(&oldest_at)?;
        Some(Next { first: waiting(*first_at, first), oldest: waiting(oldest_at, oldest) })
    }

    /// Takes a block out: its write begins.
    pub(crate) fn take(&mut self, write: u64) -> Option<Candidate> {
        let depth = self.arrivals.remove(&write)?;
        let Queued { block, .. } = self.blocks.remove(&(depth, write))?;
        self.bytes -= block.bytes;
        Some(block)
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

    fn drain(backlog: &mut Backlog) -> Vec<BlockKey> {
        let first = |backlog: &mut Backlog| {
            let next = backlog.next()?;
            backlog.take(next.first.write).map(|block| block.key)
        };
        std::iter::from_fn(|| first(backlog)).collect()
    }

    #[test]
    fn the_first_blocks_of_prefixes_go_first() {
        let mut backlog = Backlog::new(1000);
        for (number, depth) in [(1, 2), (2, 0), (3, 1), (4, 0)] {
            assert!(backlog.push(number.into(), block(number, depth, 10)).is_some());
        }
        assert_eq!(backlog.bytes(), 40);
        let next = backlog.next().unwrap();
        assert_eq!((next.first.write, next.oldest.write), (2, 1));
        assert_eq!((next.first.since_us, next.oldest.since_us), (2, 1));
        assert_eq!(drain(&mut backlog), [2, 4, 3, 1].map(|number| block(number, 0, 10).key));
        assert_eq!((backlog.bytes(), backlog.is_empty(), backlog.next()), (0, true, None));
    }

    #[test]
    fn what_waits_longest_can_go_first() {
        let mut backlog = Backlog::new(1000);
        for (number, depth) in [(1, 2), (2, 0)] {
            backlog.push(0, block(number, depth, 10)).unwrap();
        }
        let oldest = backlog.next().unwrap().oldest.write;
        assert_eq!(backlog.take(oldest), Some(block(1, 2, 10)));
        assert_eq!(backlog.take(oldest), None);
        assert_eq!(backlog.next().unwrap().oldest.write, 2);
    }

    #[test]
    fn what_is_beyond_the_bound_does_not_wait() {
        let mut backlog = Backlog::new(100);
        assert!(backlog.push(0, block(1, 0, 60)).is_some());
        assert_eq!(backlog.push(0, block(2, 0, 60)), None);
        assert!(backlog.push(0, block(3, 0, 40)).is_some());
        assert_eq!(drain(&mut backlog).len(), 2);
        assert!(backlog.push(0, block(4, 0, 500)).is_some(), "a single block always has room");
    }
}
