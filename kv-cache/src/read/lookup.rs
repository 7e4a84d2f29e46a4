//! Lookup: how long a prefix the pool holds.
//!
//! One refresh of a line per node makes the replica current; the rest is DRAM. No shared write,
//! no lock between hosts, no message. What is found is a hint until it was fetched.

use std::sync::MutexGuard;

use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use crate::format::Handle;
use crate::identity::BlockKey;
use crate::process::Cache;
use crate::replica::Replica;

/// A block that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatchedBlock {
    /// Under which it was found.
    pub key: BlockKey,
    /// Where.
    pub handle: Handle,
}

impl MatchedBlock {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 34;

    /// For another process of any host of the region, which may fetch the block: its key, the node
    /// that owns it, the slot and the generation of its descriptor.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..24].copy_from_slice(self.key.as_bytes());
        bytes[24..26].copy_from_slice(&self.handle.owner().0.to_le_bytes());
        bytes[26..30].copy_from_slice(&self.handle.slot().to_le_bytes());
        bytes[30..].copy_from_slice(&self.handle.generation().to_le_bytes());
        bytes
    }

    /// What another process found. Any bytes will do: what they name is checked when it is fetched
    /// (READ-F1), and a block that cannot be is a miss.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (mut key, mut owner, mut slot, mut generation) = ([0; 24], [0; 2], [0; 4], [0; 4]);
        key.copy_from_slice(&bytes[..24]);
        owner.copy_from_slice(&bytes[24..26]);
        slot.copy_from_slice(&bytes[26..30]);
        generation.copy_from_slice(&bytes[30..]);
        let owner = NodeId(u16::from_le_bytes(owner));
        let slot = u32::from_le_bytes(slot);
        let handle = Handle::new(owner, slot, u32::from_le_bytes(generation));
        Self { key: bytemuck::cast(key), handle }
    }
}

/// The longest prefix that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrefixMatch {
    blocks: Vec<MatchedBlock>,
}

impl PrefixMatch {
    /// The blocks, from the first of the prefix on.
    #[must_use]
    pub fn blocks(&self) -> &[MatchedBlock] {
        &self.blocks
    }

    /// The same, without this.
    #[must_use]
    pub fn into_blocks(self) -> Vec<MatchedBlock> {
        self.blocks
    }
}

impl<B: Backend> Cache<'_, B> {
    /// Finds the longest prefix of `keys` of which every block is in the pool, as far as was
    /// announced before the call.
    #[must_use]
    pub fn lookup(&self, keys: &[BlockKey]) -> PrefixMatch {
        let found = self.find(keys);
        self.count_lookup(keys.len(), found.blocks.len());
        found
    }

    /// As [`lookup`](Self::lookup), for callers who do something with what is found before they
    /// have it, and count that ([`count_lookup`](Self::count_lookup)).
    #[must_use]
    pub fn find(&self, keys: &[BlockKey]) -> PrefixMatch {
        let replica = self.synced_replica();
        let find =
            |key: &BlockKey| replica.find(*key).map(|handle| MatchedBlock { key: *key, handle });
        PrefixMatch { blocks: keys.iter().map_while(find).collect() }
    }

    /// Finds each of `keys` for itself, as far as was announced before the call. No lookup is counted.
    #[must_use]
    pub fn find_each(&self, keys: &[BlockKey]) -> Vec<Option<MatchedBlock>> {
        let replica = self.synced_replica();
        let find =
            |key: &BlockKey| replica.find(*key).map(|handle| MatchedBlock { key: *key, handle });
        keys.iter().map(find).collect()
    }

    /// Which of `keys` are in the pool, each one for itself, as far as was announced before the call.
    /// No lookup is counted: the caller chooses blocks by the answer, and looks these up.
    #[must_use]
    pub fn present(&self, keys: &[BlockKey]) -> Vec<bool> {
        let replica = self.synced_replica();
        keys.iter().map(|key| replica.find(*key).is_some()).collect()
    }

    /// Counts a lookup of `blocks` blocks of which the caller got `hits`.
    pub fn count_lookup(&self, blocks: usize, hits: usize) {
        self.count(|metrics| {
            metrics.lookups += 1;
            metrics.lookup_blocks += blocks as u64;
            metrics.lookup_hits += hits as u64;
        });
    }

    /// Takes in what all nodes announced before the call. Every lookup does so too: this is for
    /// processes that look up rarely and do not want to fall so far behind that a segment has to
    /// be scanned.
    pub fn sync(&self) {
        drop(self.synced_replica());
    }

    /// The replica, current. Held for the time of a lookup; other threads of the process wait.
    pub(crate) fn synced_replica(&self) -> MutexGuard<'_, Replica> {
        let mut replica = self.process_state().replica();
        let counts = replica.sync(self.member().fabric(), Some(self.member().node()));
        self.count(|metrics| {
            metrics.log_entries += counts.entries;
            metrics.rescans += counts.rescans;
        });
        replica
    }
}
