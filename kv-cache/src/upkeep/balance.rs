//! What is done in the background, now and then: recency told, room kept, chunks balanced.

use std::collections::BTreeSet;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, LineError, refresh_all};
use cxl_shm::layout::{ChunkState, NodeState};
use cxl_shm::node::Backend;
use cxl_shm::units::ChunkId;

use super::GivenBack;
use super::watermarks::Watermarks;
use crate::heap::{ChunkUse, LockedHeap, Quota, SlotSize, TooManyQuotas};
use crate::identity::Namespace;
use crate::process::{Cache, ChunkWait};
use crate::reclaim::end_reclaim;

/// Batches of one call, so that it comes to its end.
const BATCHES_MAX: usize = 16;
/// Chunks without blocks that a node keeps for itself while nobody asks.
const IDLE_CHUNKS_MAX: usize = 1;

/// What a call of [`Cache::upkeep`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Upkeep {
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Chunks given back to the region.
    pub chunks_returned: u64,
    /// Chunks got from other nodes.
    pub chunks_added: u64,
    /// Blocks that were cleared because a node asked for that.
    pub cleared_blocks: u64,
}

impl<B: Backend> Cache<'_, B> {
    /// Keeps this node's part of the pool in order, a bounded piece at a time; called every few
    /// milliseconds by a thread that does nothing else.
    ///
    /// Tells the owners what this process used, releases holds of processes that are gone, removes
    /// the blocks of namespaces that some node [clears](Cache::clear), keeps
    /// searches in this node's segment short, evicts above the high watermark down to the low one,
    /// and balances chunks over the nodes: a node that is full takes one of a vacant node first
    /// ([`Metrics::inherited_chunks`](crate::Metrics)); one that has less than its share asks for
    /// one, a node with more than its share gives the coldest one to a node that asks. It waits for
    /// other hosts only for chunks: at most `chunk_timeout_ms` for each lock.
    ///
    /// Says in the region twice a second what the processes of this host have done together
    /// ([`NodeSummary`](crate::NodeSummary)).
    ///
    /// Does nothing on a node that was declared dead.
    pub fn upkeep(
        &self,
        clock: &impl Clock,
        watermarks: Watermarks,
        chunk_timeout_ms: u64,
    ) -> Upkeep {
        if self.check_member().is_err() {
            return Upkeep::default();
        }
        let process_state = self.process_state();
        while self.locked(clock, |heap| process_state.flush_touches(heap)) {}
        for _ in 0..process_state.release_turns() {
            self.locked(clock, |_| ());
        }
        end_reclaim(self.member(), clock);
        self.drop_holds_of_gone(clock);
        let cleared_blocks = self.answer_directives(clock);
        let (uses, blocks, blocks_max) = self.locked(clock, |heap| {
            heap.end_closing();
            heap.end_searches();
            heap.quotas.count_down(&mut process_state.pin_ends(), clock.now_ms());
            process_state.order().follow(heap);
            (heap.directory.chunk_uses(), heap.directory.blocks(), heap.directory.blocks_max())
        });
        self.tell_summary(clock);
        let mut done = Upkeep { cleared_blocks, ..Upkeep::default() };
        if watermarks.is_above(blocks, blocks_max) {
            let evicted = self.evict_surplus(clock, None, watermarks);
            self.note_evicted_for_descriptors(evicted, blocks_max);
            done.evicted_blocks += evicted;
        }
        let short = self.sizes_above(&uses, watermarks);
        let full = !short.is_empty() && !self.has_free_chunk();
        // What vacant nodes have, nobody fills any more: the room is for those that live.
        let full = full && !self.empty_an_orphan(clock, chunk_timeout_ms);
        if full {
            for size in &short {
                done.evicted_blocks += self.evict_surplus(clock, Some(*size), watermarks);
            }
        }
        done.chunks_returned = self.answer(clock, &uses, chunk_timeout_ms);
        if let (true, Some(size)) = (full, short.first()) {
            done.chunks_added = self.ask(clock, uses.len(), *size, chunk_timeout_ms);
        }
        done
    }

    /// Gives a namespace another quota, or none, on this host: for the blocks that it publishes.
    ///
    /// # Errors
    /// [`TooManyQuotas`].
    pub fn set_quota(
        &self,
        clock: &impl Clock,
        namespace: &Namespace,
        quota: Option<Quota>,
    ) -> Result<(), TooManyQuotas> {
        self.locked(clock, |heap| heap.quotas.set(namespace.tag(), quota))
    }

    /// The sizes of which more slots are taken than should be.
    fn sizes_above(&self, uses: &[ChunkUse], watermarks: Watermarks) -> Vec<SlotSize> {
        let sizes: BTreeSet<SlotSize> = uses.iter().map(|chunk| chunk.size).collect();
        let is_above = |size: &SlotSize| {
            let (used, most) = slots_of(uses, *size);
            watermarks.is_above(used, most)
        };
        sizes.into_iter().filter(is_above).collect()
    }

    /// Evicts down to the low watermark: descriptors, or payload of `size`. The use is read anew
    /// for each batch, because other processes of the host evict the same surplus. Returns how many
    /// blocks this process evicted.
    pub(crate) fn evict_surplus(
        &self,
        clock: &impl Clock,
        size: Option<SlotSize>,
        watermarks: Watermarks,
    ) -> u64 {
        let want = |heap: &LockedHeap<'_, B>| {
            let directory = &heap.directory;
            let (used, most) = match size {
                None => (directory.blocks(), directory.blocks_max()),
                Some(size) => slots_of(&directory.chunk_uses(), size),
            };
            usize::try_from(watermarks.surplus(used, most)).unwrap_or(usize::MAX)
        };
        let batches = (0..BATCHES_MAX).map(|_| self.evict_as_wanted(clock, size, want));
        batches.take_while(|evicted| *evicted > 0).sum()
    }

    /// Returns a chunk: to a node that asks, when this node has more than its share; else one that
    /// nobody here needs.
    pub(crate) fn answer(&self, clock: &impl Clock, uses: &[ChunkUse], timeout_ms: u64) -> u64 {
        let idle = uses.iter().filter(|chunk| chunk.taken() == 0);
        let idle: Vec<_> = idle.map(|chunk| chunk.chunk).collect();
        let asked = self.member().chunks_requested() > 0;
        let mut wait = ChunkWait::new(timeout_ms);
        let given = match idle.first() {
            // The uses are a look back: a publish may be filling the chunk by now.
            Some(chunk) if asked || idle.len() > IDLE_CHUNKS_MAX => {
                self.give_empty_back(clock, *chunk, &mut wait)
            }
            _ if asked && uses.len() > self.fair_share() => {
                self.give_one_back(clock, &self.coldest(clock, |_| true), &mut wait)
            }
            _ => return 0,
        };
        u64::from(given == GivenBack::Yes)
    }

    /// Asks the other nodes for a chunk when this node has less than its share.
    fn ask(&self, clock: &impl Clock, own: usize, size: SlotSize, timeout_ms: u64) -> u64 {
        if own >= self.fair_share() {
            return 0;
        }
        let Ok(chunk) = self.member().request_chunk(clock, timeout_ms, size.purpose()) else {
            return 0;
        };
        self.locked(clock, |heap| heap.add_chunk(chunk));
        self.count(|metrics| metrics.chunks_added += 1);
        1
    }

    /// Whether the region has a chunk that is nobody's, freshly read.
    pub(crate) fn has_free_chunk(&self) -> bool {
        let (layout, fabric) = (self.areas().layout(), self.member().fabric());
        fabric.refresh(layout.chunk_table());
        (0..layout.chunks()).map(ChunkId).any(|chunk| {
            let entry = layout.chunk_entry(chunk).cached(fabric);
            entry.is_ok_and(|entry| entry.state() == Some(ChunkState::Free))
        })
    }

    /// Chunks for each node that takes part.
    pub(crate) fn fair_share(&self) -> usize {
        let (layout, fabric) = (self.areas().layout(), self.member().fabric());
        refresh_all(fabric, layout.nodes().map(|node| layout.node_line(node).range()));
        let takes_part = |line: Result<cxl_shm::layout::NodeLine, LineError>| match line {
            Ok(line) => !line.state().is_some_and(NodeState::is_vacant),
            Err(LineError::Blank { .. }) => false,
            Err(LineError::Corrupt { .. }) => true,
        };
        let nodes =
            layout.nodes().filter(|node| takes_part(layout.node_line(*node).cached(fabric)));
        layout.chunks() as usize / nodes.count().max(1)
    }
}

/// Payload slots of a size that are taken, and all of them.
fn slots_of(uses: &[ChunkUse], size: SlotSize) -> (u64, u64) {
    let of_size = uses.iter().filter(|chunk| chunk.size == size);
    of_size.fold((0, 0), |(used, most), chunk| {
        (used + u64::from(chunk.taken()), most + u64::from(chunk.slots))
    })
}
