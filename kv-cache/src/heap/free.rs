//! Freeing blocks: the tombstone first, for all hosts to see, then the payload slot.

use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::PublishBatch;
use cxl_shm::host::ProcessSlot;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, Extent, Incarnation};

use super::{LockedHeap, SlotSize, SlotWord, once_each};
use crate::format::{
    BlockState, Descriptor, DescriptorLine, Handle, LogEntry, LogKind, SlotContent,
};

/// The right to write a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) incarnation: Incarnation,
    pub(crate) payload: Extent,
}

/// A slot that becomes a tombstone.
struct Victim {
    slot: u32,
    generation: u32,
    /// What it named; `None` when its descriptor cannot be read.
    payload: Option<Extent>,
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Frees blocks that nobody writes any more. Claims to blocks that are not being written
    /// under the claimed generation are passed over. Returns how many were freed.
    pub(crate) fn free_writing(&mut self, claims: Vec<Claim>) -> u64 {
        let victims = claims.into_iter().filter(|claim| self.holds(claim)).map(|claim| Victim {
            slot: claim.slot,
            generation: claim.generation,
            payload: Some(claim.payload),
        });
        let victims = victims.collect();
        self.free(victims)
    }

    /// Whether the process that claimed the block of `claim` is still writing it.
    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        claim.incarnation == self.member.incarnation()
            && matches!(self.directory.slot(claim.slot),
                SlotWord::Writing { generation, .. } if generation == claim.generation)
    }

    /// Frees what processes that `is_gone` names were writing (BLOCK-E3). Returns how many blocks.
    pub(crate) fn free_writing_of(&mut self, is_gone: impl Fn(ProcessSlot) -> bool) -> u64 {
        let mut victims = Vec::new();
        for (slot, generation) in self.directory.writing() {
            match self.segment.own(self.fabric(), slot) {
                Ok(SlotContent::Block(Descriptor { process, .. })) if !is_gone(process) => {}
                Ok(SlotContent::Block(Descriptor { payload, .. })) => {
                    victims.push(Victim { slot, generation, payload: Some(payload) });
                }
                // A line that we wrote and cannot read: nobody can complete that block.
                Ok(_) | Err(_) => {
                    let payload = None;
                    victims.push(Victim { slot, generation, payload });
                }
            }
        }
        self.free(victims)
    }

    /// Frees what dead processes were writing, ends what they left of a chunk that they were giving
    /// back, and takes in chunks that they had allocated and not yet used. Returns how many blocks
    /// were freed.
    pub(crate) fn reap(&mut self) -> u64 {
        self.end_closing();
        self.find_chunks();
        let member = self.member;
        self.free_writing_of(once_each(|process| !member.is_process_alive(process)))
    }

    /// Frees complete blocks and announces it. Handles of other blocks are passed over. Returns
    /// how many were freed.
    pub(crate) fn free_ready(&mut self, handles: &[Handle]) -> u64 {
        let mut victims: Vec<Victim> = Vec::new();
        let mut entries = Vec::new();
        for handle in handles {
            let (slot, generation) = (handle.slot(), handle.generation());
            let ours = handle.owner() == self.node() && slot < self.directory.slots();
            let ready = ours
                && matches!(self.directory.slot(slot),
                    SlotWord::Ready { generation: found, .. } if found == generation);
            if !ready || victims.iter().any(|victim| victim.slot == slot) {
                continue;
            }
            let block = match self.segment.own(self.fabric(), slot) {
                Ok(SlotContent::Block(block)) if block.state != BlockState::Writing => Some(block),
                Ok(_) | Err(_) => None,
            };
            if let Some(Descriptor { key, .. }) = block {
                entries.push(LogEntry {
                    kind: LogKind::Removed,
                    key: key.index(),
                    slot,
                    generation,
                });
            }
            let payload = block.map(|block| block.payload);
            victims.push(Victim { slot, generation, payload });
        }
        let freed = self.free(victims);
        self.log.append(self.fabric(), &entries);
        freed
    }

    /// Takes in that blocks are gone which this node has evicted: their descriptors say FREE,
    /// published.
    pub(crate) fn forget_evicted(&mut self, blocks: &[Descriptor]) {
        let gone = |block: &Descriptor| Victim {
            slot: block.handle.slot(),
            generation: block.handle.generation(),
            payload: Some(block.payload),
        };
        self.forget(&blocks.iter().map(gone).collect::<Vec<_>>());
    }

    /// Takes in chunks of this node that the directory does not know: their allocator died before
    /// it could say so.
    pub(crate) fn find_chunks(&self) {
        self.add_owned(|_| true);
    }

    /// Takes in a chunk that this node was given, all of it free. Does nothing when the directory
    /// knows it already, or when it is not this node's any more.
    pub(crate) fn add_chunk(&self, chunk: ChunkId) {
        self.add_owned(|owned| owned == chunk);
    }

    /// Whose a chunk is, and for blocks of which size, is asked under the heap lock: since it was
    /// allocated another process of the host may have found it, and given it back.
    fn add_owned(&self, wanted: impl Fn(ChunkId) -> bool) {
        let chunk_bytes = self.member.layout().geometry().chunk_bytes;
        for (chunk, purpose) in self.member.owned_chunks() {
            if wanted(chunk)
                && let Some(size) = SlotSize::from_purpose(purpose, chunk_bytes)
            {
                self.directory.add_chunk(chunk, size);
            }
        }
    }

    fn free(&mut self, victims: Vec<Victim>) -> u64 {
        let mut batch = PublishBatch::new(self.fabric());
        for Victim { slot, generation, .. } in &victims {
            let line = DescriptorLine::free(self.node(), *generation, false);
            batch.line(self.segment.line(*slot), &line);
        }
        // BLOCK-D2: gone for every reader before the payload can be taken again.
        batch.publish();
        if !victims.is_empty() {
            crash::reach(CrashPoint::RetireFreed);
        }
        self.forget(&victims);
        victims.len() as u64
    }

    /// Takes in that the slots of `victims` are tombstones.
    fn forget(&mut self, victims: &[Victim]) {
        for Victim { slot, generation, payload } in victims {
            if let SlotWord::Ready { .. } = self.directory.slot(*slot) {
                self.left.blocks += 1;
                self.left.bytes += payload.map_or(0, Extent::bytes);
            }
            let word = SlotWord::Free { generation: *generation, ends: false };
            self.directory.set_slot(*slot, word);
            match payload {
                Some(payload) => self.directory.free_payload(*payload),
                // Only a sweep can tell which payload it was.
                None => self.doubtful = true,
            }
        }
        self.clean_tombstones(victims.iter().map(|victim| victim.slot));
    }
}
