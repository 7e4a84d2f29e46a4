//! Chunks whose memory failed: noted for all hosts, emptied by their owner (rules FAULT-C1 to FAULT-C4
//! in `cxl_shm`'s `chunk/failed.rs`).

use cxl_shm::chunk::note_failed;
use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{CHUNK_LOCK, ChunkState, failed_in};
use cxl_shm::lock::LockError;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, Extent};

use crate::process::{Cache, ChunkWait};

impl<B: Backend> Cache<'_, B> {
    /// Whether this process has lost payload that the chunk table does not note yet. One word.
    #[must_use]
    pub fn has_faults_to_note(&self) -> bool {
        self.process_state().failures().has_more(self.member().fabric())
    }

    /// Notes in the chunk table what this process lost since the last call (FAULT-C1), and empties
    /// chunks of this node that the table notes (FAULT-C3). Called now and then: it looks at the whole
    /// table. It waits for the lock of the table for at most `chunk_timeout_ms` at a time. Returns how
    /// many chunks were emptied, and are out of use.
    ///
    /// Does nothing on a node that was declared dead.
    pub fn retire_failed_chunks(&self, clock: &impl Clock, chunk_timeout_ms: u64) -> u64 {
        if self.check_member().is_err() {
            return 0;
        }
        self.note_failures(clock, chunk_timeout_ms);
        let failed = self.own_failed_chunks();
        self.process_state().failures().add(failed.iter().copied());
        let mut wait = ChunkWait::new(chunk_timeout_ms);
        let returned = self.count_returned(clock, &failed, &mut wait);
        if returned > 0 {
            tracing::warn!(
                node = %self.member().node(), chunks = returned,
                "took chunks out of use, because their memory failed (`rackline status`)"
            );
        }
        returned
    }

    fn count_returned(&self, clock: &impl Clock, chunks: &[ChunkId], wait: &mut ChunkWait) -> u64 {
        let mut returned = 0;
        for chunk in chunks {
            returned += u64::from(self.give_back(clock, *chunk, wait).is_given());
        }
        returned
    }

    /// Notes what this process lost, until the chunk table says so.
    fn note_failures(&self, clock: &impl Clock, timeout_ms: u64) {
        let (fabric, state) = (self.member().fabric(), self.process_state());
        state.note_lost(fabric);
        let Some((faults, new, lost)) = state.failures().to_note(fabric) else { return };
        let mut noted = 0;
        for lost in &lost {
            match self.note_lost(clock, timeout_ms, *lost) {
                Ok(chunks) => noted += chunks,
                // Another turn tries again.
                Err(error) => {
                    tracing::debug!(%error, "cannot note failed memory in the chunk table yet");
                    return;
                }
            }
        }
        state.failures().set_noted(faults);
        self.count(|metrics| {
            metrics.memory_faults += new;
            metrics.failed_chunks += noted;
        });
        tracing::warn!(
            node = %self.member().node(), faults = new, ?lost,
            "the device could not read payload of the pool: the blocks there are misses, and their \
             chunks are taken out of use; look for memory errors (`dmesg`, `cxl list --media-errors`)"
        );
    }

    /// Notes one range (FAULT-C1). Returns how many entries had no such note.
    fn note_lost(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        lost: Extent,
    ) -> Result<u64, LockError> {
        let (layout, fabric) = (self.areas().layout(), self.member().fabric());
        let mut noted = 0;
        for (chunk, failed) in failed_in(layout, lost) {
            let entry = layout.chunk_entry(chunk).fresh(fabric);
            if entry.is_ok_and(|entry| entry.with_failed(Some(failed)) == entry) {
                continue;
            }
            let _guard = self.member().lock_shared(CHUNK_LOCK, clock, timeout_ms)?;
            // LOCK-L1: others have written the entry since.
            fabric.refresh(layout.chunk_entry(chunk).range());
            noted += u64::from(note_failed(self.member(), chunk, failed));
        }
        Ok(noted)
    }

    /// The chunks of this node that the chunk table notes, freshly read.
    fn own_failed_chunks(&self) -> Vec<ChunkId> {
        let (layout, fabric) = (self.areas().layout(), self.member().fabric());
        fabric.refresh(layout.chunk_table());
        let is_failed = |chunk: &ChunkId| {
            layout.chunk_entry(*chunk).cached(fabric).is_ok_and(|entry| {
                let owned = matches!(entry.state(),
                    Some(ChunkState::Owned { owner, .. }) if owner == self.member().node());
                owned && entry.failed().is_some()
            })
        };
        (0..layout.chunks()).map(ChunkId).filter(is_failed).collect()
    }
}
