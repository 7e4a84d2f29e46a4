//! What this node says of itself in the region, for tools of any host.
//!
//! One process of the host says it every half second. The others see that the number has grown, and
//! say nothing. When that process ends, the first that sees the number stand still goes on.

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;

use crate::format::NodeSummary;
use crate::heap::LockedHeap;
use crate::process::{Cache, occupancy_of};
use crate::replica::Miss;

/// Misses of blocks that were not what was published. Memory that failed has a figure of its own.
const DAMAGE: [Miss; 3] = [Miss::Torn, Miss::Malformed, Miss::Checksum];

impl<B: Backend> Cache<'_, B> {
    /// Tells the summary of this node when it is this process's turn.
    pub(super) fn tell_summary(&self, clock: &impl Clock) {
        if !self.process_state().summary_turn().is_due(clock.now_ms()) {
            return;
        }
        self.locked(clock, |heap| {
            let incarnation = heap.member.incarnation();
            let told = heap.summary.number(incarnation, heap.fabric());
            let number = self.process_state().summary_turn().next(told);
            if let Some(number) = number {
                heap.summary.say(heap.fabric(), &self.summary(heap, number));
            }
        });
    }

    fn summary(&self, heap: &LockedHeap<'_, B>, number: u32) -> NodeSummary {
        let (now, sums) = (occupancy_of(heap), self.host_figures().metrics());
        let heartbeat = self.areas().layout().heartbeat(heap.node()).cached(heap.fabric());
        let few = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        NodeSummary {
            incarnation: heap.member.incarnation(),
            number,
            heartbeat,
            ready_blocks: now.ready_blocks,
            writing_blocks: now.writing_blocks,
            used_bytes: now.used_bytes,
            free_bytes: now.free_bytes,
            chunks: few(now.chunks),
            holds: few(now.holds),
            lookups: sums.lookups,
            lookup_blocks: sums.lookup_blocks,
            lookup_hits: sums.lookup_hits,
            fetched_blocks: sums.fetched_blocks,
            fetched_bytes: sums.fetched_bytes,
            misses: sums.all_misses().map(|(_, count)| count).sum(),
            published_blocks: sums.published_blocks,
            published_bytes: sums.published_bytes,
            promoted_blocks: sums.promoted_blocks,
            promoted_bytes: sums.promoted_bytes,
            evicted_blocks: sums.evicted_blocks,
            removed_blocks: sums.removed_blocks,
            damaged_blocks: DAMAGE.map(|reason| sums.misses(reason)).iter().sum(),
            memory_faults: sums.memory_faults,
            ended_processes: sums.ended_processes,
        }
    }
}
