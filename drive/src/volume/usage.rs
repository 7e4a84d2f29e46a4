//! What a folder has, in figures.

use kv_cache::NamespaceTag;

use super::Volume;
use super::moves::Moves;
use super::offset_of;
use crate::index::EncodedBlocks;
use crate::io::PAGE_BYTES;
use crate::policy::drive_writes_per_day;

/// What comes free when no segment can be made: one part of the room in so many, and so many segments
/// at most.
const WANTED_SHARE: u64 = 16;
const WANTED_SEGMENTS: u64 = 16;

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
    /// What segments have allocated that are not scanned yet.
    pub unknown: u64,
    /// What the open segment has left.
    pub never_used: u64,
    /// What new segments may take.
    pub free: u64,
    /// Blocks that are found.
    pub blocks: u64,
    /// Those of them that are encoded.
    pub encoded: EncodedBlocks,
}

impl Usage {
    /// What segments may take of the capacity: watermarks are shares of it.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.metadata_kept)
    }

    /// What extents of blocks take of the room, and of blocks that are coming.
    #[must_use]
    pub const fn in_use(&self) -> u64 {
        self.live + self.reserved + self.unknown
    }
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

/// What was decoded of blocks that were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decoded {
    /// Encoded blocks.
    pub blocks: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Nanoseconds that this computed.
    pub cpu_ns: u64,
}

/// Payload of a folder, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// Of the blocks that are found, as it was published.
    pub bytes: u64,
    /// What the payload of encoded blocks takes as it is written, in whole pages of 4 KiB.
    pub encoded_bytes: u64,
    /// That reads have brought since the folder was opened, checked, and decoded where it was encoded.
    pub decoded_bytes: u64,
}

impl Volume {
    /// What was decoded since the folder was opened.
    #[must_use]
    pub fn decoded(&self) -> Decoded {
        self.state().decoded
    }

    /// What the capacity is used for.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.state();
        let metadata = state.metadata_bytes();
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
            garbage: sum(super::segment::Segment::garbage_pages)
                + state.unremoved_pages() * u64::from(PAGE_BYTES),
            unknown: sum(super::segment::Segment::unknown),
            never_used: sum(super::segment::Segment::never_used),
            free: room.saturating_sub(taken),
            blocks: state.index.len() as u64,
            encoded: state.index.encoded(),
        }
    }

    /// Bytes that have to come free before blocks are taken again, with those that wait for the commit
    /// of their removal. 0 when none was refused for want of room.
    pub(crate) fn wanted_bytes(&self) -> u64 {
        let state = self.state();
        // Of two segments one is kept for compaction (DRIVE-G2). More, so that blocks are taken for a
        // while.
        let two = 2 * u64::from(self.pages_a_segment());
        let most = WANTED_SEGMENTS * u64::from(self.pages_a_segment());
        let short_of = |pages: u64| {
            let some = two.max(most.min(pages / WANTED_SHARE));
            (state.allocated_pages() + some).saturating_sub(pages)
        };
        // Only what the segments had when the device was full: others may have taken its room.
        let of_device = state.device_pages.map_or(0, short_of);
        let wanted = match (state.metadata_is_full, state.wants_room) {
            (true, _) => two.max(of_device),
            (false, true) => short_of(self.segment_pages_max()).max(of_device),
            (false, false) => of_device,
        };
        wanted * u64::from(PAGE_BYTES)
    }

    /// Bytes that the extents of a namespace take, of blocks that are found.
    #[must_use]
    pub fn bytes_of(&self, namespace: NamespaceTag) -> u64 {
        self.state().index.pages_of(namespace) * u64::from(PAGE_BYTES)
    }

    /// How much was written to the device.
    #[must_use]
    pub fn endurance(&self) -> Endurance {
        let state = self.state();
        let payload = state.payload_bytes - state.in_force.counted_payload;
        let written_bytes = state.in_force.written_bytes + payload;
        drop(state);
        let open_ms = self.open_ms();
        let drive_writes_per_day =
            drive_writes_per_day(written_bytes, self.options.capacity_bytes, open_ms);
        Endurance { written_bytes, open_ms, drive_writes_per_day }
    }

    /// The blocks that came to the folder and left it since it was opened.
    #[must_use]
    pub fn moves(&self) -> Moves {
        self.state().moves
    }

    /// What the payload of the blocks takes, and what reads have brought.
    #[must_use]
    pub fn payload(&self) -> Payload {
        let state = self.state();
        Payload {
            bytes: state.index.payload_bytes(),
            encoded_bytes: state.index.encoded().bytes,
            decoded_bytes: state.decoded.bytes + state.raw_read_bytes,
        }
    }

    /// Blocks that were found damaged since the folder was opened.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.moves().damaged.blocks
    }

    /// Whether no block is taken at present because the capacity is in use, or because the device had no
    /// room for a segment.
    #[must_use]
    pub fn is_full(&self) -> [bool; 2] {
        let is_short = self.wanted_bytes() > 0;
        let state = self.state();
        let is_at_capacity = is_short && (state.metadata_is_full || state.wants_room);
        [is_at_capacity, state.health.room.is_set()]
    }

    /// Blocks that were written, and forgotten because the commit failed that would have made them
    /// durable, since the folder was opened.
    #[must_use]
    pub fn not_durable(&self) -> u64 {
        self.state().not_durable
    }

    /// Reads and writes that failed since the folder was opened, and whether reads and writes are
    /// refused at present.
    #[must_use]
    pub fn failures(&self) -> [(u64, bool); 2] {
        let state = self.state();
        [state.health.reads, state.health.writes].map(|mark| (mark.failures, mark.is_set()))
    }
}
