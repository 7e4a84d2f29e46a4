//! The pages of a heap's chunks and the lines that describe them.
//!
//! ```text
//! chunk   | header pages: line i describes page i | data pages ...
//! line 0    header of the chunk: whose heap has built it
//! line i    word 0  what page i is: {check 16, kind 4, value 44 bits}      published
//!           word 1  which of its slots are allocated                      of the host only
//!           word 2  which of them a root names                            of the host only
//!           word 3  next, word 4 previous page of its list                of the host only
//!           word 5  pages of the free run that starts here                of the host only
//!           word 6  first page of the free run that ends here             of the host only
//! ```
//!
//! Words "of the host only" are read and written through the caches that the processes of the
//! owning host share, under the lock of its heap. Another host that has the line reads stale
//! values, and no host reads them after the owning host has died: they are rebuilt.

use super::size::{PAGE_LINES, SizeClass};
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::Layout;
use cxl_shm::units::{
    ChunkId, Extent, LINE_BYTES, LineOffset, LineRange, PAGE_BYTES, WORD_BYTES, WordOffset,
};

/// A page of any chunk: chunk x pages of a chunk + page of the chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct PageNumber(pub(super) u64);

/// What a page is, as its owner published it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageUse {
    /// In no object.
    Free,
    /// Slots of one class.
    Slots(SizeClass),
    /// The first of this many pages of one object. The others say `Free`.
    Run(u64),
    /// Its line is not one that this program wrote there.
    Damaged,
}

/// Words of a page's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageWord {
    Use = 0,
    Allocated = 1,
    Named = 2,
    Next = 3,
    Previous = 4,
    RunPages = 5,
    RunStart = 6,
}

const VALUE_BITS: u32 = 44;
const KIND_BITS: u32 = 4;

impl PageUse {
    fn word(self, page: PageNumber) -> u64 {
        let (kind, value) = match self {
            Self::Free => (1, 0),
            Self::Slots(class) => (2, class.index() as u64),
            Self::Run(pages) => (3, pages),
            Self::Damaged => (0, 0),
        };
        let body = kind << VALUE_BITS | value;
        check(page, body) << (VALUE_BITS + KIND_BITS) | body
    }

    fn from_word(page: PageNumber, word: u64) -> Self {
        let body = word & ((1 << (VALUE_BITS + KIND_BITS)) - 1);
        let value = body & ((1 << VALUE_BITS) - 1);
        if word >> (VALUE_BITS + KIND_BITS) != check(page, body) {
            return Self::Damaged;
        }
        match body >> VALUE_BITS {
            1 => Self::Free,
            2 => SizeClass::from_index(value).map_or(Self::Damaged, Self::Slots),
            3 if value > 0 => Self::Run(value),
            _ => Self::Damaged,
        }
    }
}

/// Sixteen bits that tell a word of ours from what was there before.
fn check(page: PageNumber, body: u64) -> u64 {
    (body ^ page.0.rotate_left(20)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
}

/// An object as its page describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(super) page: PageNumber,
    /// Its slot in the page; 0 for whole pages.
    pub(super) slot: u64,
    pub(super) kind: PlaceKind,
    pub(super) extent: Extent,
}

impl Place {
    /// The bytes of the object.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlaceKind {
    Slot(SizeClass),
    Pages(u64),
}

/// The lines of the pages of all chunks.
#[derive(Debug)]
pub(super) struct Pages<'f, F> {
    pub(super) fabric: &'f F,
    first_at: u64,
    /// Pages of a chunk, a power of two, as the number of bits of a page's number in its chunk.
    chunk_bits: u32,
    chunks: u64,
}

impl<F> Clone for Pages<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for Pages<'_, F> {}

/// Pages of a chunk of `chunk_bytes` that objects can have.
pub(super) fn data_pages(chunk_bytes: u64) -> u64 {
    let pages = chunk_bytes / PAGE_BYTES;
    pages - pages.div_ceil(PAGE_LINES)
}

impl<'f, F: Fabric> Pages<'f, F> {
    pub(super) fn new(fabric: &'f F, layout: &Layout) -> Self {
        Self {
            fabric,
            first_at: layout.payload().offset(),
            chunk_bits: (layout.geometry().chunk_bytes / PAGE_BYTES).ilog2(),
            chunks: u64::from(layout.chunks()),
        }
    }

    fn of_chunk(&self) -> u64 {
        1 << self.chunk_bits
    }

    /// Pages at the start of a chunk that describe the others.
    fn header_pages(&self) -> u64 {
        self.of_chunk().div_ceil(PAGE_LINES)
    }

    pub(super) fn data_pages(&self) -> u64 {
        self.of_chunk() - self.header_pages()
    }

    /// The number of a page in its chunk.
    fn in_chunk(&self, page: u64) -> u64 {
        page & (self.of_chunk() - 1)
    }

    /// The pages of a chunk that objects can have.
    pub(super) fn data_of(&self, chunk: ChunkId) -> std::ops::Range<u64> {
        let first = u64::from(chunk.0) << self.chunk_bits;
        first + self.header_pages()..first + self.of_chunk()
    }

