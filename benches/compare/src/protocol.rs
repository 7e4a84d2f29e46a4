//! What the driver and its workers say to each other: one JSON object a line.

use serde::{Deserialize, Serialize};

/// What a worker is to do. Blocks are numbered; both sides derive a block's bytes from its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Order {
    /// Writer: compute the bytes of these blocks. Not measured.
    Prepare(Blocks),
    /// Writer: put the blocks prepared last into the store.
    Put(Blocks),
    /// Reader: get them, each into a buffer of its own, and check every byte afterwards.
    Get(Blocks),
    /// Reader: which of these blocks, from the first on without a gap, are there?
    Lookup(Blocks),
    /// Writer: drop everything that was put so far, where the store has to be emptied.
    Reset,
}

/// A run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Blocks {
    /// Number of the first.
    pub(crate) first: u64,
    /// How many.
    pub(crate) count: u32,
    /// Length of each in bytes.
    pub(crate) bytes: u32,
    /// How many go into one call.
    pub(crate) batch: u32,
}

impl Blocks {
    /// Their numbers.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        (self.first..self.first + u64::from(self.count)).collect()
    }

    /// Length of a block as a length in memory.
    pub(crate) fn block_len(&self) -> usize {
        self.bytes as usize
    }

    /// All their bytes.
    pub(crate) fn total_bytes(&self) -> u64 {
        u64::from(self.bytes) * u64::from(self.count)
    }
}

/// What a worker did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reply {
    /// Time of the calls, in nanoseconds.
    #[serde(default)]
    pub(crate) wall_ns: u64,
    /// CPU time of the process during the calls, all its threads, in nanoseconds.
    #[serde(default)]
    pub(crate) cpu_ns: u64,
    /// Blocks for which it did what it was to do.
    #[serde(default)]
    pub(crate) blocks: u32,
    /// Why it could not.
    #[serde(default)]
    pub(crate) error: Option<String>,
}
