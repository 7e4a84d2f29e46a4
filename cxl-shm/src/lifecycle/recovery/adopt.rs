//! Adoption: the heap chunks of a dead node pass to its recoverer, whose heap sweeps them before
//! it uses them. Chunks of the layer above stay with the slot: their blocks are read on, and the
//! slot's next life continues with them.

use crate::chunk::failed_pages;
use crate::clock::Clock;
use crate::fabric::{Fabric, refresh_all};
use crate::intent::set_chunk;
use crate::layout::HEAP_PURPOSE;
use crate::layout::{CHUNK_LOCK, ChunkEntry, ChunkState};
use crate::lock::PendingLock;
use crate::node::{Backend, Member};
use crate::units::{ChunkId, NodeId};

/// Most chunks adopted in one step, under one hold of the chunk lock: a few hundred microseconds.
/// The recoverer may be the lock manager, which grants and beats between two steps, and others wait
/// for the lock.
pub(super) const ADOPTED_MAX: usize = 64;

/// Waits for the chunk lock, then changes the owner of some chunks, each with an intent of its own,
/// and waits again: a death in between leaves some adopted and the rest to the next recoverer.
#[derive(Debug)]
pub(super) struct Adoption<'m, B: Backend> {
    waiting: Option<PendingLock<'m, B>>,
    /// What is to be adopted under the lock that is waited for.
    next: Vec<ChunkId>,
    /// So far.
    adopted: Vec<ChunkId>,
}

impl<B: Backend> Default for Adoption<'_, B> {
    fn default() -> Self {
        Self { waiting: None, next: Vec::new(), adopted: Vec::new() }
    }
}

impl<'m, B: Backend> Adoption<'m, B> {
    /// Nothing was begun.
    #[cfg(feature = "verify")]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_none() && self.next.is_empty() && self.adopted.is_empty()
    }

    /// One step; the adopted chunks once there is nothing left to adopt.
    pub(super) fn poll(
        &mut self,
        member: &'m Member<B>,
        clock: &'m dyn Clock,
        victim: NodeId,
    ) -> Option<Vec<ChunkId>> {
        let (layout, fabric) = (member.layout(), member.fabric());
        let heap_of_victim = |chunk: &ChunkId| {
            let state = layout.chunk_entry(*chunk).cached(fabric).ok().and_then(|it| it.state());
            matches!(state, Some(ChunkState::Owned { owner, purpose, .. })
                if owner == victim && purpose == HEAP_PURPOSE)
        };
        if self.waiting.is_none() {
            // Mostly there is none, and no lock is needed to see it: only the victim took chunks
            // for itself, and it is fenced.
            fabric.refresh(layout.chunk_table());
            let chunks = (0..layout.chunks()).map(ChunkId).filter(heap_of_victim);
            self.next = chunks.take(ADOPTED_MAX).collect();
            if self.next.is_empty() {
                return Some(std::mem::take(&mut self.adopted));
            }
        }
        let waiting =
            self.waiting.get_or_insert_with(|| PendingLock::begin(member, CHUNK_LOCK, clock));
        // Without a lock manager it waits on.
        let _guard = waiting.poll().ok().flatten()?;
        // LOCK-L1. A recoverer before us may have died with the lock, having begun to adopt one:
        // the process that freed the lock has redone that.
        refresh_all(fabric, self.next.iter().map(|chunk| layout.chunk_entry(*chunk).range()));
        self.next.retain(heap_of_victim);
        for chunk in &self.next {
            let (owner, incarnation) = (member.node(), member.incarnation());
            let state = ChunkState::Owned { owner, incarnation, purpose: HEAP_PURPOSE };
            // FAULT-C1.
            let entry = ChunkEntry::new(state).with_failed(failed_pages(member, *chunk));
            set_chunk(member.node_handle(), fabric, *chunk, &entry);
        }
        self.adopted.append(&mut self.next);
        self.waiting = None;
        // The next step looks whether there are more.
        None
    }
}
