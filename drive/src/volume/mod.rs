//! One folder of a store: segments, the journal, group commit, reopening, garbage.
//!
//! Durability:
//!
//! - **DRIVE-D1**: A commit makes things durable in this order: extents; tables and the pages of the
//!   journal; the names of new files; the manifest under another name; its place, by a rename; the
//!   folder. Blocks are found, and acknowledged, after the last step.
//! - **DRIVE-D2**: Bytes that a manifest may name are never written again. A segment is filled once,
//!   a number of a segment, table or journal is used once, and a journal only grows. So a place on
//!   the drive names the same block for ever, and a lost removal cannot bring another block.
//! - **DRIVE-D3**: What is not in the journal that the manifest names is not there. Memory is given
//!   back, and files are removed, after the commit that no longer names them.
//! - **DRIVE-D4**: Before a reopened folder removes a file, it makes the manifest that it has read
//!   durable. A process may have died between a rename and its sync.
//! - **DRIVE-D5**: After a failed commit nothing of it is believed. Its segment is closed, writes
//!   under way in that segment fail, and the next commit begins a new journal.
//! - **DRIVE-D7**: A write that was given up changes nothing when it ends. Until all such writes of a
//!   folder have ended, nothing is written to the folder: its device does not answer.
//! - **DRIVE-D6**: A block is returned only when its checksum is that of its publication. Otherwise
//!   the block leaves the folder.
//!
//! Clears:
//!
//! - **DRIVE-C1**: What a folder has carried out of a region's requests to clear is in its manifest, so
//!   it is durable with the removals, by one rename. After damage to the journal nothing counts as
//!   carried out: removed blocks may be back.
//!
//! Room:
//!
//! - **DRIVE-G1**: The pages of a segment are live, reserved, leaving, garbage, given back, unknown
//!   (not yet scanned) or never used, each exactly one of these. No live extent overlaps another.
//! - **DRIVE-G2**: Segments and metadata never have more than the capacity allocated. One segment is
//!   kept for compaction. A file that cannot be removed counts until it is.

mod batch;
mod collect;
mod commit;
mod health;
mod invariants;
mod journal;
mod late;
mod moves;
mod read;
mod remove;
mod reopen;
mod repair;
mod replay;
mod salvage;
mod scan;
mod segment;
mod state;
mod tables;
mod traffic;
mod usage;
mod write;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::Clock;

use crate::format::FileName;
use crate::io::{Drive, FileId, PAGE_BYTES};
use journal::Log;
use state::State;
use traffic::Transfers;

pub use crate::index::EncodedBlocks;
pub use collect::Collected;
pub use commit::CommitError;
pub use late::{SILENT_AFTER, WriteTicket};
pub use moves::{Flow, Moves};
pub use read::{ReadDone, ReadMiss, StoredBlock, Unverified, checksum};
pub use reopen::{Loss, OpenVolumeError};
pub use repair::{rebuild_manifest, store_of};

pub(crate) use crate::format::STORE_UNKNOWN;
pub(crate) use reopen::{most_bytes, segments_in, segments_of};
pub(crate) use repair::has_manifest;
pub use traffic::Traffic;
pub use usage::{Decoded, Endurance, Payload, Usage};
pub use write::{BlockSpec, Reservation, ReserveError, WriteDone, WriteError};

/// Least bytes of a segment.
pub const SEGMENT_BYTES_MIN: u64 = 16 * PAGE_BYTES as u64;
/// Least capacity of a folder.
pub const CAPACITY_BYTES_MIN: u64 = 1 << 20;

/// How a folder is opened.
#[derive(Clone)]
pub struct VolumeOptions {
    /// Bytes that the folder may have allocated, metadata among them.
    pub capacity_bytes: u64,
    /// Bytes of a segment of a new folder. `None`: as fits the capacity.
    pub segment_bytes: Option<u64>,
    /// The host that the folder is to belong to.
    pub host: [u8; 16],
    /// Whether a folder of another host is taken over.
    pub take_over: bool,
    /// Time of this host.
    pub clock: Arc<dyn Clock + Send + Sync>,
}

