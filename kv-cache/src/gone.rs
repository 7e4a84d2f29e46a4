//! Processes of a host that are gone: which, asked once each, and what they left unfinished.

use std::cell::RefCell;
use std::collections::HashMap;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::{Liveness, ProcessSlot};

use crate::cache::Cache;

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Frees what processes of this host were writing that died or left since: their payload, and
    /// the keys, which no other process of the host can publish until then. What wrote those
    /// payloads has stopped. Returns how many blocks were freed.
    ///
    /// [`reclaim_dead_processes`](crate::reclaim_dead_processes) does so too, and more; this is cheap
    /// enough to be called every few milliseconds. Reads this host's DRAM alone while there is nothing
    /// being written. Does nothing on a node that was declared dead.
    pub fn reclaim_unfinished(&self, clock: &impl Clock) -> u64 {
        if self.member().check_member().is_err() {
            return 0;
        }
        let is_gone = |process| !self.member().is_process_alive(process);
        let freed = self.locked(clock, |heap| heap.free_writing_of(once_each(is_gone)));
        self.local().count(|metrics| metrics.reclaimed_blocks += freed);
        freed
    }
}

/// `is_gone`, which asks the operating system, remembered for each process: who goes through many
/// records under the heap lock asks once for each process, and not for each record.
pub(crate) fn once_each(is_gone: impl Fn(ProcessSlot) -> bool) -> impl Fn(ProcessSlot) -> bool {
    let known = RefCell::new(HashMap::new());
    move |process| *known.borrow_mut().entry(process).or_insert_with(|| is_gone(process))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_process_is_asked_for_once() {
        let asked = Cell::new(0);
        let is_gone = once_each(|process| {
            asked.set(asked.get() + 1);
            process.0 == 3
        });
        let gone: Vec<_> = [3, 4, 3, 4, 4].map(|slot| is_gone(ProcessSlot(slot))).to_vec();
        assert_eq!(gone, [true, false, true, false, false]);
        assert_eq!(asked.get(), 2);
    }
}
