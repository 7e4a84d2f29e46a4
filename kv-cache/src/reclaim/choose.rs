//! Which orphan is next.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::ChunkState;
use cxl_shm::lifecycle::is_vacant;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, NodeId};

use super::orphan::{Emptied, Orphan};
use crate::heap::SlotSize;
use crate::process::{Cache, ChunkWait};

/// For how long an orphan is left alone in which a chunk could not be emptied: a look at all that
/// it published costs much, and holds last for seconds.
pub(crate) const AGAIN_MS: u64 = 1000;
/// Orphans that are tried in one go.
const TRIED_MAX: usize = 4;

impl<B: Backend> Cache<'_, B> {
    /// Gives a chunk of a node whose slot nobody has back to the region: of the chunks with the fewest
    /// blocks, the chunk that was used longest ago and in which nobody holds anything. Returns whether
    /// it did. Tries several orphans, first the orphans that were left alone for the longest time.
    ///
    /// Waits for the lock of the chunk table, for at most `timeout_ms` in all; evicts nothing while
    /// that is not available.
    pub(crate) fn empty_an_orphan(&self, clock: &impl Clock, timeout_ms: u64) -> bool {
        self.empty_an_orphan_within(clock, &mut ChunkWait::new(timeout_ms))
    }

    /// As [`empty_an_orphan`](Self::empty_an_orphan), within what a call may still wait.
    pub(crate) fn empty_an_orphan_within(&self, clock: &impl Clock, wait: &mut ChunkWait) -> bool {
        for (node, chunks) in self.orphans(clock.now_ms()).into_iter().take(TRIED_MAX) {
            if !self.take_orphan(clock, node) {
                continue;
            }
            let emptied = Orphan::of(self, node).empty_a_chunk(clock, chunks, wait);
            self.leave_orphan(clock);
            match emptied {
                Emptied::Given => {
                    self.count(|metrics| metrics.inherited_chunks += 1);
                    return true;
                }
                Emptied::NoLock => return false,
                Emptied::Rejoined => {}
                Emptied::Held => {
                    let again_at_ms = clock.now_ms().saturating_add(AGAIN_MS);
                    let orphans = &self.process_state().orphans;
                    let mut orphans = orphans.lock().unwrap_or_else(PoisonError::into_inner);
                    orphans.entry(node).or_default().again_at_ms = again_at_ms;
                }
            }
        }
        false
    }

    /// The vacant nodes that have chunks of payload, and these, in the order in which they are
    /// tried.
    pub(crate) fn orphans(&self, now_ms: u64) -> Vec<(NodeId, Vec<ChunkId>)> {
        let (member, layout) = (self.member(), self.areas().layout());
        let (fabric, chunk_bytes) = (member.fabric(), layout.geometry().chunk_bytes);
        fabric.refresh(layout.chunk_table());
        let mut chunks: BTreeMap<NodeId, Vec<ChunkId>> = BTreeMap::new();
        for chunk in (0..layout.chunks()).map(ChunkId) {
            let entry = layout.chunk_entry(chunk).cached(fabric).ok();
            if let Some(ChunkState::Owned { owner, purpose, .. }) = entry.and_then(|it| it.state())
                && owner != member.node()
                && layout.node(owner.0).is_some()
                && SlotSize::from_purpose(purpose, chunk_bytes).is_some()
            {
                chunks.entry(owner).or_default().push(chunk);
            }
        }
        let again_at_ms = |node: &NodeId| {
            let watches =
                self.process_state().orphans.lock().unwrap_or_else(PoisonError::into_inner);
            watches.get(node).map_or(0, |watch| watch.again_at_ms)
        };
        let mut orphans: Vec<_> = chunks
            .into_iter()
            .map(|(node, chunks)| (again_at_ms(&node), node, chunks))
            .filter(|(at_ms, node, _)| *at_ms <= now_ms && is_vacant(layout, fabric, *node))
            .collect();
        orphans.sort_by_key(|(at_ms, _, _)| *at_ms);
        orphans.into_iter().map(|(_, node, chunks)| (node, chunks)).collect()
    }
}