impl fmt::Debug for VolumeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeOptions")
            .field("capacity_bytes", &self.capacity_bytes)
            .field("segment_bytes", &self.segment_bytes)
            .finish_non_exhaustive()
    }
}

/// One folder of a store, owned by this process.
#[derive(Debug)]
pub struct Volume {
    drive: Box<dyn Drive>,
    options: VolumeOptions,
    transfers: Arc<Transfers>,
    /// Identity of the folder.
    folder: [u8; 16],
    /// Identity of the store that it belongs to.
    store: [u8; 16],
    segment_bytes: u64,
    /// How long the folder was open before, and when it was opened, in milliseconds.
    open_ms_before: u64,
    opened_ms: u64,
    /// Held for a whole commit. Taken before `state`.
    log: Mutex<Log>,
    /// Held for moments, never during a call to the drive.
    state: Mutex<State>,
    /// Held while a segment is made.
    opening: Mutex<()>,
}

impl Volume {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.options.clock.now_ms()
    }

    /// Which engine moves payload.
    #[must_use]
    pub fn engine(&self) -> crate::io::EngineKind {
        self.drive.engine()
    }

    /// Bytes kept for the manifest, journals and tables.
    fn metadata_bytes_max(&self) -> u64 {
        metadata_bytes_max(self.options.capacity_bytes, self.segment_bytes)
    }

    /// Pages that segments may have allocated.
    fn segment_pages_max(&self) -> u64 {
        let bytes = self.options.capacity_bytes.saturating_sub(self.metadata_bytes_max());
        bytes / u64::from(PAGE_BYTES)
    }

    fn pages_a_segment(&self) -> u32 {
        u32::try_from(self.segment_bytes / u64::from(PAGE_BYTES)).unwrap_or(u32::MAX)
    }

    /// How long the folder was open since it was made, in milliseconds.
    fn open_ms(&self) -> u64 {
        self.open_ms_before + (self.now_ms() - self.opened_ms)
    }

    /// Removes files that no manifest names, each with the pages that it has allocated of what
    /// segments may have. The pages of a file that stays count as allocated (DRIVE-G2), and the next
    /// commit tries again.
    fn remove_files(&self, files: impl IntoIterator<Item = (FileName, u32)>) {
        for (name, pages) in files {
            match self.drive.remove(&name.to_string()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!("cannot remove {name}: {error}; the next commit tries again");
                    self.state().unremoved.push((name, pages));
                }
            }
        }
    }
}

fn metadata_bytes_max(capacity_bytes: u64, segment_bytes: u64) -> u64 {
    let least = (capacity_bytes / 32).max(CAPACITY_BYTES_MIN / 4);
    // A table has a page at least.
    least + capacity_bytes / segment_bytes * u64::from(PAGE_BYTES)
}

/// Room for extents that a new folder of this capacity has: what [`Usage::room`] says of it.
#[must_use]
pub fn room_bytes(capacity_bytes: u64) -> u64 {
    let segment_bytes = reopen::fitting_segment_bytes(capacity_bytes);
    capacity_bytes.saturating_sub(metadata_bytes_max(capacity_bytes, segment_bytes))
}

/// Where page `page` begins, in bytes.
fn offset_of(page: u32) -> u64 {
    u64::from(page) * u64::from(PAGE_BYTES)
}

/// Bytes of so many pages in memory.
fn bytes_of(pages: u32) -> usize {
    pages as usize * PAGE_BYTES as usize
}

/// A file that is open until the end of a step.
struct Opened<'a> {
    drive: &'a dyn Drive,
    file: FileId,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.drive.close(self.file);
    }
}

#[cfg(test)]
mod tests;
