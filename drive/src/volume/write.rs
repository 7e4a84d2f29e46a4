//! Blocks on their way to the drive: an extent is reserved, written, and waits for a commit.

use std::io;
use std::sync::{Arc, PoisonError};

use kv_cache::{BlockKey, NamespaceTag};

use super::segment::{Phase, Segment};
use super::state::Written;
use super::{Volume, bytes_of, offset_of};
use crate::format::{
    ALL_LAYERS, BlockRecord, Encoding, FileName, LAYERS_MAX, Page, pages_of, write_directory,
};
use crate::index::{BLOCK_BYTES_MAX, Located};
use crate::io::{Buffer, Content, Direction, FileId, Finished, Transfer};

/// A block that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct BlockSpec<'a> {
    /// What it is known by.
    pub key: BlockKey,
    /// Its namespace, for accounting.
    pub tag: NamespaceTag,
    /// Blocks before it in its prefix.
    pub depth: u16,
    /// Length of its payload in bytes, as it was published.
    pub bytes: u32,
    /// Bytes that are written: those of the payload, or fewer where it is encoded.
    pub stored_bytes: u32,
    /// CRC-32C of its payload, as it was published.
    pub crc: u32,
    /// What the payload consists of: one page for all layers, or a page for each. All of one encoding:
    /// that of the payload.
    pub pages: &'a [Page],
}

