//! Recency: what this process used, told to the owners of the blocks, lazily.
//!
//! A fetch notes the blocks that it read, in the process's own memory. Now and then they are stamped
//! with the tick of their owner, many at once. That is a hint: nobody waits for it, and what is lost
//! with a process costs a worse choice.

use std::sync::PoisonError;

use cxl_shm::fabric::{Fabric, HostMemory, PublishBatch};
use cxl_shm::member::Liveness;

use crate::descriptor::Handle;
use crate::heap::LockedHeap;
use crate::local::Local;
use crate::stamp::tick_of;

/// Uses that are noted at most: later ones are forgotten until these are told.
const NOTED_MAX: usize = 1 << 14;
/// Uses that are told under one hold of the heap lock.
const TOLD_AT_ONCE: usize = 256;
/// Uses from which on whoever takes the heap lock tells them, when nobody does in the background.
const NOTED_MANY: usize = 1 << 10;

impl Local {
    /// Notes that blocks were used.
    pub(crate) fn touch(&self, handles: impl Iterator<Item = Handle>) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        let room = NOTED_MAX.saturating_sub(touched.len());
        touched.extend(handles.take(room));
    }

    /// Whether so many uses are noted that they are to be told soon.
    pub(crate) fn has_many_touches(&self) -> bool {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).len() >= NOTED_MANY
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> LockedHeap<'_, F, H, L> {
    /// Stamps what this process has used, a bounded part of it. Returns whether there is more that
    /// can be told now: nothing can while another thread of the process is at the replica.
    pub(crate) fn flush_touches(&mut self, local: &Local) -> bool {
        let Some(replica) = local.try_replica() else { return false };
        let positions = self.areas.layout().nodes().map(|node| replica.position(node));
        let positions: Vec<Option<u64>> = positions.collect();
        drop(replica);
        let (mut touched, more) = {
            let mut noted = local.touched.lock().unwrap_or_else(PoisonError::into_inner);
            let part = noted.len().min(TOLD_AT_ONCE);
            (noted.drain(..part).collect::<Vec<_>>(), !noted.is_empty())
        };
        // So that each line is written back once.
        touched.sort_unstable_by_key(|handle| (handle.owner(), handle.slot()));
        touched.dedup_by_key(|handle| (handle.owner(), handle.slot()));
        let mut told = 0;
        let mut batch = PublishBatch::new(self.fabric());
        for handle in touched {
            let (owner, slot) = (handle.owner(), handle.slot());
            let Some(Some(position)) = positions.get(owner.index()) else { continue };
            let stamp = self.stamps.own(self.fabric(), owner, slot);
            let used = stamp.touch(tick_of(*position));
            if used != stamp {
                // H4: the whole word as it was but for the tick, under the lock of all who write it.
                batch.word(self.stamps.word(owner, slot), used.word());
                told += 1;
            }
        }
        batch.publish();
        local.count(|metrics| metrics.told_uses += told);
        more
    }
}
