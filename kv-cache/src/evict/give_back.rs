//! Chunks that are emptied and given back to the region (V7).

use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;
use cxl_shm::units::ChunkId;

use super::BATCH;
use crate::cache::Cache;
use crate::descriptor::SlotContent;
use crate::heap::{ChunkUse, LockedHeap, SlotWord};
use crate::local::Local;

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Evicts what is in `chunk`, whatever its use, and gives the chunk back to the region. False
    /// when that did not come to its end: something in it is held, or being written, or the lock of
    /// the chunk table was not to be had. Then it is used on.
    pub(crate) fn give_back(&self, clock: &impl Clock, chunk: ChunkId, timeout_ms: u64) -> bool {
        if !self.locked(clock, |heap| heap.close_chunk(chunk)) {
            return false;
        }
        let slots: Vec<u32> = self.places().filter(|it| it.1 == chunk).map(|it| it.0).collect();
        let each_batch = |evict: bool| {
            slots.chunks(BATCH).all(|batch| {
                let now_ms = clock.now_ms();
                self.locked(clock, |heap| heap.vacate(self.local(), now_ms, chunk, batch, evict))
            })
        };
        // Nothing is evicted in vain from a chunk in which somebody holds something.
        if each_batch(false) {
            each_batch(true);
        }
        let is_empty = self.locked(clock, |heap| {
            heap.directory.chunk_uses().iter().any(|it| it.chunk == chunk && it.taken() == 0)
        });
        crash::reach(CrashPoint::ChunkVacated);
        // L3: not under the heap lock, which nobody would have for as long.
        let given = is_empty && self.member().free_chunk(clock, timeout_ms, chunk).is_ok();
        self.locked(clock, |heap| heap.reopen(chunk));
        self.local().count(|metrics| metrics.chunks_returned += u64::from(given));
        given
    }

    /// The chunks of this node that are `wanted`, those with the fewest blocks first.
    pub(super) fn least_used(
        &self,
        clock: &impl Clock,
        wanted: impl Fn(&ChunkUse) -> bool,
    ) -> Vec<ChunkId> {
        let mut uses = self.locked(clock, |heap| heap.directory.chunk_uses());
        uses.retain(|chunk| wanted(chunk));
        uses.sort_by_key(ChunkUse::taken);
        uses.into_iter().map(|chunk| chunk.chunk).collect()
    }

    /// The chunk of this node whose blocks were used longest ago, on average; an empty one if there
    /// is one.
    pub(super) fn coldest(&self, clock: &impl Clock) -> Option<ChunkId> {
        let places: Vec<(u32, ChunkId)> = self.places().collect();
        let local = self.local();
        let uses = self.locked(clock, |heap| {
            let order = local.order();
            let (head, _) = crate::geometry::halves(heap.log.head(heap.fabric()));
            let age = |chunk: &ChunkUse| {
                let inside = places.iter().filter(|(_, it)| *it == chunk.chunk);
                let ages = inside.map(|(slot, _)| u64::from(head.wrapping_sub(order.tick(*slot))));
                let (sum, count) = ages.fold((0, 0), |(sum, count), age| (sum + age, count + 1));
                if chunk.taken() == 0 { u64::MAX } else { sum / u64::max(count, 1) }
            };
            let uses = heap.directory.chunk_uses();
            uses.into_iter().map(|chunk| (age(&chunk), chunk.chunk)).collect::<Vec<_>>()
        });
        uses.into_iter().max_by_key(|(age, _)| *age).map(|(_, chunk)| chunk)
    }

    /// The slots of this node that name payload, and the chunk each is in: a hint, read without the
    /// heap lock.
    fn places(&self) -> impl Iterator<Item = (u32, ChunkId)> + '_ {
        let (layout, segment) = (self.areas().layout(), self.areas().segment(self.member().node()));
        (0..segment.slots()).filter_map(move |slot| {
            match segment.cached(self.member().fabric(), slot) {
                Ok(SlotContent::Block(block)) => Some((slot, layout.chunk_of(block.payload)?)),
                Ok(_) | Err(_) => None,
            }
        })
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    /// Begins to give a chunk back: no payload is taken in it any more. False while another process
    /// of the host gives one back.
    fn close_chunk(&mut self, chunk: ChunkId) -> bool {
        self.settle_closing();
        if self.directory.closing().is_some() {
            return false;
        }
        let is_ours = self.directory.chunk_uses().iter().any(|it| it.chunk == chunk);
        if is_ours {
            self.directory.set_closing(Some((chunk, self.member.process())));
        }
        is_ours
    }

    /// Ends what a process left that died while it gave a chunk back, or this one when it failed.
    /// False when that has to wait: it died in the middle of an update of the chunk table, which is
    /// not redone yet. The chunk takes no payload until then.
    pub(crate) fn settle_closing(&mut self) -> bool {
        let (Some(chunk), Some(process)) =
            (self.directory.closing(), self.directory.closing_process())
        else {
            return true;
        };
        if process != self.member.process() && self.member.is_process_alive(process) {
            return true;
        }
        // Before that the chunk table may name us as the owner of what will be nobody's.
        let settled = self.member.recover_locks();
        if settled {
            self.reopen(chunk);
        }
        settled
    }

    /// Uses a chunk on that was being given back, if it is still this node's, or again.
    pub(crate) fn reopen(&mut self, chunk: ChunkId) {
        let uses = self.directory.chunk_uses();
        // One with blocks was not given away. Of another the chunk table tells whose it is now:
        // as soon as it was nobody's another process of the host may have taken it, for blocks of
        // any size.
        if !uses.iter().any(|it| it.chunk == chunk && it.taken() > 0) {
            self.directory.forget_chunk(chunk);
            self.add_chunk(chunk);
        }
        self.directory.set_closing(None);
    }

    /// Evicts those of `slots` that are in `chunk`, or only looks whether it could: whether nothing
    /// stays.
    fn vacate(
        &mut self,
        local: &Local,
        now_ms: u64,
        chunk: ChunkId,
        slots: &[u32],
        evict: bool,
    ) -> bool {
        let inside = |slot: &u32| self.chunk_of(*slot) == Some(chunk);
        let slots: Vec<u32> = slots.iter().copied().filter(inside).collect();
        if evict {
            return self.evict_all(local, now_ms, &slots) == slots.len() as u64;
        }
        let is_ready = |slot: &u32| matches!(self.directory.slot(*slot), SlotWord::Ready { .. });
        let seen = self.look_at_stamps(&mut local.order().watch, &slots, now_ms);
        slots.iter().all(is_ready) && !seen.iter().any(|seen| seen.held)
    }

    fn chunk_of(&self, slot: u32) -> Option<ChunkId> {
        match self.segment.own(self.fabric(), slot) {
            Ok(SlotContent::Block(block)) => self.areas.layout().chunk_of(block.payload),
            Ok(_) | Err(_) => None,
        }
    }
}
