//! Blocks that processes of this host did not finish.

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;

use super::end_reclaim;
use crate::heap::{HOLDS_AT_ONCE, once_each};
use crate::process::Cache;

impl<B: Backend> Cache<'_, B> {
    /// Frees what processes of this host were writing that died or left, drops what they held, and
    /// takes in chunks that they had allocated and not yet used. To be called before such a process
    /// is struck off the registry (`Member::forget_process`);
    /// [`reclaim_dead_processes`](crate::reclaim_dead_processes) does both. Returns how many blocks
    /// were freed.
    pub fn reap(&self, clock: &impl Clock) -> u64 {
        end_reclaim(self.member(), clock);
        let is_gone = |process| !self.member().is_process_alive(process);
        let (freed, dropped) =
            self.locked(clock, |heap| (heap.reap(), heap.drop_holds_of(is_gone)));
        self.count(|metrics| {
            metrics.reclaimed_blocks += freed;
            metrics.released_blocks += dropped;
        });
        if dropped == HOLDS_AT_ONCE as u64 {
            self.drop_holds_of_gone(clock);
        }
        freed
    }

    /// Drops what processes of this host held that died or left (EVICT-H4): all of it, and others
    /// have the heap lock in between.
    pub(crate) fn drop_holds_of_gone(&self, clock: &impl Clock) {
        let is_gone = |process| !self.member().is_process_alive(process);
        loop {
            let dropped = self.locked(clock, |heap| heap.drop_holds_of(is_gone));
            self.count(|metrics| metrics.released_blocks += dropped);
            if dropped < HOLDS_AT_ONCE as u64 {
                break;
            }
        }
    }

    /// Frees what processes of this host were writing that died or left since: their payload, and
    /// the keys, which no other process of the host can publish until then. What wrote those
    /// payloads has stopped. Returns how many blocks were freed.
    ///
    /// [`reclaim_dead_processes`](crate::reclaim_dead_processes) does so too, and more; this is
    /// cheap enough to be called every few milliseconds. Reads this host's DRAM alone while there
    /// is nothing being written. Does nothing on a node that was declared dead.
    pub fn reclaim_unfinished(&self, clock: &impl Clock) -> u64 {
        if self.member().check_member().is_err() {
            return 0;
        }
        let is_gone = |process| !self.member().is_process_alive(process);
        let freed = self.locked(clock, |heap| heap.free_writing_of(once_each(is_gone)));
        self.count(|metrics| metrics.reclaimed_blocks += freed);
        freed
    }
}
