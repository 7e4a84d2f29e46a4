//! Chunks that are emptied and given back to the region (EVICT-V7).

use std::cmp::Reverse;

use cxl_shm::chunk::ChunkError;
use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::layout::CHUNK_LOCK;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, PAGE_BYTES};

use crate::evict::{BATCH, HoldWatch};
use crate::format::{Descriptor, SlotContent};
use crate::heap::{ChunkUse, LockedHeap, SlotWord};
use crate::process::{Cache, ChunkWait};

/// Chunks that are looked at in one go for one in which nobody holds anything.
const CHUNKS_LOOKED_AT_MAX: usize = 16;
/// Blocks whose ages are looked up under one hold of the heap lock.
const AGES_MAX: usize = 4096;

/// What became of a chunk that was to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenBack {
    /// It is the region's.
    Yes,
    /// It is used on: something in it is held, or being written. Nothing was evicted.
    Held,
    /// It is used on: another process of the host returns a chunk, or a reader came to hold
    /// something in this one meanwhile, or blocks were published in one that was to be empty.
    Busy,
    /// It is used on: the lock of the chunk table was not acquired.
    NoLock,
}

impl GivenBack {
    pub(crate) fn is_given(self) -> bool {
        self == Self::Yes
    }
}

/// What is in a chunk.
#[derive(Clone, Copy, Default)]
struct Content {
    blocks: u64,
    /// Of its blocks, together.
    age: u64,
    /// Blocks of namespaces that are within their quotas.
    within_quota: u64,
}

