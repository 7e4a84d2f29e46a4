//! The lines of a chunk, by number.

use cxl_shm::layout::Layout;
use cxl_shm::units::{ChunkId, LineOffset, LineRange, WordOffset};

/// Lines of a chunk that a check uses from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkLines {
    offset: u64,
    lines: u64,
}

impl ChunkLines {
    pub(crate) fn of(layout: &Layout, chunk: ChunkId) -> Self {
        let extent = layout.chunk(chunk);
        Self { offset: extent.offset(), lines: extent.bytes() / 64 }
    }

    /// Number of the last line.
    pub(crate) fn last(self) -> u64 {
        self.lines - 1
    }

    pub(crate) fn line(self, number: u64) -> LineOffset {
        assert!(number < self.lines, "line {number} of a chunk of {} lines", self.lines);
        LineOffset::new(self.offset + number * 64).expect("chunks start at whole lines")
    }

    pub(crate) fn lines(self, first: u64, count: u64) -> LineRange {
        assert!(first + count <= self.lines, "{count} lines from {first} of {}", self.lines);
        LineRange::new(self.line(first), count).expect("inside the region")
    }

    pub(crate) fn word(self, number: u64, index: usize) -> WordOffset {
        self.line(number).word(index).expect("a line has eight words")
    }
}
