//! What a process knows of memory that failed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::failed_in;
use cxl_shm::units::{ChunkId, Extent};

use crate::format::Areas;

#[expect(clippy::disallowed_types, reason = "a number of this process alone, in its own memory")]
type Number = std::sync::atomic::AtomicU64;

/// Chunks in which no payload is taken, and faults that the chunk table does not note yet.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Faults that were looked at.
    seen: Number,
    /// Faults that the chunk table notes, and those that were counted.
    noted: Number,
    is_any: AtomicBool,
    chunks: Mutex<BTreeSet<ChunkId>>,
}

impl Failures {
    /// Takes in the chunks in which this process has lost payload since the last call.
    pub(crate) fn look<F: Fabric>(&self, fabric: &F, areas: &Areas) {
        let faults = fabric.faults();
        if faults != self.seen.load(Ordering::Relaxed) {
            let lost = fabric.lost_ranges();
            self.add(
                lost.into_iter().flat_map(|lost| failed_in(areas.layout(), lost)).map(|it| it.0),
            );
            self.seen.store(faults, Ordering::Relaxed);
        }
    }

    /// Takes in chunks that the chunk table notes.
    pub(crate) fn add(&self, chunks: impl IntoIterator<Item = ChunkId>) {
        let mut failed = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        failed.extend(chunks);
        self.is_any.store(!failed.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn has(&self, chunk: ChunkId) -> bool {
        self.is_any.load(Ordering::Relaxed)
            && self.chunks.lock().unwrap_or_else(PoisonError::into_inner).contains(&chunk)
    }

    /// Whether there were faults that the chunk table does not note.
    pub(crate) fn has_more<F: Fabric>(&self, fabric: &F) -> bool {
        fabric.faults() != self.noted.load(Ordering::Relaxed)
    }

    /// What the chunk table has to note: the number of faults so far, how many of them are new, and
    /// the lost payload. `None` when everything is noted.
    pub(crate) fn to_note<F: Fabric>(&self, fabric: &F) -> Option<(u64, u64, Vec<Extent>)> {
        let (faults, noted) = (fabric.faults(), self.noted.load(Ordering::Relaxed));
        (faults != noted).then(|| (faults, faults.saturating_sub(noted), fabric.lost_ranges()))
    }

    /// The chunk table notes the first `faults` faults.
    pub(crate) fn set_noted(&self, faults: u64) {
        self.noted.store(faults, Ordering::Relaxed);
    }
}