    /// All lines that describe pages of a chunk.
    pub(super) fn lines_of(&self, chunk: ChunkId) -> LineRange {
        let start = self.line(PageNumber(u64::from(chunk.0) << self.chunk_bits));
        LineRange::new(start, self.of_chunk()).expect("a chunk lies in the region")
    }

    pub(super) fn chunk_of(&self, page: PageNumber) -> ChunkId {
        // A page number is below chunks x pages of a chunk.
        ChunkId(u32::try_from(page.0 >> self.chunk_bits).unwrap_or(u32::MAX))
    }

    /// A page number read from memory; `None` when it is no page that objects can have.
    pub(super) fn checked(&self, page: u64) -> Option<PageNumber> {
        let inside = page >> self.chunk_bits < self.chunks;
        (inside && self.in_chunk(page) >= self.header_pages()).then_some(PageNumber(page))
    }

    /// The data page at `offset`; `None` outside the chunks and in a chunk's header.
    pub(super) fn at(&self, offset: u64) -> Option<PageNumber> {
        self.checked(offset.checked_sub(self.first_at)? / PAGE_BYTES)
    }

    /// Where the bytes of a page are.
    pub(super) fn bytes_at(&self, page: PageNumber) -> u64 {
        self.first_at + page.0 * PAGE_BYTES
    }

    /// The line that describes a page.
    pub(super) fn line(&self, page: PageNumber) -> LineOffset {
        let in_chunk = self.in_chunk(page.0);
        let at = self.first_at + (page.0 - in_chunk) * PAGE_BYTES + in_chunk * LINE_BYTES;
        LineOffset::new(at).expect("chunks start on lines")
    }

    fn word(&self, page: PageNumber, word: PageWord) -> WordOffset {
        let at = self.line(page).bytes() + word as u64 * WORD_BYTES;
        WordOffset::new(at).expect("a word of a line")
    }

    pub(super) fn get(&self, page: PageNumber, word: PageWord) -> u64 {
        self.fabric.load(self.word(page, word))
    }

    /// MEM-M1: only the owner of the chunk, under the lock of its heap.
    pub(super) fn set(&self, page: PageNumber, word: PageWord, value: u64) {
        self.fabric.store(self.word(page, word), value);
    }

    /// What a page is.
    pub(super) fn usage(&self, page: PageNumber) -> PageUse {
        PageUse::from_word(page, self.get(page, PageWord::Use))
    }

    /// Stores what a page is, unpublished.
    pub(super) fn set_usage(&self, page: PageNumber, usage: PageUse) {
        self.set(page, PageWord::Use, usage.word(page));
    }

    /// Stores and publishes what a page is. It is published before an object in the page is known
    /// to anybody, and before a page that was in an object gets another use: a process that
    /// rebuilds the heap after the death of this host finds what it was at that moment, never
    /// older.
    #[track_caller]
    pub(super) fn publish_usage(&self, page: PageNumber, usage: PageUse) {
        self.set_usage(page, usage);
        self.fabric.publish(LineRange::one(self.line(page)));
    }

    /// The object that starts at `offset`, by what our caches hold of its page's line; `None` when
    /// none can start there. Whether it is allocated the page's map knows.
    pub(super) fn place(&self, offset: u64) -> Option<Place> {
        let page = self.at(offset)?;
        let in_page = offset - self.bytes_at(page);
        let (slot, kind, bytes) = match self.usage(page) {
            PageUse::Slots(class) => {
                let slot_bytes = class.lines() * LINE_BYTES;
                let slot = in_page / slot_bytes;
                let start = in_page.is_multiple_of(slot_bytes) && slot < class.slots();
                start.then_some((slot, PlaceKind::Slot(class), slot_bytes))?
            }
            PageUse::Run(pages) if in_page == 0 => {
                // Not beyond its chunk, whatever the word says.
                let left = self.data_of(self.chunk_of(page)).end - page.0;
                (pages <= left).then_some((0, PlaceKind::Pages(pages), pages * PAGE_BYTES))?
            }
            PageUse::Run(_) | PageUse::Free | PageUse::Damaged => return None,
        };
        Some(Place { page, slot, kind, extent: Extent::new(offset, bytes)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_is_what_was_written_at_its_page_only(
            page in 0u64..(1 << 44), other in 0u64..(1 << 44), pages in 1u64..(1 << 44), class in 0u64..15,
        ) {
            let (page, other) = (PageNumber(page), PageNumber(other));
            let class = SizeClass::from_index(class).unwrap();
            for usage in [PageUse::Free, PageUse::Run(pages), PageUse::Slots(class)] {
                prop_assert_eq!(PageUse::from_word(page, usage.word(page)), usage);
            }
            let moved = PageUse::from_word(other, PageUse::Run(pages).word(page));
            prop_assert!(other == page || moved == PageUse::Damaged || moved == PageUse::Run(pages));
        }
    }

    #[test]
    fn memory_that_nobody_wrote_is_damaged() {
        assert_eq!(PageUse::from_word(PageNumber(7), 0), PageUse::Damaged);
        let strange = (0..100_000u64).filter(|word| {
            let word = word.wrapping_mul(0x0123_4567_89ab_cdef);
            PageUse::from_word(PageNumber(7), word) != PageUse::Damaged
        });
        assert!(strange.count() < 20, "about one word in 65,536 looks like ours");
    }
}
