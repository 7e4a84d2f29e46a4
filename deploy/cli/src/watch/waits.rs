//! Which nodes want or hold locks between hosts, as far as the region says: a node says that it wants
//! or holds a lock in one word. A lock that only one node wants it has, or is about to get.

use std::collections::BTreeMap;

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::Layout;
use cxl_shm::lock::is_wanted;
use cxl_shm::units::LockId;
use serde::Serialize;

/// Shorter waits are usual, and are not shown.
const WAIT_MS_MIN: u64 = 1_000;

/// A lock that a node wants or holds for long.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct LockWait {
    pub(crate) lock: u32,
    pub(crate) node: u16,
    /// For how long the node was seen to want or hold it, without an end between two looks.
    pub(crate) for_ms: u64,
}

/// What was seen of the requests of an arbitrated region.
#[derive(Debug, Default)]
pub(crate) struct Waits(BTreeMap<(u32, u16), (u64, u64)>);

impl Waits {
    /// Looks, freshly.
    pub(crate) fn look(&mut self, layout: &Layout, fabric: &impl Fabric, now_ms: u64) {
        let mut wanted = Vec::new();
        for node in layout.nodes() {
            fabric.refresh(layout.requests(node).range());
            for lock in 0..layout.locks() {
                let word = layout.request(node, LockId(lock)).cached(fabric);
                if is_wanted(word) {
                    wanted.push(((lock, node.0), word));
                }
            }
        }
        self.take(&wanted, now_ms);
    }

    /// Takes note of request words. A word changes with every request.
    fn take(&mut self, wanted: &[((u32, u16), u64)], now_ms: u64) {
        let before = std::mem::take(&mut self.0);
        for (whose, word) in wanted {
            let since_ms = match before.get(whose) {
                Some((its, since_ms)) if its == word => *since_ms,
                _ => now_ms,
            };
            self.0.insert(*whose, (*word, since_ms));
        }
    }

    /// Those that last.
    pub(crate) fn long(&self, now_ms: u64) -> Vec<LockWait> {
        let waits = self.0.iter().map(|((lock, node), (_, since_ms))| LockWait {
            lock: *lock,
            node: *node,
            for_ms: now_ms.saturating_sub(*since_ms),
        });
        waits.filter(|wait| wait.for_ms >= WAIT_MS_MIN).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_lasts_is_a_wait() {
        let mut waits = Waits::default();
        waits.take(&[((3, 1), 7), ((3, 2), 9)], 1000);
        assert_eq!(waits.long(1000), []);
        // Node 1 asks again, node 2 still waits.
        waits.take(&[((3, 1), 11), ((3, 2), 9)], 4000);
        assert_eq!(waits.long(4000), [LockWait { lock: 3, node: 2, for_ms: 3000 }]);
        waits.take(&[], 5000);
        assert_eq!(waits.long(9000), []);
    }
}
