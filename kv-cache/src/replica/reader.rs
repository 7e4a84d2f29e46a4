//! The replica of a program that is no member: a router, or a tool.
//!
//! It loads and refreshes lines, and writes none. It takes no lock and no place of a host. So it holds
//! nothing, and its answer is a hint: the blocks were in the pool when their owners announced them, and
//! nobody had announced their removal before the refresh.

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::units::NodeId;

use super::changes::Changes;
use super::{Replica, hash};
use crate::format::{Areas, GeometryError, areas_of};
use crate::identity::{BlockHash, IndexKey, KeySpace};

/// What the pool holds, as a program sees it that is no member of the region.
///
/// Memory: 21 bytes for each slot of each node that ever published, and 5 bytes for each block.
#[derive(Debug)]
pub struct PoolReader {
    replica: Replica,
}

/// How long a prefix the pool has, and where its blocks lie.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolPrefix {
    blocks: usize,
    parts: Vec<(NodeId, usize)>,
}

impl PoolPrefix {
    /// Blocks of the prefix, from the first on, of which the pool has every part.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The nodes whose memory has parts of these blocks, and how many, in the order of the nodes. A
    /// block has one part for each key space. A part that two nodes have counts for both.
    #[must_use]
    pub fn parts(&self) -> &[(NodeId, usize)] {
        &self.parts
    }
}

impl PoolReader {
    /// A reader of the region with this superblock. The first [`refresh`](Self::refresh) fills it.
    ///
    /// # Errors
    /// [`GeometryError`] when the region was not formatted for a cache of this version.
    pub fn new(superblock: &Superblock, layout: &Layout) -> Result<Self, GeometryError> {
        Ok(Self { replica: Replica::new(areas_of(superblock, layout)?) })
    }

    /// Notes changes from here on, for [`take_changes`](Self::take_changes).
    #[must_use]
    pub fn with_changes(mut self) -> Self {
        self.replica.changes = Some(Changes::default());
        self
    }

    /// Takes in everything that was announced before the call: one refresh of a line for each node,
    /// and the lines of new log entries. A segment whose log was overrun is scanned.
    pub fn refresh<F: Fabric>(&mut self, fabric: &F) {
        self.replica.sync(fabric, None);
    }

    /// What the refreshes since the last call have changed.
    pub fn take_changes(&mut self) -> Changes {
        self.replica.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Blocks of all nodes.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.replica.blocks()
    }

    /// DRAM that the reader takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.replica.bytes()
    }

    /// Whether a node has a block with this key, as of the last refresh.
    #[must_use]
    pub fn has(&self, key: IndexKey) -> bool {
        self.replica.owners(key) != 0
    }

    /// The longest prefix of `hashes` of which every block is there in every one of `spaces`, as of
    /// the last refresh: the spaces of all ranks of an engine. No space, no prefix.
    #[must_use]
    pub fn prefix(&self, spaces: &[KeySpace], hashes: &[BlockHash]) -> PoolPrefix {
        if spaces.is_empty() {
            return PoolPrefix::default();
        }
        let mut counts = vec![0; self.areas().layout().nodes().count()];
        let mut owners = Vec::with_capacity(spaces.len());
        let mut blocks = 0;
        for hash in hashes {
            owners.clear();
            owners.extend(spaces.iter().map(|space| self.replica.owners(space.key(hash).index())));
            if owners.contains(&0) {
                break;
            }
            blocks += 1;
            for (node, count) in counts.iter_mut().enumerate() {
                *count += owners.iter().filter(|owners| **owners & (1 << node) != 0).count();
            }
        }
        let parts = self.areas().layout().nodes().zip(counts);
        PoolPrefix { blocks, parts: parts.filter(|(_, count)| *count > 0).collect() }
    }

    pub(crate) fn areas(&self) -> &Areas {
        &self.replica.areas
    }
}

impl Replica {
    /// The nodes that have a block with `key`: bit `n` for node `n`.
    fn owners(&self, key: IndexKey) -> u64 {
        let same = self.table.iter_hash(hash(key)).filter(|number| self.key_of(**number) == key);
        same.fold(0, |owners, number| owners | 1 << self.place(*number).0.0)
    }
}
