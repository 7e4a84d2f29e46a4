//! What a member does with chunks.

use super::table::{AllocateError, ChunkError};
use crate::chunk::demand;
use crate::clock::Clock;
use crate::fabric::OwnedArea;
use crate::lock::LockError;
use crate::node::{Backend, Member};
use crate::units::{ChunkId, NodeId};

impl<B: Backend> Member<B> {
    /// Takes a free chunk of the region for this node.
    ///
    /// After return every host sees whose it is. `purpose` belongs to the layer above.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing is changed then.
    pub fn allocate_chunk(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        purpose: u64,
    ) -> Result<ChunkId, AllocateError> {
        let chunk = super::table::allocate(self, clock, timeout_ms, purpose);
        // FAULT-F7.
        self.check_reads().map_err(LockError::from)?;
        chunk
    }

    /// Gives a chunk of this node back to the region. Nothing in it may be in use.
    ///
    /// # Errors
    /// [`ChunkError`]; nothing is changed then.
    pub fn free_chunk(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        chunk: ChunkId,
    ) -> Result<(), ChunkError> {
        let freed = super::table::free(self, clock, timeout_ms, chunk);
        // FAULT-F7.
        self.check_reads().map_err(LockError::from)?;
        freed
    }

    /// The chunks of this node and what it uses them for, freshly read from the chunk table.
    #[must_use]
    pub fn owned_chunks(&self) -> Vec<(ChunkId, u64)> {
        self.chunks_of(self.node())
    }

    /// The lines of a chunk of this node, to be written; `None` when the chunk table does not say
    /// that the chunk is this node's.
    #[must_use]
    pub fn owned_chunk_area(&self, chunk: ChunkId) -> Option<OwnedArea> {
        let is_owned = self.owned_chunks().iter().any(|(owned, _)| *owned == chunk);
        // MEM-M1: the chunk table says so.
        is_owned.then(|| self.layout().chunk_area(chunk).claim())
    }

    /// As [`Self::allocate_chunk`], and asks the other nodes for a chunk when the region has none
    /// left: waits up to `timeout_ms` for one of them to give one back.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing is changed then.
    pub fn request_chunk(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        purpose: u64,
    ) -> Result<ChunkId, AllocateError> {
        let chunk = demand::request(self, clock, timeout_ms, purpose);
        // FAULT-F7.
        self.check_reads().map_err(LockError::from)?;
        chunk
    }

    /// How many chunks other nodes ask for at this moment, for layers that have some to give.
    #[must_use]
    pub fn chunks_requested(&self) -> u64 {
        demand::of_others(self)
    }

    /// The chunks of `node` and what it uses them for, freshly read from the chunk table.
    #[must_use]
    pub fn chunks_of(&self, node: NodeId) -> Vec<(ChunkId, u64)> {
        super::table::owned(self, node)
    }
}
