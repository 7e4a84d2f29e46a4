//! Evicting, one batch under each hold of the heap lock.

use std::collections::HashSet;

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;

use crate::evict::LOOKED_AT_MAX;
use crate::heap::{LockedHeap, SlotSize};
use crate::process::Cache;

impl<B: Backend> Cache<'_, B> {
    /// Evicts up to `want` blocks, at most [`BATCH`](crate::evict::BATCH): of `size`, or of any.
    /// Returns how many; 0 when all are held, or being written.
    ///
    /// Others have the heap lock in between, however many blocks are held (EVICT-V3).
    pub(crate) fn evict(&self, clock: &impl Clock, size: Option<SlotSize>, want: usize) -> u64 {
        self.evict_as_wanted(clock, size, |_| want)
    }

    /// As [`evict`](Self::evict), of as many blocks as `want` says under the heap lock: other
    /// processes of the host may have evicted since this one looked.
    pub(super) fn evict_as_wanted(
        &self,
        clock: &impl Clock,
        size: Option<SlotSize>,
        want: impl Fn(&LockedHeap<'_, B>) -> usize,
    ) -> u64 {
        // What this call cannot evict: it comes to its end whatever the descriptors say.
        let mut stay = HashSet::new();
        let process_state = self.process_state();
        // Others may publish as fast as we look.
        let slots = self.areas().geometry().descriptor_slots() as usize;
        for _ in 0..8 + 2 * slots / LOOKED_AT_MAX {
            let batch = self.locked(clock, |heap| {
                // Who makes room for the rest of a prefix has just used its beginning.
                while process_state.flush_touches(heap) {}
                let want = want(heap);
                heap.evict(&mut process_state.order(), clock.now_ms(), size, want, &mut stay)
            });
            self.count(|metrics| {
                metrics.evicted_blocks += batch.evicted;
                metrics.spared_held += batch.spared_held;
            });
            if !batch.more {
                return batch.evicted;
            }
        }
        0
    }
}
