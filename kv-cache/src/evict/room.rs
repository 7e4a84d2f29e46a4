//! Making room for a publish that finds none.

use cxl_shm::alloc::AllocateError;
use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::layout::ChunkState;
use cxl_shm::lock::LockError;
use cxl_shm::member::Liveness;
use cxl_shm::units::ChunkId;

use super::give_back::GivenBack;
use crate::cache::Cache;
use crate::heap::SlotSize;
use crate::key::BlockKey;
use crate::publish::Refusal;

/// What a publish lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// Payload slots of this size, for so many blocks.
    Payload(SlotSize, usize),
    /// Descriptors, for so many blocks.
    Descriptors(usize),
    /// A descriptor where a block with this key could be found.
    Place(BlockKey),
}

/// For how long one publish waits for the lock of the chunk table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkWait {
    timeout_ms: u64,
    /// Why the lock was not had. This publish does not ask for it again.
    in_vain: Option<LockError>,
}

impl ChunkWait {
    /// At most `timeout_ms` milliseconds each time, and not again once the lock was not had.
    pub(crate) fn new(timeout_ms: u64) -> Self {
        Self { timeout_ms, in_vain: None }
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> Cache<'_, F, H, L> {
    /// Makes room for at least one block: takes a chunk, which is to be added to the directory; or
    /// evicts at most a batch; or empties a chunk of a vacant node; or turns a chunk of another size
    /// into one of this; or asks other nodes for one. When the lock of the chunk table is not to be
    /// had, only eviction is left.
    ///
    /// # Errors
    /// [`Refusal`]: there is nothing to evict, all of it is held or being written.
    pub(crate) fn make_room(
        &self,
        clock: &impl Clock,
        lack: Lack,
        wait: &mut ChunkWait,
    ) -> Result<Option<ChunkId>, Refusal> {
        let local = self.local();
        let evict = |size, want| {
            let evicted = self.evict(clock, size, want);
            local.count(|metrics| metrics.evictions_inline += u64::from(evicted > 0));
            evicted > 0
        };
        let (size, refusal) = match lack {
            Lack::Descriptors(blocks) if evict(None, blocks) => return Ok(None),
            Lack::Place(key) => {
                if self.locked(clock, |heap| heap.evict_for(local, clock.now_ms(), key)) {
                    return Ok(None);
                }
                return Err(self.segment_full(clock));
            }
            Lack::Descriptors(_) => return Err(self.segment_full(clock)),
            Lack::Payload(size, blocks) => {
                let refusal = match self.take_chunk(clock, size, wait) {
                    Ok(chunk) => return Ok(Some(chunk)),
                    Err(AllocateError::Lock(LockError::MembershipLost(lost))) => {
                        return Err(lost.into());
                    }
                    Err(refusal) => refusal,
                };
                // Also when there is room that nobody grants: the new block is worth more than the
                // one that was unused for longest.
                if evict(Some(size), blocks) {
                    return Ok(None);
                }
                (size, refusal)
            }
        };
        // All that follows needs the same lock.
        if wait.in_vain.is_some() {
            return Err(refusal.into());
        }
        if self.empty_a_ward(clock, wait.timeout_ms)
            && let Ok(chunk) = self.take_chunk(clock, size, wait)
        {
            return Ok(Some(chunk));
        }
        // What is in chunks of another size is of no use to anybody who publishes here now.
        let others = self.coldest(clock, |chunk| chunk.size != size);
        match self.give_one_back(clock, &others, wait.timeout_ms) {
            GivenBack::Yes => {
                if let Ok(chunk) = self.take_chunk(clock, size, wait) {
                    return Ok(Some(chunk));
                }
            }
            GivenBack::NoLock(error) => {
                wait.in_vain = Some(error);
                return Err(AllocateError::Lock(error).into());
            }
            GivenBack::Held | GivenBack::Busy => {}
        }
        match self.member().request_chunk(clock, wait.timeout_ms, size.purpose()) {
            Ok(chunk) => {
                local.count(|metrics| metrics.chunks_added += 1);
                return Ok(Some(chunk));
            }
            Err(AllocateError::Lock(error)) => wait.in_vain = Some(error),
            Err(AllocateError::Exhausted { .. }) => {}
        }
        Err(refusal.into())
    }

    /// Takes a free chunk of the region, if there is one. Takes no lock when there is none.
    fn take_chunk(
        &self,
        clock: &impl Clock,
        size: SlotSize,
        wait: &mut ChunkWait,
    ) -> Result<ChunkId, AllocateError> {
        if !self.has_free_chunk() {
            let layout = self.areas().layout();
            let own = self.member().owned_chunks().len();
            return Err(AllocateError::Exhausted {
                chunks: layout.chunks(),
                chunk_bytes: layout.geometry().chunk_bytes,
                own: u32::try_from(own).unwrap_or(u32::MAX),
            });
        }
        if let Some(error) = wait.in_vain {
            return Err(error.into());
        }
        let taken = self.member().allocate_chunk(clock, wait.timeout_ms, size.purpose());
        if let Err(AllocateError::Lock(error)) = taken {
            wait.in_vain = Some(error);
        }
        self.local().count(|metrics| metrics.chunks_added += u64::from(taken.is_ok()));
        taken
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

    fn segment_full(&self, clock: &impl Clock) -> Refusal {
        let (blocks, slots) =
            self.locked(clock, |heap| (heap.directory.blocks(), heap.directory.slots()));
        Refusal::SegmentFull { blocks, slots }
    }
}