/// Why no extent was reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The block is there, or on its way.
    #[error("the block is on the drive already")]
    Exists,
    /// No block has such a length or such pages.
    #[error("the block cannot be kept: {0}")]
    Invalid(&'static str),
    /// The folder is at its capacity.
    #[error("the folder is full; remove blocks, or give it more capacity")]
    Full,
    /// The device failed a moment ago, or has not ended what was given up. It is tried again by itself.
    #[error("the device failed before, and is not tried again yet")]
    Marked,
    /// No segment could be made.
    #[error("cannot make a segment: {0}")]
    System(#[source] io::Error),
}

/// Why a block was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The queue of the device is full.
    #[error("the queue of the device is full; the block is not written")]
    QueueFull,
    /// The buffer is shorter than what is to be written, in whole pages.
    #[error("the buffer has {capacity} bytes, and the block takes {needed} in whole pages")]
    BufferTooShort {
        /// Bytes of the buffer.
        capacity: usize,
        /// Bytes of the block, in whole pages of 4 KiB.
        needed: usize,
    },
    /// Its caller gave it up ([`WriteTicket::give_up`](super::WriteTicket::give_up)).
    #[error("the device ended the write too late; the block is not kept")]
    GivenUp,
    /// An earlier sync of the same segment failed.
    #[error("the segment failed meanwhile; the block is not written")]
    SegmentFailed,
    /// The device failed.
    #[error("cannot write the block: {0}")]
    System(#[source] io::Error),
}

/// An extent of a block that is not written yet. Dropped, it goes back.
#[derive(Debug)]
pub struct Reservation {
    volume: Arc<Volume>,
    slot: u32,
    data: FileId,
    record: BlockRecord,
    directory: Vec<u8>,
    moved_from: Option<Located>,
    /// Whether its end was told to the volume.
    ended: bool,
}

/// Called once with the buffer when a block is written, or why it was not.
pub type WriteDone = Box<dyn FnOnce(Option<Buffer>, Result<(), WriteError>) + Send>;

impl Volume {
    /// Reserves an extent for a block. A backup fetches the payload into the buffer that it writes,
    /// or lends the payload itself ([`Buffer::lent_source`]), and drops the reservation when its
    /// second look fails.
    ///
    /// # Errors
    /// [`ReserveError`].
    pub fn reserve(self: &Arc<Self>, spec: &BlockSpec<'_>) -> Result<Reservation, ReserveError> {
        let layers = check(spec)?;
        let page = Page { offset_bytes: 0, bytes: spec.bytes, crc: spec.crc, ..spec.pages[0] };
        let page = if layers == 1 { page } else { Page { layer: ALL_LAYERS, ..page } };
        let BlockSpec { key, tag, depth, bytes, crc, .. } = *spec;
        let (stored_pages, segment, first_page) = (pages_of(spec.stored_bytes), 0, 0);
        let record = BlockRecord {
            key,
            tag,
            depth,
            bytes,
            stored_pages,
            crc,
            segment,
            first_page,
            layers,
            page,
        };
        let mut reservation = self.reserve_extent(record, None)?;
        if layers > 1 {
            let BlockRecord { segment, first_page, .. } = reservation.record;
            let first_page = first_page + stored_pages;
            reservation.directory = write_directory(self.folder, segment, first_page, spec.pages);
        }
        Ok(reservation)
    }

    /// Reserves the extent that `record` takes. One that moves may use the last segment.
    pub(super) fn reserve_extent(
        self: &Arc<Self>,
        record: BlockRecord,
        moved_from: Option<Located>,
    ) -> Result<Reservation, ReserveError> {
        let pages = record.extent_pages();
        if pages > self.pages_a_segment() {
            return Err(ReserveError::Invalid("it is longer than a segment"));
        }
        let mut is_first_try = true;
        loop {
            if let Some(reservation) = self.try_reserve(record, moved_from, is_first_try)? {
                return Ok(reservation);
            }
            is_first_try = false;
            self.open_segment(pages, moved_from.is_some())?;
        }
    }

    /// Takes an extent of the open segment. `None` when that has no room.
    fn try_reserve(
        self: &Arc<Self>,
        mut record: BlockRecord,
        moved_from: Option<Located>,
        is_first_try: bool,
    ) -> Result<Option<Reservation>, ReserveError> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        // DRIVE-D7.
        if state.is_silent() || is_first_try && !state.health.writes.allows(now_ms) {
            return Err(ReserveError::Marked);
        }
        let is_known =
            state.coming.contains(&record.key) || state.index.find(&record.key).is_some();
        if moved_from.is_none() && is_known {
            return Err(ReserveError::Exists);
        }
        if !state.index.takes(record.page.encoding, record.bytes) {
            return Err(ReserveError::Invalid(
                "the folder has encoded blocks of 4096 other lengths: write it raw",
            ));
        }
        let pages = record.extent_pages();
        let Some(slot) = state.open else { return Ok(None) };
        let Some(segment) = state.segment(slot) else { return Ok(None) };
        if segment.never_used() < pages {
            return Ok(None);
        }
        (record.segment, record.first_page) = (segment.id, segment.cursor);
        segment.cursor += pages;
        segment.under_way += pages;
        let place = (slot, segment.cursor - pages);
        let data = segment.data;
        if moved_from.is_none() {
            state.coming.insert(record.key);
        }
        state.writing.insert(place);
        let (volume, directory) = (Arc::clone(self), Vec::new());
        Ok(Some(Reservation { volume, slot, data, record, directory, moved_from, ended: false }))
    }

    /// Closes the open segment, and makes another (DRIVE-G2).
    fn open_segment(&self, pages: u32, moves: bool) -> Result<(), ReserveError> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let size = self.pages_a_segment();
        let id = {
            let now_ms = self.now_ms();
            let mut state = self.state();
            let open = state.open.and_then(|slot| state.segment(slot));
            if open.is_some_and(|segment| segment.never_used() >= pages) {
                return Ok(());
            }
            if !state.health.room.allows(now_ms) {
                return Err(ReserveError::Full);
            }
            // What the open one gives back by being closed is not back yet.
            let wanted = u64::from(size) * if moves { 1 } else { 2 };
            if state.allocated_pages() + wanted > self.segment_pages_max() {
                state.wants_room |= !moves;
                return Err(ReserveError::Full);
            }
            state.wants_room = false;
            state.close_open();
            state.next_segment += 1;
            state.next_segment - 1
        };
        let name = FileName::Data(id).to_string();
        let data =
            self.drive.create(&name, Content::Payload, self.segment_bytes).map_err(|error| {
                let mut state = self.state();
                state.health.write_failed(self.now_ms(), &error);
                if !super::health::is_full(&error) {
                    return ReserveError::System(error);
                }
                // Under its capacity, so nothing else lets blocks leave.
                state.device_pages = Some(state.allocated_pages());
                tracing::warn!(
                    "the device has less room than the folder may take: {error}; the oldest blocks \
                     leave until a segment has room"
                );
                ReserveError::Full
            })?;
        let mut state = self.state();
        state.health.room.succeeded();
        state.device_pages = None;
        match state.add(Segment::new(id, data, size, Phase::Open)) {
            Some(slot) => state.open = Some(slot),
            None => {
                drop(state);
                self.drive.close(data);
                self.remove_files([(FileName::Data(id), size)]);
                return Err(ReserveError::Full);
            }
        }
        Ok(())
    }

    /// What the end of a write changes.
    fn wrote(
        &self,
        reservation: &mut Reservation,
        outcome: io::Result<()>,
    ) -> Result<(), WriteError> {
        reservation.ended = true;
        let (now_ms, pages) = (self.now_ms(), reservation.record.extent_pages());
        let Reservation { slot, record, moved_from, .. } = *reservation;
        let mut state = self.state();
        if state.end_write(slot, record.first_page, pages) {
            state.end_coming(&record.key, moved_from);
            return Err(WriteError::GivenUp);
        }
        let Some(segment) = state.segment(slot) else { return Err(WriteError::SegmentFailed) };
        let failed = segment.failed;
        let written = Written { slot, record, moved_from };
        if let Err(error) = outcome {
            state.health.write_failed(now_ms, &error);
            state.forget(&written);
            return Err(WriteError::System(error));
        }
        if failed {
            state.forget(&written);
            return Err(WriteError::SegmentFailed);
        }
        state.health.writes.succeeded();
        state.payload_bytes += offset_of(pages);
        state.written.push(written);
        Ok(())
    }
}

