//! A segment in memory: which of its pages are what (DRIVE-G1).

use crate::format::BlockRecord;
use crate::io::FileId;

/// How far a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Extents are taken from it.
    Open,
    /// Nothing more is taken. The journal has its blocks.
    Closed,
    /// A table has its blocks.
    Sealed { version: u32, table_pages: u32 },
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) id: u32,
    pub(super) data: FileId,
    pub(super) phase: Phase,
    /// Whether a journal names it.
    pub(super) announced: bool,
    /// Whether the index has its blocks.
    pub(super) scanned: bool,
    /// Whether a sync failed: writes that end now are not believed (DRIVE-D5).
    pub(super) failed: bool,
    /// Pages of the file.
    pub(super) pages: u32,
    /// Pages from here on were never used.
    pub(super) cursor: u32,
    /// Pages of extents that are being written.
    pub(super) under_way: u32,
    /// Pages of extents that are written, and wait for a commit.
    pub(super) waiting: u32,
    /// Pages of extents in the index, and how many blocks these are.
    pub(super) live: u32,
    pub(super) live_blocks: u32,
    /// Pages of extents that wait for the commit of their removal.
    pub(super) leaving: u32,
    /// Pages that are to be given back: first page and how many.
    pub(super) garbage: Vec<(u32, u32)>,
    /// Pages that were given back.
    pub(super) given_back: u32,
    /// Blocks that the journal has and no table, with those that were removed since.
    pub(super) blocks: Vec<BlockRecord>,
    /// First pages of the blocks that were removed since the table was written.
    pub(super) removed: Vec<u32>,
    /// The version that the next table has.
    pub(super) next_version: u32,
    /// Blocks in the table.
    pub(super) records: u32,
}

impl Segment {
    pub(super) fn new(id: u32, data: FileId, pages: u32, phase: Phase) -> Self {
        Self {
            id,
            data,
            phase,
            announced: false,
            scanned: true,
            failed: false,
            pages,
            cursor: 0,
            under_way: 0,
            waiting: 0,
            live: 0,
            live_blocks: 0,
            leaving: 0,
            garbage: Vec::new(),
            given_back: 0,
            blocks: Vec::new(),
            removed: Vec::new(),
            next_version: 1,
            records: 0,
        }
    }

    pub(super) fn allocated(&self) -> u32 {
        self.pages - self.given_back
    }

    /// Whether nothing of it is in use, and nothing will be.
    pub(super) fn is_spent(&self) -> bool {
        self.phase != Phase::Open
            && self.scanned
            && self.live_blocks == 0
            && self.under_way == 0
            && self.waiting == 0
    }

    /// Ends the filling. The rest of it is garbage.
    pub(super) fn close(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closed;
            if self.cursor < self.pages {
                self.garbage.push((self.cursor, self.pages - self.cursor));
            }
            self.cursor = self.pages;
        }
    }

    pub(super) fn garbage_pages(&self) -> u32 {
        self.garbage.iter().map(|(_, pages)| pages).sum()
    }

    /// Pages that are allocated and whose blocks are not known yet.
    pub(super) fn unknown(&self) -> u32 {
        if self.scanned { 0 } else { self.allocated() }
    }

    pub(super) fn never_used(&self) -> u32 {
        self.pages - self.cursor
    }
}
