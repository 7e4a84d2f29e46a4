//! Size classes: objects of up to a page share pages with others of their class.

use cxl_shm::units::{LINE_BYTES, PAGE_BYTES};

/// Lines of a page: bits of a page's map, one for each place that an object can start at.
pub(super) const PAGE_LINES: u64 = PAGE_BYTES / LINE_BYTES;
const _: () = assert!(PAGE_LINES == 64, "a page's map is one word");

/// Lines of an object of each class: for every number of objects that fit a page, the largest.
const CLASS_LINES: [u8; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 21, 32, 64];
/// Number of classes.
pub(super) const CLASSES: usize = CLASS_LINES.len();

/// [`PAGE_LINES`], for arrays.
const PAGE_LINE_COUNT: usize = 64;
const _: () = assert!(PAGE_LINE_COUNT as u64 == PAGE_LINES);

/// Class of each number of lines.
const CLASS_OF: [u8; PAGE_LINE_COUNT + 1] = {
    let mut classes = [0; PAGE_LINE_COUNT + 1];
    let (mut lines, mut class) = (1, 0);
    while lines < classes.len() {
        if lines > CLASS_LINES[class as usize] as usize {
            class += 1;
        }
        classes[lines] = class;
        lines += 1;
    }
    classes
};

/// A class of small objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SizeClass(u8);

impl SizeClass {
    /// The class of the smallest objects of at least `lines` lines; `None` when they fit no page.
    pub(super) fn of_lines(lines: u64) -> Option<Self> {
        CLASS_OF.get(usize::try_from(lines).ok()?).map(|class| Self(*class))
    }

    /// Class `index`; `None` when there is none.
    pub(super) fn from_index(index: u64) -> Option<Self> {
        u8::try_from(index).ok().filter(|index| usize::from(*index) < CLASSES).map(Self)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Lines of an object.
    pub(super) fn lines(self) -> u64 {
        u64::from(CLASS_LINES[self.index()])
    }

    /// Objects that a page has room for.
    pub(super) fn slots(self) -> u64 {
        PAGE_LINES / self.lines()
    }

    /// The map of a page that is full.
    pub(super) fn full(self) -> u64 {
        u64::MAX >> (PAGE_LINES - self.slots())
    }
}

/// What an allocation takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// A slot of a page.
    Slot(SizeClass),
    /// Whole pages.
    Pages(u64),
}

impl Room {
    /// The room for an object of `bytes` bytes, at least one.
    pub(super) fn for_bytes(bytes: u64) -> Self {
        let class = SizeClass::of_lines(bytes.max(1).div_ceil(LINE_BYTES));
        class.map_or_else(|| Self::Pages(bytes.div_ceil(PAGE_BYTES)), Self::Slot)
    }

    /// Bytes that it has.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Slot(class) => class.lines() * LINE_BYTES,
            Self::Pages(pages) => pages * PAGE_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_room_that_holds_it() {
        for bytes in 1..=3 * PAGE_BYTES {
            let room = Room::for_bytes(bytes);
            assert!(room.bytes() >= bytes, "{bytes}");
            match room {
                Room::Slot(class) => {
                    let smaller = (0..class.index() as u64).filter_map(SizeClass::from_index);
                    assert!(smaller.into_iter().all(|class| class.lines() * LINE_BYTES < bytes));
                    assert_eq!(class.full().count_ones() as u64, class.slots());
                }
                Room::Pages(pages) => assert_eq!(pages, bytes.div_ceil(PAGE_BYTES)),
            }
        }
        assert_eq!(Room::for_bytes(PAGE_BYTES).bytes(), PAGE_BYTES);
        assert_eq!(SizeClass::from_index(CLASSES as u64), None);
    }
}
