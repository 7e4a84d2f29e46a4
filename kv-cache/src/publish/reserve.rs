//! The first half of publishing: descriptors and payload slots.

use std::sync::Arc;

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::member::Liveness;
use cxl_shm::units::Extent;

use super::Refusal;
use crate::block::{BlockSpec, WritingBlock};
use crate::cache::Cache;
use crate::descriptor::{
    BlockState, Descriptor, DescriptorLine, Handle, SlotContent, next_generation,
};
use crate::heap::{Insert, LockedHeap, SlotSize, SlotWord, tag};
use crate::key::BlockKey;
use crate::local::Local;

/// What became of a block that was to be published.
#[derive(Debug)]
#[must_use = "a block that is not committed is freed again"]
pub enum Reservation {
    /// It is to be written now.
    Writing(WritingBlock),
    /// It is in the pool, or some process of this host is writing it.
    AlreadyThere,
    /// There is no room for it.
    Refused(Refusal),
}

/// A block of a batch on its way through `reserve`.
struct Wish {
    spec: BlockSpec,
    size: Option<SlotSize>,
    outcome: Option<Reservation>,
}

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Reserves a descriptor and a payload slot for each block that is not in the pool yet. The
    /// results are in the order of `specs`.
    ///
    /// After return every host sees the reserved descriptors as being written, and no lookup
    /// finds them.
    ///
    /// When this node has no free payload slot of the size, a chunk is taken from the region,
    /// which waits for other hosts, each time for at most `chunk_timeout_ms`.
    pub fn reserve(
        &self,
        clock: &impl Clock,
        specs: &[BlockSpec],
        chunk_timeout_ms: u64,
    ) -> Vec<Reservation> {
        if let Err(dead) = self.member().check_member() {
            return specs.iter().map(|_| Reservation::Refused(dead.into())).collect();
        }
        let mut wishes = self.wishes(specs);
        let mut chunk = None;
        // Each round but the last adds a chunk, which holds at least one block, or refuses one.
        for _ in 0..=specs.len() {
            let lacking = self.locked(clock, |heap| {
                if let Some((chunk, size)) = chunk.take() {
                    heap.directory.add_chunk(chunk, size);
                }
                heap.reserve(&mut wishes, self.local())
            });
            let Some(size) = lacking else { break };
            match self.member().allocate_chunk(clock, chunk_timeout_ms, size.purpose()) {
                Ok(new) => {
                    self.local().count(|metrics| metrics.chunks_added += 1);
                    chunk = Some((new, size));
                }
                Err(error) => {
                    for wish in &mut wishes {
                        if wish.outcome.is_none() && wish.size == Some(size) {
                            let refusal = Refusal::NoChunk(error);
                            wish.outcome = Some(Reservation::Refused(refusal));
                        }
                    }
                }
            }
        }
        if let Some((chunk, size)) = chunk {
            self.locked(clock, |heap| heap.directory.add_chunk(chunk, size));
        }
        let outrun = || Reservation::Refused(Refusal::Outrun);
        let outcomes = wishes.into_iter().map(|wish| wish.outcome.unwrap_or_else(outrun));
        let outcomes: Vec<_> = outcomes.collect();
        self.local().count(|metrics| {
            for outcome in &outcomes {
                match outcome {
                    Reservation::Writing(_) => {}
                    Reservation::AlreadyThere => metrics.already_there += 1,
                    Reservation::Refused(_) => metrics.refused += 1,
                }
            }
        });
        outcomes
    }

    /// What can be said of the blocks before the heap is locked.
    fn wishes(&self, specs: &[BlockSpec]) -> Vec<Wish> {
        let chunk_bytes = self.member().layout().geometry().chunk_bytes;
        let replica = self.synced_replica();
        let wish = |spec: &BlockSpec| {
            let size = SlotSize::for_block(spec.bytes, chunk_bytes);
            let outcome = if size.is_none() {
                let most_bytes = chunk_bytes.min(u64::from(u32::MAX));
                let refusal = Refusal::Length { bytes: spec.bytes, most_bytes };
                Some(Reservation::Refused(refusal))
            } else {
                // A copy of another node is as good as one of our own. The hint may be wrong:
                // then the next request that misses publishes it.
                replica.find(spec.key).map(|_| Reservation::AlreadyThere)
            };
            Wish { spec: *spec, size, outcome }
        };
        specs.iter().map(wish).collect()
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    /// Reserves what there is room for, and leaves open what lacks a payload slot. Returns the
    /// size of slot that is lacking.
    fn reserve(&mut self, wishes: &mut [Wish], local: &Arc<Local>) -> Option<SlotSize> {
        let mut lacking = None;
        let mut batch = PublishBatch::new(self.fabric());
        for wish in wishes {
            let (None, Some(size)) = (&wish.outcome, wish.size) else {
                continue;
            };
            if lacking == Some(size) {
                continue;
            }
            if self.has(wish.spec.key) {
                wish.outcome = Some(Reservation::AlreadyThere);
                continue;
            }
            let Insert::Into { slot, last } = self.directory.insert(wish.spec.key) else {
                let (blocks, slots) = (self.directory.blocks(), self.directory.slots());
                let refusal = Refusal::SegmentFull { blocks, slots };
                wish.outcome = Some(Reservation::Refused(refusal));
                continue;
            };
            let Some(payload) = self.directory.take_payload(size, wish.spec.bytes) else {
                lacking = lacking.or(Some(size));
                continue;
            };
            let descriptor = self.writing(&wish.spec, slot, next_generation(last), payload);
            batch.line(self.segment.line(slot), &DescriptorLine::block(&descriptor));
            let (generation, tag) = (descriptor.handle.generation(), tag(wish.spec.key));
            self.directory.set_slot(slot, SlotWord::Writing { generation, tag });
            let block = WritingBlock::new(descriptor, Arc::clone(local));
            wish.outcome = Some(Reservation::Writing(block));
        }
        // B1.
        batch.publish();
        crash::reach(CrashPoint::PublishReserved);
        lacking
    }

    /// Whether this node has a block with `key`, complete or being written.
    fn has(&self, key: BlockKey) -> bool {
        self.directory.candidates(key).any(|slot| {
            let content = self.segment.own(self.fabric(), slot);
            matches!(content, Ok(SlotContent::Block(block)) if block.key == key)
        })
    }

    fn writing(&self, spec: &BlockSpec, slot: u32, generation: u32, payload: Extent) -> Descriptor {
        Descriptor {
            handle: Handle::new(self.node(), slot, generation),
            state: BlockState::Writing,
            key: spec.key,
            payload,
            checksum: 0,
            fingerprint: spec.fingerprint,
            incarnation: self.member.incarnation(),
            depth: u16::try_from(spec.depth).unwrap_or(u16::MAX),
            process: self.member.process(),
        }
    }
}