fn check(spec: &BlockSpec<'_>) -> Result<u16, ReserveError> {
    if spec.bytes == 0 || spec.bytes > BLOCK_BYTES_MAX {
        return Err(ReserveError::Invalid("its payload has no byte, or 64 MiB or more"));
    }
    let inside = |page: &Page| {
        page.offset_bytes.checked_add(page.bytes).is_some_and(|end| end <= spec.bytes)
    };
    if !spec.pages.iter().all(inside) {
        return Err(ReserveError::Invalid("a page of it is not inside its payload"));
    }
    let encoding = spec.pages.first().map_or(Encoding::Raw, |page| page.encoding);
    let is_encoded_so = match encoding {
        Encoding::Raw => spec.stored_bytes == spec.bytes,
        Encoding::Lz4 | Encoding::Lz4Planes => {
            spec.stored_bytes > 0 && pages_of(spec.stored_bytes) < pages_of(spec.bytes)
        }
        Encoding::Unknown(_) => false,
    };
    if !is_encoded_so || spec.pages.iter().any(|page| page.encoding != encoding) {
        return Err(ReserveError::Invalid("its encoding does not fit its pages or its length"));
    }
    match u16::try_from(spec.pages.len()) {
        Ok(layers @ 1..=LAYERS_MAX) => Ok(layers),
        _ => Err(ReserveError::Invalid("it has no page, or more than 252")),
    }
}

impl Reservation {
    /// Segment and page at which the extent begins.
    pub(super) const fn place(&self) -> (u32, u32) {
        (self.record.segment, self.record.first_page)
    }

    /// Number of the segment in memory, and first page of the extent.
    pub(super) const fn slot_and_page(&self) -> (u32, u32) {
        (self.slot, self.record.first_page)
    }

    pub(super) fn volume(&self) -> Arc<Volume> {
        Arc::clone(&self.volume)
    }

    pub(super) fn with_directory(mut self, directory: Vec<u8>) -> Self {
        self.directory = directory;
        self
    }

    /// What the block is known by.
    #[must_use]
    pub const fn key(&self) -> BlockKey {
        self.record.key
    }

    /// Bytes that the buffer of the write has to have: what is written, in whole pages.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        bytes_of(self.record.stored_pages)
    }

    /// Writes the payload, as it is or encoded, from the beginning of `buffer`. The next commit makes the block durable.
    /// `done` is called on a thread of the drive, with the buffer unless the drive has lost it.
    pub fn write(mut self, buffer: Buffer, done: WriteDone) {
        let (needed, capacity) = (self.buffer_bytes(), buffer.capacity());
        if capacity < needed {
            return done(Some(buffer), Err(WriteError::BufferTooShort { capacity, needed }));
        }
        let volume = Arc::clone(&self.volume);
        let transfer = Transfer {
            file: self.data,
            offset: offset_of(self.record.first_page),
            buffer,
            buffer_offset: 0,
            bytes: needed,
            direction: Direction::Write,
        };
        // A full queue hands the transfer back, and the reservation with what ends it.
        let (tell, told) = crossbeam_channel::bounded::<(Self, WriteDone)>(1);
        let waits = told.clone();
        let ends = move |finished: Finished| {
            let Ok((mut reservation, done)) = waits.recv() else { return };
            match finished.outcome {
                Ok(()) if !reservation.directory.is_empty() => {
                    reservation.write_directory(finished.buffer, done);
                }
                outcome => {
                    let volume = Arc::clone(&reservation.volume);
                    done(Some(finished.buffer), volume.wrote(&mut reservation, outcome));
                }
            }
        };
        self.ended = false;
        // The channel has room for this one.
        let _ = tell.send((self, done));
        if let Err(transfer) = volume.submit(transfer, Box::new(ends))
            && let Ok((reservation, done)) = told.recv()
        {
            drop(reservation);
            done(Some(transfer.buffer), Err(WriteError::QueueFull));
        }
    }

    /// Writes the directory of pages behind the payload.
    fn write_directory(mut self, payload: Buffer, done: WriteDone) {
        let volume = Arc::clone(&self.volume);
        let buffer = match Buffer::of(&self.directory) {
            Ok(buffer) => buffer,
            Err(error) => return done(Some(payload), volume.wrote(&mut self, Err(error))),
        };
        let transfer = Transfer {
            file: self.data,
            offset: offset_of(self.record.first_page + self.record.stored_pages),
            bytes: buffer.capacity(),
            buffer,
            buffer_offset: 0,
            direction: Direction::Write,
        };
        let (tell, told) = crossbeam_channel::bounded::<(Self, Buffer, WriteDone)>(1);
        let waits = told.clone();
        let ends = move |finished: Finished| {
            let Ok((mut reservation, payload, done)) = waits.recv() else { return };
            let volume = Arc::clone(&reservation.volume);
            done(Some(payload), volume.wrote(&mut reservation, finished.outcome));
        };
        let _ = tell.send((self, payload, done));
        if volume.submit(transfer, Box::new(ends)).is_err()
            && let Ok((reservation, payload, done)) = told.recv()
        {
            drop(reservation);
            done(Some(payload), Err(WriteError::QueueFull));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let pages = self.record.extent_pages();
        let mut state = self.volume.state();
        if state.end_write(self.slot, self.record.first_page, pages) {
            return state.end_coming(&self.record.key, self.moved_from);
        }
        let written = Written { slot: self.slot, record: self.record, moved_from: self.moved_from };
        state.forget(&written);
    }
}
