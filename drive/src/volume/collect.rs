//! Garbage: memory goes back to the drive, and segments with little left are emptied.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use kv_cache::BlockKey;

use super::late::SILENT_AFTER;
use super::moves::Left;
use super::segment::Phase;
use super::{CommitError, Volume, bytes_of, offset_of};
use crate::encoding::{self, Expected};
use crate::format::{BlockRecord, Encoding};
use crate::index::Located;
use crate::io::{Buffer, Direction, Finished, PAGE_BYTES, Transfer, longest_write};

/// What a collection did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collected {
    /// Blocks that were moved to another segment.
    pub moved: u64,
    /// Blocks that could not be read whole, and were removed.
    pub lost: u64,
}

impl Volume {
    /// Gives the memory of garbage back. Called when its removal is durable (DRIVE-D3).
    pub(super) fn punch_garbage(&self) {
        let mut work = Vec::new();
        {
            let mut state = self.state();
            if state.cannot_punch {
                return;
            }
            for segment in state.segments.iter_mut().flatten() {
                segment.garbage.sort_unstable();
                work.extend(
                    segment.garbage.iter().map(|garbage| (segment.id, segment.data, *garbage)),
                );
            }
        }
        for (id, data, (first, pages)) in work {
            let outcome = self.drive.punch(data, offset_of(first), offset_of(pages));
            let mut state = self.state();
            match outcome {
                Ok(()) => {
                    let slot = state.by_id.get(&id).copied();
                    if let Some(segment) = slot.and_then(|slot| state.segment(slot)) {
                        segment.garbage.retain(|garbage| *garbage != (first, pages));
                        segment.given_back += pages;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    tracing::warn!(
                        "the file system cannot give parts of a file back: room comes back only \
                         with whole segments"
                    );
                    state.cannot_punch = true;
                    return;
                }
                Err(error) => {
                    tracing::warn!("cannot give memory back: {error}; the next commit tries again");
                    return;
                }
            }
        }
    }

    /// Empties the segment with the least in it, when that is at most `percent` of it, into the open
    /// one. Two commits are part of that. Not for use beside another collection.
    ///
    /// # Errors
    /// [`CommitError`]: the blocks stay where they are.
    pub fn collect(self: &Arc<Self>, percent: u32) -> Result<Collected, CommitError> {
        let mut collected = Collected::default();
        self.commit_untold()?;
        let Some((id, phase, blocks)) = self.emptiest(percent) else { return Ok(collected) };
        let blocks = match phase {
            Phase::Sealed { version, table_pages } => {
                match self.read_table(id, version, table_pages) {
                    Ok((blocks, _)) => blocks,
                    Err(source) => {
                        return Err(CommitError::System { action: "read a table", source });
                    }
                }
            }
            Phase::Open | Phase::Closed => blocks,
        };
        for record in blocks {
            let Some(from) = self.live_at(&record) else { continue };
            match self.move_block(&record, from) {
                Ok(true) => collected.moved += 1,
                Ok(false) => collected.lost += 1,
                // No room, or a device that fails: the rest stays where it is.
                Err(_) => break,
            }
        }
        self.commit_untold()?;
        // The segment is empty now: this one removes it.
        self.commit_untold()?;
        Ok(collected)
    }

    fn emptiest(&self, percent: u32) -> Option<(u32, Phase, Vec<BlockRecord>)> {
        let state = self.state();
        let full =
            |live: u32, pages: u32| u64::from(live) * 100 > u64::from(pages) * u64::from(percent);
        let segments = state.all().map(|(_, segment)| segment).filter(|segment| {
            segment.scanned
                && segment.phase != Phase::Open
                && segment.under_way == 0
                && !full(segment.live, segment.pages)
        });
        let least = segments.min_by_key(|segment| segment.live)?;
        Some((least.id, least.phase, least.blocks.clone()))
    }

    /// Where a block of a table is, when the index has it there.
    fn live_at(&self, record: &BlockRecord) -> Option<Located> {
        let state = self.state();
        let slot = *state.by_id.get(&record.segment)?;
        let at = state.index.find(&record.key)?;
        (at.slot == slot && at.first_page == record.first_page).then_some(at)
    }

    /// Copies a block to the open segment. `false` when it is damaged, and removed.
    fn move_block(self: &Arc<Self>, record: &BlockRecord, from: Located) -> io::Result<bool> {
        let reservation = self.reserve_extent(*record, Some(from)).map_err(io::Error::other)?;
        let pages = record.extent_pages();
        let buffer = Buffer::zeroed(bytes_of(pages))?;
        let data = self.state().segment(from.slot).map(|segment| segment.data);
        let file = data.ok_or(io::ErrorKind::NotFound)?;
        let transfer = Transfer {
            file,
            offset: offset_of(from.first_page),
            buffer,
            buffer_offset: 0,
            bytes: bytes_of(pages),
            direction: Direction::Read,
        };
        let (tell, told) = bounded(1);
        let ends = move |finished: Finished| drop(tell.send(finished));
        let full = |_| io::Error::from(io::ErrorKind::WouldBlock);
        self.submit(transfer, Box::new(ends)).map_err(full)?;
        // DRIVE-D7: the buffer stays with the drive.
        let finished = told.recv_timeout(self.wait_for(pages)).map_err(|_| {
            self.read_was_late();
            io::Error::from(io::ErrorKind::TimedOut)
        })?;
        finished.outcome?;
        let payload = finished.buffer.bytes().unwrap_or_default();
        if !is_whole(record, payload) {
            self.lose(&record.key, &from);
            return Ok(false);
        }
        let directory = match record.directory_pages() {
            0 => Vec::new(),
            _ => match self.moved_directory(record, &reservation, payload) {
                Some(directory) => directory,
                None => {
                    self.lose(&record.key, &from);
                    return Ok(false);
                }
            },
        };
        let (tell, told) = bounded(1);
        let done = move |_, outcome| drop(tell.send(outcome));
        let reservation = reservation.with_directory(directory);
        let ticket = reservation.ticket();
        reservation.write(finished.buffer, Box::new(done));
        let outcome = match told.recv_timeout(self.wait_for(pages)) {
            Err(_) if ticket.give_up() => return Err(io::ErrorKind::TimedOut.into()),
            // It has ended in this moment, or the drive has stopped.
            Err(_) => told.recv().map_err(io::Error::other)?,
            Ok(outcome) => outcome,
        };
        outcome.map_err(io::Error::other)?;
        Ok(true)
    }

    /// How long a transfer of so many pages is waited for.
    fn wait_for(&self, pages: u32) -> Duration {
        SILENT_AFTER + longest_write(offset_of(pages))
    }

    /// The directory of pages of a block, sealed for its new place.
    fn moved_directory(
        &self,
        record: &BlockRecord,
        reservation: &super::Reservation,
        extent: &[u8],
    ) -> Option<Vec<u8>> {
        let payload_pages = record.stored_pages;
        let behind = &extent[payload_pages as usize * PAGE_BYTES as usize..];
        let first_page = record.first_page + payload_pages;
        let pages =
            crate::format::read_directory(self.folder, record.segment, first_page, behind).ok()?;
        let (segment, first_page) = reservation.place();
        let first_page = first_page + payload_pages;
        Some(crate::format::write_directory(self.folder, segment, first_page, &pages))
    }

    fn lose(&self, key: &BlockKey, at: &Located) {
        let mut state = self.state();
        if state.index.find(key) == Some(*at) {
            state.index.remove(key);
            state.leave(at, Left::Damaged);
        }
    }
}

/// Whether the bytes of an extent are those that were written. What is encoded is not decoded.
fn is_whole(record: &BlockRecord, extent: &[u8]) -> bool {
    let BlockRecord { key, bytes, crc, stored_pages, page, .. } = *record;
    match page.encoding {
        Encoding::Raw => extent.get(..bytes as usize).map(super::read::checksum) == Some(crc),
        // DRIVE-E4.
        Encoding::Unknown(_) => true,
        encoding => {
            let expected = Expected { key, encoding, bytes, crc };
            let stored = extent.get(..bytes_of(stored_pages));
            stored.is_some_and(|stored| encoding::check(stored, &expected).is_ok())
        }
    }
}