impl<B: Backend> Cache<'_, B> {
    /// Gives the first of `chunks` back in which nobody holds anything. Evicts from one of them at
    /// most, whatever comes of it.
    pub(crate) fn give_one_back(
        &self,
        clock: &impl Clock,
        chunks: &[ChunkId],
        wait: &mut ChunkWait,
    ) -> GivenBack {
        let mut outcome = GivenBack::Held;
        for chunk in chunks.iter().take(CHUNKS_LOOKED_AT_MAX) {
            outcome = self.give_back(clock, *chunk, wait);
            if outcome != GivenBack::Held {
                break;
            }
        }
        outcome
    }

    /// Evicts what is in `chunk`, whatever its use, and gives the chunk back to the region.
    pub(crate) fn give_back(
        &self,
        clock: &impl Clock,
        chunk: ChunkId,
        wait: &mut ChunkWait,
    ) -> GivenBack {
        self.give_back_if(clock, chunk, |_| true, wait)
    }

    /// Gives `chunk` back to the region if it is empty, and evicts nothing: since it was seen empty
    /// blocks may have been published in it.
    pub(crate) fn give_empty_back(
        &self,
        clock: &impl Clock,
        chunk: ChunkId,
        wait: &mut ChunkWait,
    ) -> GivenBack {
        self.give_back_if(clock, chunk, |chunk| chunk.taken() == 0, wait)
    }

    fn give_back_if(
        &self,
        clock: &impl Clock,
        chunk: ChunkId,
        wanted: impl Fn(&ChunkUse) -> bool,
        wait: &mut ChunkWait,
    ) -> GivenBack {
        if !self.locked(clock, |heap| heap.close_chunk(chunk, wanted)) {
            return GivenBack::Busy;
        }
        let outcome = self.give_closed_back(clock, chunk, wait);
        self.locked(clock, |heap| heap.reopen(chunk));
        let given = outcome == GivenBack::Yes;
        self.count(|metrics| metrics.chunks_returned += u64::from(given));
        outcome
    }

    fn give_closed_back(
        &self,
        clock: &impl Clock,
        chunk: ChunkId,
        wait: &mut ChunkWait,
    ) -> GivenBack {
        let inside = self.blocks().filter(|(other, _)| *other == chunk);
        let slots: Vec<u32> = inside.map(|(_, block)| block.handle.slot()).collect();
        let each_batch = |evict: bool| {
            slots.chunks(BATCH).all(|batch| {
                let process_state = self.process_state();
                self.locked(clock, |heap| {
                    let slots = heap.slots_in(chunk, batch);
                    let mut order = process_state.order();
                    if !evict {
                        return heap.can_vacate(&mut order.watch, clock.now_ms(), &slots);
                    }
                    let evicted = heap.evict_all(&mut order, clock.now_ms(), &slots);
                    self.count(|metrics| metrics.evicted_blocks += evicted);
                    evicted == slots.len() as u64
                })
            })
        };
        // Nothing is evicted in vain: not from a chunk in which a reader holds a block, and not
        // while nobody can give chunks back.
        if !each_batch(false) {
            return GivenBack::Held;
        }
        if !slots.is_empty() {
            let lock = |left_ms| self.member().lock_shared(CHUNK_LOCK, clock, left_ms).map(drop);
            if wait.ask(clock, lock, |error| Some(*error)).is_err() {
                return GivenBack::NoLock;
            }
            each_batch(true);
        }
        let is_empty = self.locked(clock, |heap| {
            heap.directory.chunk_uses().iter().any(|it| it.chunk == chunk && it.taken() == 0)
        });
        crash::reach(CrashPoint::ChunkVacated);
        if !is_empty {
            return GivenBack::Busy;
        }
        // LOCK-L3: not under the heap lock, which nobody would have for as long.
        let free = |left_ms| self.member().free_chunk(clock, left_ms, chunk);
        let lock_error = |error: &ChunkError| match error {
            ChunkError::Lock(error) => Some(*error),
            ChunkError::Unknown { .. } | ChunkError::NotOurs { .. } | ChunkError::InHeap { .. } => {
                None
            }
        };
        match wait.ask(clock, free, lock_error) {
            Ok(()) => GivenBack::Yes,
            Err(ChunkError::Lock(_)) => GivenBack::NoLock,
            // The directory was wrong about it, and is put right now.
            Err(
                ChunkError::Unknown { .. } | ChunkError::NotOurs { .. } | ChunkError::InHeap { .. },
            ) => GivenBack::Busy,
        }
    }

    /// The chunks of this node that are `wanted`, in the order in which they should go: those with
    /// the fewest blocks of namespaces within their quotas (EVICT-V5), and of these the ones whose
    /// blocks were used longest ago, on average; empty ones before all.
    pub(crate) fn coldest(
        &self,
        clock: &impl Clock,
        wanted: impl Fn(&ChunkUse) -> bool,
    ) -> Vec<ChunkId> {
        let process_state = self.process_state();
        let (mut uses, quotas, head) = self.locked(clock, |heap| {
            process_state.order().follow(heap);
            let head = heap.log.head(heap.fabric());
            (heap.directory.chunk_uses(), heap.quotas.all(), head)
        });
        let capacity_bytes = uses.iter().map(|it| it.size.bytes() * u64::from(it.slots)).sum();
        uses.retain(|chunk| wanted(chunk));
        if uses.len() <= 1 {
            return uses.into_iter().map(|chunk| chunk.chunk).collect();
        }
        // Not under the heap lock: there may be millions.
        let mut used_bytes = vec![0; quotas.len()];
        let place = |(chunk, block): (ChunkId, Descriptor)| {
            let quota = quotas.iter().position(|it| it.namespace == block.namespace);
            if let Some(quota) = quota {
                used_bytes[quota] += block.payload.bytes().next_multiple_of(PAGE_BYTES);
            }
            (chunk.0 as usize, block.handle.slot(), quota)
        };
        let blocks: Vec<_> = self.blocks().map(place).collect();
        let within = |quota: usize| used_bytes[quota] <= quotas[quota].quota.bytes(capacity_bytes);
        let within: Vec<bool> = (0..quotas.len()).map(within).collect();
        let mut contents = vec![Content::default(); self.areas().layout().chunks() as usize];
        for blocks in blocks.chunks(AGES_MAX) {
            self.locked(clock, |_| {
                let order = process_state.order();
                for (chunk, slot, quota) in blocks {
                    let content = &mut contents[*chunk];
                    content.blocks += 1;
                    content.age += order.age(*slot, head);
                    content.within_quota += u64::from(quota.is_some_and(|quota| within[quota]));
                }
            });
        }
        uses.sort_by_key(|chunk| {
            let Content { blocks, age, within_quota } = contents[chunk.chunk.0 as usize];
            (chunk.taken() > 0, within_quota, Reverse(age / blocks.max(1)))
        });
        uses.into_iter().map(|chunk| chunk.chunk).collect()
    }

    /// The blocks of this node, and the chunk that each is in: a hint, read without the heap lock.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (ChunkId, Descriptor)> + '_ {
        let (layout, segment) = (self.areas().layout(), self.areas().segment(self.member().node()));
        (0..segment.slots_in_use(self.member().fabric())).filter_map(move |slot| {
            match segment.cached(self.member().fabric(), slot) {
                Ok(SlotContent::Block(block)) => Some((layout.chunk_of(block.payload)?, block)),
                Ok(_) | Err(_) => None,
            }
        })
    }
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Those of `slots` that are in `chunk`.
    fn slots_in(&self, chunk: ChunkId, slots: &[u32]) -> Vec<u32> {
        let inside = |slot: &u32| self.chunk_of(*slot) == Some(chunk);
        slots.iter().copied().filter(inside).collect()
    }

    /// Whether all of `slots` could be evicted: nobody holds or writes any.
    fn can_vacate(&self, watch: &mut HoldWatch, now_ms: u64, slots: &[u32]) -> bool {
        let is_ready = |slot: &u32| matches!(self.directory.slot(*slot), SlotWord::Ready { .. });
        let seen = self.look_at_reader_words(watch, slots, now_ms);
        slots.iter().all(is_ready) && !seen.iter().any(|seen| seen.held)
    }

    fn chunk_of(&self, slot: u32) -> Option<ChunkId> {
        match self.segment.own(self.fabric(), slot) {
            Ok(SlotContent::Block(block)) => self.areas.layout().chunk_of(block.payload),
            Ok(_) | Err(_) => None,
        }
    }
}
