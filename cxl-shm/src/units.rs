//! Addresses and identities in a region: every quantity that two hosts must agree on has a type.
//!
//! Offsets are newtypes with no arithmetic operators: only checked methods, so that a number that
//! was read from shared memory cannot turn into an address by accident.

use std::fmt;

/// Bytes in a cache line, the unit of visibility between hosts.
pub const LINE_BYTES: u64 = 64;
/// Bytes in a word, the unit that never tears.
pub const WORD_BYTES: u64 = 8;
/// Bytes in a page. Payload and metadata never share one (rule MEM-M6).
pub const PAGE_BYTES: u64 = 4096;
/// Most nodes a region can have.
pub const NODES_MAX: u16 = 32;

const _: () =
    assert!(LINE_BYTES.is_multiple_of(WORD_BYTES) && PAGE_BYTES.is_multiple_of(LINE_BYTES));

/// Words in a line.
pub const LINE_WORDS: usize = 8;
const _: () = assert!(LINE_WORDS as u64 * WORD_BYTES == LINE_BYTES);

/// Offset of an aligned 8-byte word from the start of the region, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WordOffset(u64);

impl WordOffset {
    /// The word at `bytes` from the start of the region; `None` when that is not aligned to 8.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_multiple_of(WORD_BYTES) { Some(Self(bytes)) } else { None }
    }

    /// Bytes from the start of the region.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The line that holds this word.
    #[must_use]
    pub const fn line(self) -> LineOffset {
        LineOffset(self.0 - self.0 % LINE_BYTES)
    }

    /// Position of this word in its line, 0 to 7.
    #[must_use]
    pub const fn index_in_line(self) -> usize {
        ((self.0 % LINE_BYTES) / WORD_BYTES) as usize
    }
}

/// Offset of an aligned 64-byte line from the start of the region, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineOffset(u64);

impl LineOffset {
    /// The line at `bytes` from the start of the region; `None` when that is not aligned to 64.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_multiple_of(LINE_BYTES) { Some(Self(bytes)) } else { None }
    }

    /// Bytes from the start of the region.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Word `index` of this line; `None` from 8 on.
    #[must_use]
    pub const fn word(self, index: usize) -> Option<WordOffset> {
        if index < LINE_WORDS { Some(WordOffset(self.0 + index as u64 * WORD_BYTES)) } else { None }
    }
}

/// A run of whole lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LineRange {
    start: LineOffset,
    lines: u64,
}

impl LineRange {
    /// `lines` lines from `start` on; `None` when the end passes 2^64.
    #[must_use]
    pub const fn new(start: LineOffset, lines: u64) -> Option<Self> {
        match lines.checked_mul(LINE_BYTES) {
            Some(bytes) if start.0.checked_add(bytes).is_some() => Some(Self { start, lines }),
            _ => None,
        }
    }

    /// One line.
    #[must_use]
    pub const fn one(line: LineOffset) -> Self {
        Self { start: line, lines: 1 }
    }

    /// The lines that `extent` touches.
    #[must_use]
    pub const fn covering(extent: Extent) -> Self {
        let start = extent.offset - extent.offset % LINE_BYTES;
        let end = extent.offset + extent.bytes;
        Self { start: LineOffset(start), lines: (end - start).div_ceil(LINE_BYTES) }
    }

    /// First line.
    #[must_use]
    pub const fn start(self) -> LineOffset {
        self.start
    }

    /// Number of lines.
    #[must_use]
    pub const fn lines(self) -> u64 {
        self.lines
    }

    /// Offset one past the last byte.
    #[must_use]
    pub const fn end_bytes(self) -> u64 {
        self.start.0 + self.lines * LINE_BYTES
    }

    /// The same lines in parts of at most `lines` lines, in order. Panics when that is zero.
    pub fn parts(self, lines: u64) -> impl Iterator<Item = Self> {
        (0..self.lines.div_ceil(lines)).map(move |part| {
            let first = part * lines;
            let start = LineOffset(self.start.0 + first * LINE_BYTES);
            Self { start, lines: lines.min(self.lines - first) }
        })
    }

    /// Each line in turn.
    pub fn iter(self) -> impl Iterator<Item = LineOffset> {
        (0..self.lines).map(move |i| LineOffset(self.start.0 + i * LINE_BYTES))
    }
}

/// A run of bytes in the region, checked not to pass 2^64. Whether it lies in the region is for
/// the code that knows the region to check.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    offset: u64,
    bytes: u64,
}

impl Extent {
    /// `bytes` bytes from `offset` on; `None` when the end, rounded up to a line, passes 2^64.
    #[must_use]
    pub const fn new(offset: u64, bytes: u64) -> Option<Self> {
        match offset.checked_add(bytes) {
            Some(end) if end.checked_add(LINE_BYTES).is_some() => Some(Self { offset, bytes }),
            _ => None,
        }
    }

    /// Bytes from the start of the region.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Offset one past the last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// The part of this extent from `offset` (relative) on, `bytes` long; `None` outside it.
    #[must_use]
    pub const fn part(self, offset: u64, bytes: u64) -> Option<Self> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Some(Self { offset: self.offset + offset, bytes }),
            _ => None,
        }
    }

    /// Whether `other` lies wholly in this extent.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }
}

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

identity! {
    /// A host's slot in the region, `0..nodes`. One host uses one node; its processes share it.
    NodeId(u16)
}
identity! {
    /// A lock of the region, `0..locks`.
    LockId(u32)
}
identity! {
    /// A chunk of the region, `0..chunks`.
    ChunkId(u32)
}
identity! {
    /// How many times a node slot has been joined. Grows by one at each join, never reused.
    Incarnation(u32)
}

impl NodeId {
    /// As an index into per-node arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

macro_rules! hex_debug {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}
hex_debug!(WordOffset, LineOffset);

impl fmt::Debug for LineRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LineRange({:#x}, {} lines)", self.start.0, self.lines)
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({:#x}, {} bytes)", self.offset, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misaligned_offsets_are_refused() {
        assert!(WordOffset::new(4).is_none());
        assert!(LineOffset::new(8).is_none());
        assert_eq!(WordOffset::new(72).map(WordOffset::index_in_line), Some(1));
        assert_eq!(WordOffset::new(72).map(WordOffset::line), LineOffset::new(64));
    }

    #[test]
    fn ranges_never_wrap() {
        let last = LineOffset::new(u64::MAX - 63).unwrap();
        assert!(LineRange::new(last, 1).is_none());
        assert!(Extent::new(u64::MAX, 1).is_none());
        assert!(Extent::new(u64::MAX - 10, 1).is_none(), "no room to round up to a line");
    }

    #[test]
    fn a_part_stays_inside() {
        let extent = Extent::new(4096, 100).unwrap();
        assert_eq!(extent.part(60, 40).map(Extent::offset), Some(4156));
        assert!(extent.part(60, 41).is_none());
        assert!(extent.part(u64::MAX, 2).is_none());
        let range = LineRange::covering(extent.part(60, 10).unwrap());
        assert_eq!((range.start().bytes(), range.lines()), (4096, 2));
    }
}
