//! Recency: what this process used, told to the owners of the blocks, lazily.
//!
//! A fetch notes the blocks that it read, in the process's own memory. Now and then they are
//! marked with the tick of their owner, many at once. That is a hint: nobody waits for it, and
//! what is lost with a process costs a worse choice.

use std::sync::PoisonError;

use cxl_shm::node::Backend;

use super::ProcessState;
use crate::format::Handle;
use crate::heap::LockedHeap;

/// Uses that are noted at most: later ones are forgotten until these are told.
const NOTED_MAX: usize = 1 << 14;
/// Uses that are told under one hold of the heap lock.
const TOLD_AT_ONCE: usize = 256;
/// The number of uses from which the next holder of the heap lock tells them, when no background
/// thread does.
const NOTED_MANY: usize = 1 << 10;

impl ProcessState {
    /// Notes that blocks were used.
    pub(crate) fn touch(&self, handles: impl Iterator<Item = Handle>) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        let room = NOTED_MAX.saturating_sub(touched.len());
        touched.extend(handles.take(room));
    }

    /// Whether so many uses are noted that they are to be told soon.
    pub(super) fn has_many_touches(&self) -> bool {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).len() >= NOTED_MANY
    }

    /// Marks what this process has used, a bounded part of it. Returns whether there is more that
    /// can be told now: nothing can while another thread of the process is at the replica.
    pub(crate) fn flush_touches<B: Backend>(&self, heap: &mut LockedHeap<'_, B>) -> bool {
        let Some(replica) = self.try_replica() else { return false };
        let positions = heap.areas.layout().nodes().map(|node| replica.position(node));
        let positions: Vec<Option<u64>> = positions.collect();
        drop(replica);
        let (touched, more) = {
            let mut noted = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
            let part = noted.len().min(TOLD_AT_ONCE);
            (noted.drain(..part).collect::<Vec<_>>(), !noted.is_empty())
        };
        let told = heap.write_uses(touched, &positions);
        self.count(heap, |metrics| metrics.told_uses += told);
        more
    }
}
