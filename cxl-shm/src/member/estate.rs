//! What a dead node leaves to the layer above: its area and its chunks, for whom that layer appoints
//! until the slot has a new life.
//!
//! M1: when a node's line says [`NodeState::Dead`](crate::layout::NodeState::Dead) its host is fenced
//! and its recovery over, so nobody writes its area. Who may, of the hosts that live, and how a new
//! life of the slot finds out, are the layer above's rules.

use super::{Liveness, Member};
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, OwnedArea};
use crate::intent::set_chunk;
use crate::layout::{CHUNK_LOCK, ChunkEntry, ChunkState};
use crate::lock::LockError;
use crate::units::{ChunkId, NodeId};

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// The area of a node that is dead, for the one host that the layer above lets write it.
    ///
    /// # Panics
    /// When the region has no such node.
    #[must_use]
    pub fn area_of_dead(&self, node: NodeId) -> OwnedArea {
        self.layout().area(node).claim()
    }

    /// The chunks of `node` and what it uses them for, freshly read from the chunk table.
    #[must_use]
    pub fn chunks_of(&self, node: NodeId) -> Vec<(ChunkId, u64)> {
        crate::alloc::owned(self, node)
    }

    /// Gives a chunk of a dead node, in which nothing is in use any more, back to the region.
    /// Returns false, and changes nothing, when it is not that node's, or its heap of objects has it.
    ///
    /// # Errors
    /// When the lock of the chunk table is not to be had; nothing is changed then.
    ///
    /// # Panics
    /// When the region has no such chunk.
    pub fn free_chunk_of_dead(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        node: NodeId,
        chunk: ChunkId,
    ) -> Result<bool, LockError> {
        let (layout, fabric) = (*self.layout(), self.fabric());
        let _guard = self.lock_shared(CHUNK_LOCK, clock, timeout_ms)?;
        // L1.
        let entry = layout.chunk_entry(chunk).fresh(fabric);
        let state = entry.ok().and_then(|entry| entry.state());
        let is_its = matches!(state, Some(ChunkState::Owned { owner, purpose, .. })
            if owner == node && purpose != crate::alloc::HEAP_PURPOSE);
        if is_its {
            set_chunk(self.seat(), fabric, chunk, &ChunkEntry::new(ChunkState::Free));
            crash::reach(CrashPoint::ChunkFreed);
        }
        Ok(is_its)
    }
}
