//! What a folder has in memory.

use std::collections::{HashMap, HashSet};

use kv_cache::BlockKey;

use super::health::Health;
use super::journal::InForce;
use super::moves::{Came, Left, Moves};
use super::reopen::Loss;
use super::segment::Segment;
use super::usage::Decoded;
use crate::format::{BlockRecord, CarriedOut, FileName};
use crate::index::{Index, Located};

/// A block that is written and waits for a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) slot: u32,
    pub(super) record: BlockRecord,
    /// Where it was, when compaction moves it.
    pub(super) moved_from: Option<Located>,
}

/// An extent whose removal waits for a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    pub(super) slot: u32,
    pub(super) first_page: u32,
    pub(super) pages: u32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) index: Index,
    pub(super) segments: Vec<Option<Segment>>,
    pub(super) by_id: HashMap<u32, u32>,
    /// The segment that is being filled.
    pub(super) open: Option<u32>,
    pub(super) next_segment: u32,
    /// Blocks between their reservation and their commit.
    pub(super) coming: HashSet<BlockKey>,
    pub(super) written: Vec<Written>,
    /// Places of extents that are being written: number of the segment in memory, and first page.
    pub(super) writing: HashSet<(u32, u32)>,
    /// Those whose writes were given up, and have not ended (DRIVE-D7).
    pub(super) given_up: HashSet<(u32, u32)>,
    pub(super) leaving: Vec<Leaving>,
    /// Files that nothing names any more and that could not be removed, with the pages that they
    /// have allocated of what segments may have (DRIVE-G2).
    pub(super) unremoved: Vec<(FileName, u32)>,
    /// No segment could be made for want of room under the capacity.
    pub(super) wants_room: bool,
    /// Pages that segments had when the device had no room for another, and there is none yet.
    pub(super) device_pages: Option<u64>,
    /// A commit found no room for the records of its blocks, and there is none yet.
    pub(super) metadata_is_full: bool,
    pub(super) in_force: InForce,
    /// Whether a scan has ended since the folder was opened.
    pub(super) was_scanned: bool,
    /// What the next manifest is to say of requests to clear namespaces.
    pub(super) to_carry_out: Option<CarriedOut>,
    pub(super) health: Health,
    /// Whether the file system gives memory of a file back.
    pub(super) cannot_punch: bool,
    /// What was found lost.
    pub(super) losses: Vec<Loss>,
    /// Blocks that came and left.
    pub(super) moves: Moves,
    /// What was decoded since the folder was opened.
    pub(super) decoded: Decoded,
    /// Bytes of payload that was written raw, and that reads have brought and checked.
    pub(super) raw_read_bytes: u64,
    /// Blocks that were written, and whose commit failed.
    pub(super) not_durable: u64,
    /// Bytes of payload written since the folder was opened.
    pub(super) payload_bytes: u64,
}

impl State {
    pub(super) fn segment(&mut self, slot: u32) -> Option<&mut Segment> {
        self.segments.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0..).zip(&self.segments).filter_map(|(slot, segment)| Some((slot, segment.as_ref()?)))
    }

    /// Pages that the segments have allocated, those among them that nothing names any more.
    pub(super) fn allocated_pages(&self) -> u64 {
        let named: u64 = self.all().map(|(_, segment)| u64::from(segment.allocated())).sum();
        named + self.unremoved_pages()
    }

    /// Pages of segments whose files could not be removed.
    pub(super) fn unremoved_pages(&self) -> u64 {
        self.unremoved.iter().map(|(_, pages)| u64::from(*pages)).sum()
    }

    /// Gives a segment a number in memory. `None` when there are too many.
    pub(super) fn add(&mut self, segment: Segment) -> Option<u32> {
        let free = self.segments.iter().position(Option::is_none);
        let place = free.unwrap_or(self.segments.len());
        let slot = u32::try_from(place).ok().filter(|slot| *slot < crate::index::SEGMENTS_MAX)?;
        self.by_id.insert(segment.id, slot);
        if place == self.segments.len() {
            self.segments.push(Some(segment));
        } else {
            self.segments[place] = Some(segment);
        }
        Some(slot)
    }

    pub(super) fn close_open(&mut self) {
        if let Some(slot) = self.open.take()
            && let Some(segment) = self.segment(slot)
        {
            segment.close();
        }
    }

    /// Enters a block of `slot` whose pages belong to nothing else. It counts as used now unless it
    /// was found. `false` when the index has no room for the length of an encoded block.
    pub(super) fn enter(&mut self, slot: u32, record: &BlockRecord, how: Came) -> bool {
        if !self.index.insert(record.key, &located(slot, record), how != Came::Found) {
            return false;
        }
        self.moves.came(how, record.bytes);
        let pages = record.extent_pages();
        if let Some(segment) = self.segment(slot) {
            segment.live += pages;
            segment.live_blocks += 1;
        }
        true
    }

    /// Takes the pages of a block that left the index off the live ones. They wait for the commit.
    pub(super) fn leave(&mut self, at: &Located, why: Left) {
        self.moves.left(why, at.bytes);
        let Leaving { slot, pages, .. } = self.leaving_at(at);
        if let Some(segment) = self.segment(slot) {
            segment.live -= pages;
            segment.live_blocks -= 1;
            segment.leaving += pages;
        }
        let leaving = self.leaving_at(at);
        self.leaving.push(leaving);
    }

    /// A block that was reserved does not come any more, unless it was there before.
    pub(super) fn end_coming(&mut self, key: &BlockKey, moved_from: Option<Located>) {
        if moved_from.is_none() {
            self.coming.remove(key);
        }
    }

    fn leaving_at(&self, at: &Located) -> Leaving {
        Leaving { slot: at.slot, first_page: at.first_page, pages: at.extent_pages() }
    }

    /// Forgets blocks whose commit failed, and all that wait for one.
    pub(super) fn forget_written(&mut self, failed: &[Written]) {
        let waiting = std::mem::take(&mut self.written);
        for written in failed.iter().chain(&waiting) {
            // A block that was to be moved stays where it was.
            self.not_durable += u64::from(written.moved_from.is_none());
            self.forget(written);
        }
    }

    /// Lets the pages of a written extent go that no commit has named.
    pub(super) fn forget(&mut self, written: &Written) {
        let (first_page, pages) = (written.record.first_page, written.record.extent_pages());
        self.end_coming(&written.record.key, written.moved_from);
        if let Some(segment) = self.segment(written.slot) {
            segment.waiting -= pages;
            segment.leaving += pages;
            self.leaving.push(Leaving { slot: written.slot, first_page, pages });
        }
    }
}

pub(super) fn located(slot: u32, record: &BlockRecord) -> Located {
    Located {
        slot,
        first_page: record.first_page,
        bytes: record.bytes,
        encoding: record.page.encoding,
        stored_pages: record.stored_pages,
        crc: record.crc,
        depth: record.depth,
        tag: record.tag,
        directory_pages: record.directory_pages(),
    }
}
