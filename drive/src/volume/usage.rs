//! What a folder has, in figures.

use super::Volume;
use super::offset_of;
use crate::io::PAGE_BYTES;

/// What the capacity of a folder is used for. All in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// What may be allocated, metadata among it.
    pub capacity: u64,
    /// Kept for the manifest, journals and tables.
    pub metadata_kept: u64,
    /// What these take of it.
    pub metadata: u64,
    /// Extents of blocks that are found.
    pub live: u64,
    /// Extents that are written, or wait for a commit.
    pub reserved: u64,
    /// Extents that wait for the commit of their removal.
    pub leaving: u64,
    /// Extents without a block that have not been given back.
    pub garbage: u64,
    /// Segments that are not scanned yet.
    pub unknown: u64,
    /// What the open segment has left.
    pub never_used: u64,
    /// What new segments may take.
    pub free: u64,
    /// Blocks that are found.
    pub blocks: u64,
}

/// How much was written to a device.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Endurance {
    /// Bytes written since the folder was made, payload and metadata.
    pub written_bytes: u64,
    /// How long the folder was open, in milliseconds.
    pub open_ms: u64,
    /// How many times the capacity was written, for each day that the folder was open.
    pub drive_writes_per_day: f64,
}

impl Volume {
    /// What the capacity is used for.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let log = self.log();
        let metadata = self.metadata_bytes(&log);
        let state = self.state();
        let sum = |part: fn(&super::segment::Segment) -> u32| {
            state.all().map(|(_, segment)| offset_of(part(segment))).sum()
        };
        let room = self.segment_pages_max() * u64::from(PAGE_BYTES);
        let taken = state.allocated_pages() * u64::from(PAGE_BYTES);
        Usage {
            capacity: self.options.capacity_bytes,
            metadata_kept: self.metadata_bytes_max(),
            metadata,
            live: sum(|it| it.live),
            reserved: sum(|it| it.under_way + it.waiting),
            leaving: sum(|it| it.leaving),
            garbage: sum(super::segment::Segment::garbage_pages),
            unknown: sum(super::segment::Segment::unknown),
            never_used: sum(super::segment::Segment::never_used),
            free: room.saturating_sub(taken),
            blocks: state.index.len() as u64,
        }
    }

    /// How much was written to the device.
    #[must_use]
    pub fn endurance(&self) -> Endurance {
        const DAY_MS: f64 = 86_400_000.0;
        let log = self.log();
        let payload = self.state().payload_bytes - log.counted_payload;
        let written_bytes = log.written_bytes + payload;
        let open_ms = log.open_ms_before + (self.now_ms() - log.opened_ms);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rounds = written_bytes as f64 / self.options.capacity_bytes as f64;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let days = (open_ms.max(1) as f64) / DAY_MS;
        Endurance { written_bytes, open_ms, drive_writes_per_day: rounds / days }
    }

    /// Blocks that were found damaged since the folder was opened.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.state().damaged
    }

    /// Reads and writes that failed since the folder was opened, and whether reads and writes are
    /// refused at present.
    #[must_use]
    pub fn failures(&self) -> [(u64, bool); 2] {
        let state = self.state();
        [state.health.reads, state.health.writes].map(|mark| (mark.failures, mark.is_set()))
    }
}
