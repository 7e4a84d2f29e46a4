//! Descriptors that do not read: torn for a moment, or damaged for good.
//!
//! A line is written word by word, and a readable one is written again in place (EVICTING, and back
//! to READY): a reader that comes in between finds its seal broken, for as long as the writer does
//! not get on. So a reader that finds a torn line looks again, a bounded number of times (MEM-M5),
//! before calling it damage; and its owner removes it only if it does not read under the heap lock
//! either, which keeps every writer out.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::node::Backend;

use crate::format::{Descriptor, Handle, SlotContent};
use crate::heap::LockedHeap;
use crate::process::Cache;
use crate::replica::Miss;

/// How often a torn line is looked at again. A writer that was interrupted in the middle comes to
/// its end meanwhile, if it only waited for this processor.
const LOOKS_MAX: u32 = 16;

/// Lets a writer that waits for this processor get on. Waits for nothing.
fn give_way() {
    std::thread::yield_now();
}

impl<B: Backend> Cache<'_, B> {
    /// As [`look`](Self::look), and once more, freshly, for as long as the line is torn.
    pub(crate) fn look_again(&self, handle: Handle) -> Result<Descriptor, Miss> {
        let mut looked = self.look(handle);
        for _ in 0..LOOKS_MAX {
            let (Err(Miss::Torn), Some(segment)) = (looked, self.areas().segment_of(handle)) else {
                break;
            };
            give_way();
            self.member().fabric().refresh(segment.range(handle.slot()));
            looked = self.look(handle);
        }
        looked
    }

    /// Removes those blocks of this node whose descriptors cannot be read, as a fetch found
    /// ([`Miss::Torn`], [`Miss::Malformed`]): nobody can use them. Returns how many; handles of
    /// blocks that are gone, or another node's, are passed over.
    ///
    /// A block that can be read was only just being written when the fetch came by: it stays, and
    /// this process believes in it again.
    pub fn retire_unreadable(&self, clock: &impl Clock, handles: &[Handle]) -> u64 {
        let (freed, readable) = self.locked(clock, |heap| heap.free_unreadable(handles));
        let mut replica = self.process_state().replica();
        for block in readable {
            replica.believe(block.handle, block.key);
        }
        drop(replica);
        if freed > 0 {
            // Which payload is free again, and that readers are to forget the block, only a sweep
            // can tell: the next process that takes the lock does it.
            self.locked(clock, |_| ());
        }
        self.count(|metrics| metrics.retired_blocks += freed);
        freed
    }
}

impl<B: Backend> LockedHeap<'_, B> {
    /// Frees the blocks whose descriptors cannot be read. Returns how many, and which can be.
    fn free_unreadable(&mut self, handles: &[Handle]) -> (u64, Vec<Descriptor>) {
        let (mut bad, mut readable) = (Vec::new(), Vec::new());
        let slots = self.directory.slots();
        for handle in handles.iter().filter(|it| it.owner() == self.node() && it.slot() < slots) {
            match self.segment.own(self.fabric(), handle.slot()) {
                Err(_) => bad.push(*handle),
                Ok(SlotContent::Block(block)) if block.handle == *handle && block.is_readable() => {
                    readable.push(block);
                }
                Ok(_) => {}
            }
        }
        (self.free_ready(&bad), readable)
    }
}
