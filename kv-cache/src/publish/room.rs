//! Making room for a publish that finds none.

use cxl_shm::chunk::AllocateError;
use cxl_shm::clock::Clock;
use cxl_shm::lock::LockError;
use cxl_shm::node::Backend;
use cxl_shm::units::ChunkId;

use super::Refusal;
use crate::heap::SlotSize;
use crate::identity::BlockKey;
use crate::process::{Cache, ChunkWait};
use crate::upkeep::GivenBack;

/// What a publish lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortage {
    /// Payload slots of this size, for so many blocks.
    Payload(SlotSize, usize),
    /// Descriptors, for so many blocks.
    Descriptors(usize),
    /// A descriptor where a block with this key could be found.
    Place(BlockKey),
}

impl<B: Backend> Cache<'_, B> {
    /// Makes room for at least one block: takes a chunk, which is to be added to the directory; or
    /// evicts at most a batch; or empties a chunk of a vacant node; or turns a chunk of another
    /// size into one of this; or asks other nodes for one. All of them wait for no longer than
    /// `wait` allows, together. Once the lock of the chunk table was not acquired, only eviction is
    /// left.
    ///
    /// # Errors
    /// [`Refusal`]: there is nothing to evict, all of it is held or being written. It says why
    /// there is no chunk either: when the lock was not acquired, by the error of the lock.
    pub(super) fn make_room(
        &self,
        clock: &impl Clock,
        shortage: Shortage,
        wait: &mut ChunkWait,
    ) -> Result<Option<ChunkId>, Refusal> {
        let process_state = self.process_state();
        let evict = |size, want| {
            let evicted = self.evict(clock, size, want);
            self.count(|metrics| metrics.evictions_inline += u64::from(evicted > 0));
            evicted
        };
        let (size, refusal) = match shortage {
            Shortage::Descriptors(blocks) => {
                let evicted = evict(None, blocks);
                let most = self.areas().geometry().blocks_max();
                self.note_evicted_for_descriptors(evicted, most);
                if evicted == 0 {
                    return Err(self.segment_full(clock));
                }
                return Ok(None);
            }
            Shortage::Place(key) => {
                let evicted = self.locked(clock, |heap| {
                    heap.evict_for(&mut process_state.order(), clock.now_ms(), key)
                });
                self.count(|metrics| metrics.evicted_blocks += u64::from(evicted));
                if evicted {
                    return Ok(None);
                }
                return Err(self.segment_full(clock));
            }
            Shortage::Payload(size, blocks) => {
                let refusal = match self.take_chunk(clock, size, wait) {
                    Ok(chunk) => return Ok(Some(chunk)),
                    Err(AllocateError::Lock(error @ LockError::MembershipLost(_))) => {
                        return Err(refused_by(error));
                    }
                    Err(refusal) => refusal,
                };
                // Also when there is room that nobody grants: the new block is worth more than the
                // one that was unused for longest.
                if evict(Some(size), blocks) > 0 {
                    return Ok(None);
                }
                (size, refusal)
            }
        };
        // All that follows needs the same lock.
        if let Some(error) = wait.in_vain() {
            return Err(refused_by(error));
        }
        if let Some(chunk) = self.chunk_of_others(clock, size, wait) {
            return Ok(Some(chunk));
        }
        match wait.in_vain() {
            None => Err(refusal.into()),
            // During the wait a reader may have released a block of this node.
            Some(error @ LockError::MembershipLost(_)) => Err(refused_by(error)),
            Some(error) if evict(Some(size), 1) == 0 => Err(refused_by(error)),
            Some(_) => Ok(None),
        }
    }

    /// Takes a chunk that a vacant node had, or that has blocks of another size, or that another
    /// node gives back for it.
    fn chunk_of_others(
        &self,
        clock: &impl Clock,
        size: SlotSize,
        wait: &mut ChunkWait,
    ) -> Option<ChunkId> {
        if self.empty_an_orphan_within(clock, wait)
            && let Ok(chunk) = self.take_chunk(clock, size, wait)
        {
            return Some(chunk);
        }
        if wait.in_vain().is_some() {
            return None;
        }
        // What is in chunks of another size is of no use to a publish here now.
        let others = self.coldest(clock, |chunk| chunk.size != size);
        if self.give_one_back(clock, &others, wait) == GivenBack::Yes
            && let Ok(chunk) = self.take_chunk(clock, size, wait)
        {
            return Some(chunk);
        }
        let request = |left_ms| self.member().request_chunk(clock, left_ms, size.purpose());
        let chunk = wait.ask(clock, request, lock_error).ok()?;
        self.count(|metrics| metrics.chunks_added += 1);
        Some(chunk)
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
        let allocate = |left_ms| self.member().allocate_chunk(clock, left_ms, size.purpose());
        let taken = wait.ask(clock, allocate, lock_error);
        self.count(|metrics| metrics.chunks_added += u64::from(taken.is_ok()));
        taken
    }

    fn segment_full(&self, clock: &impl Clock) -> Refusal {
        let (blocks, slots) =
            self.locked(clock, |heap| (heap.directory.blocks(), heap.directory.slots()));
        Refusal::SegmentFull { blocks, slots }
    }
}

/// Why the lock of the chunk table was not acquired, if it was not.
fn lock_error(error: &AllocateError) -> Option<LockError> {
    match error {
        AllocateError::Lock(error) => Some(*error),
        _ => None,
    }
}

/// The refusal of a publish that did not have the lock of the chunk table.
fn refused_by(error: LockError) -> Refusal {
    match error {
        LockError::MembershipLost(lost) => lost.into(),
        error => AllocateError::Lock(error).into(),
    }
}
