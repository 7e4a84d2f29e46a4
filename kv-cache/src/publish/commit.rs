//! The second half of publishing: complete blocks, and their announcement.

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, PublishBatch};
use cxl_shm::node::Backend;

use super::{ReadyBlock, WritingBlock};
use crate::format::{BlockState, Descriptor, DescriptorLine, Handle, LogEntry, LogKind};
use crate::heap::{LockedHeap, SlotWord, tag};
use crate::process::{Cache, Metrics};

/// A block that was not completed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Another process believed its process dead, or the node had another life meanwhile, and freed
    /// it. Its payload may belong to another block by now.
    #[error(
        "the block in slot {} was taken from this process during the write: processes of this host \
         must see each other in /proc",
        .block.descriptor.handle.slot()
    )]
    TakenAway {
        /// The block. Dropping it does no harm.
        block: WritingBlock,
    },
    /// The memory that was to have its payload failed (FAULT-F3), or that of the region's metadata
    /// (FAULT-F4). Nobody finds the block.
    #[error(
        "the memory of the block in slot {slot} failed: look for memory errors (`dmesg`, `cxl list \
         --media-errors`)"
    )]
    MemoryFailed {
        /// The slot of its descriptor.
        slot: u32,
    },
}

impl<B: Backend> Cache<'_, B> {
    /// Completes blocks: each with the CRC-32C of its payload. The results are in the same order.
    ///
    /// The payloads are on the device, fenced (WRITE-B2). After return every host that looks finds
    /// the blocks and can read them.
    pub fn commit(
        &self,
        clock: &impl Clock,
        blocks: Vec<(WritingBlock, u32)>,
    ) -> Vec<Result<ReadyBlock, CommitError>> {
        self.commit_and(clock, blocks, |metrics, blocks, bytes| {
            metrics.published_blocks += blocks;
            metrics.published_bytes += bytes;
        })
    }

    /// As [`commit`](Self::commit), of blocks that come back from a drive: they are no publishes in
    /// the metrics.
    pub fn commit_restored(
        &self,
        clock: &impl Clock,
        blocks: Vec<(WritingBlock, u32)>,
    ) -> Vec<Result<ReadyBlock, CommitError>> {
        self.commit_and(clock, blocks, |metrics, blocks, bytes| {
            metrics.promoted_blocks += blocks;
            metrics.promoted_bytes += bytes;
        })
    }

    /// Completes blocks, and counts them before any other process can remove one.
    fn commit_and(
        &self,
        clock: &impl Clock,
        blocks: Vec<(WritingBlock, u32)>,
        count: impl FnOnce(&mut Metrics, u64, u64),
    ) -> Vec<Result<ReadyBlock, CommitError>> {
        let bytes = |outcome: &Result<(ReadyBlock, u64), _>| outcome.as_ref().map_or(0, |ok| ok.1);
        let outcomes = self.locked(clock, |heap| {
            let outcomes = heap.commit(blocks);
            let complete = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
            let bytes = outcomes.iter().map(bytes).sum();
            self.count(|metrics| count(metrics, complete, bytes));
            outcomes
        });
        outcomes.into_iter().map(|outcome| outcome.map(|(block, _)| block)).collect()
    }

    /// Frees blocks that are not to be published after all. What wrote their payloads has
    /// stopped.
    pub fn abort(&self, clock: &impl Clock, blocks: Vec<WritingBlock>) {
        drop(blocks);
        // The next holder of the lock frees what was dropped.
        self.locked(clock, |_| ());
    }

    /// Removes blocks of this node, for instance because their payload is damaged. Returns how
    /// many there were; handles of blocks that are gone, or another node's, are passed over.
    ///
    /// After return no host can fetch them, and every host that syncs forgets them. Holds are not
    /// asked for: a damaged block is of no use to its holder.
    pub fn retire(&self, clock: &impl Clock, handles: &[Handle]) -> u64 {
        let freed = self.locked(clock, |heap| heap.free_ready(handles));
        self.count(|metrics| metrics.retired_blocks += freed);
        freed
    }
}

impl<B: Backend> LockedHeap<'_, B> {
    fn commit(
        &mut self,
        blocks: Vec<(WritingBlock, u32)>,
    ) -> Vec<Result<(ReadyBlock, u64), CommitError>> {
        crash::reach(CrashPoint::PublishCopied);
        let mut entries = Vec::with_capacity(blocks.len());
        let mut batch = PublishBatch::new(self.fabric());
        let complete = |(block, checksum): (WritingBlock, u32)| {
            if !self.holds(&block.claim()) {
                return Err(CommitError::TakenAway { block });
            }
            // FAULT-F3: what was stored there is in this process alone. The next holder of the lock
            // frees the block.
            if self.member.fabric().has_lost(block.descriptor.payload) {
                return Err(CommitError::MemoryFailed { slot: block.descriptor.handle.slot() });
            }
            let state = BlockState::Ready;
            let descriptor = Descriptor { state, checksum, ..block.descriptor };
            let Descriptor { handle, key, payload, .. } = descriptor;
            let (slot, generation) = (handle.slot(), handle.generation());
            batch.line(self.segment.line(slot), &DescriptorLine::block(&descriptor));
            self.directory.set_slot(slot, SlotWord::Ready { generation, tag: tag(key) });
            entries.push(LogEntry { kind: LogKind::Published, key: key.index(), slot, generation });
            Ok((block.into_ready(), payload.bytes()))
        };
        let outcomes: Vec<_> = blocks.into_iter().map(complete).collect();
        crash::reach(CrashPoint::PublishReady);
        // WRITE-B3.
        self.log.append_with(self.fabric(), batch, &entries);
        if self.member.fabric().is_cut_off() {
            // FAULT-F4: nobody has seen any of it.
            let failed = |outcome: Result<(ReadyBlock, u64), CommitError>| {
                let slot = |ready: (ReadyBlock, u64)| ready.0.handle.slot();
                outcome.and_then(|ready| Err(CommitError::MemoryFailed { slot: slot(ready) }))
            };
            return outcomes.into_iter().map(failed).collect();
        }
        outcomes
    }
}
