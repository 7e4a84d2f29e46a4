//! Taking room in a heap's pages and giving it back.
//!
//! What counts is what each page is and which of its slots are allocated: one word each, so a
//! process that dies leaves an object allocated or not. Lists and the ends of free runs are found
//! again from those words ([`Heap::relink`]).

use super::page::{PageNumber, PageUse, PageWord, Pages, Place, PlaceKind};
use super::size::{Room, SizeClass};
use super::words::{HeapWords, List};
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::Fabric;
use cxl_shm::fabric::PART_LINES;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, LINE_BYTES};

/// Lists or ends of runs that contradict each other: [`Heap::relink`] makes them anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

/// Why an object of this heap is not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// It is free already.
    NotAllocated,
    /// A root names it.
    Named,
    /// See [`Broken`].
    Broken,
}

impl From<Broken> for Refused {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

/// The last page of a run that is no free one.
const NO_RUN: u64 = u64::MAX;
/// More pages than any list has: a walk that takes longer goes in circles.
const WALK_MAX: u64 = 1 << 44;

/// The pages of this host's heap and its words. Used under the host lock of the heap only.
#[derive(Debug)]
pub(super) struct Heap<'m, B: Backend> {
    pub(super) pages: Pages<'m, B::Fabric>,
    pub(super) words: HeapWords<'m, B::HostMemory>,
}

/// A piece of a chunk, in the order of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// A page of slots, and the map of those that are allocated.
    Slots { page: PageNumber, class: SizeClass, allocated: u64 },
    /// An object of whole pages.
    Run { page: PageNumber, pages: u64 },
    /// A page in no object.
    Free { page: PageNumber },
    /// A page that nobody knows anything of: not used before a sweep.
    Damaged { page: PageNumber },
}

impl<'m, B: Backend> Heap<'m, B> {
    /// Takes room; its offset, or `None` when there is none.
    pub(super) fn take(&self, room: Room) -> Result<Option<u64>, Broken> {
        match room {
            Room::Slot(class) => self.take_slot(class),
            Room::Pages(pages) => self.take_pages(pages),
        }
    }

    fn take_slot(&self, class: SizeClass) -> Result<Option<u64>, Broken> {
        let list = List::slots(class);
        let mut taken = None;
        loop {
            let Some(page) = self.first(list)? else {
                let Some(page) = self.take_run(1)? else { return Ok(None) };
                self.pages.set(page, PageWord::Allocated, 0);
                self.pages.set(page, PageWord::Named, 0);
                self.pages.set_usage(page, PageUse::Slots(class));
                self.push(list, page)?;
                taken = Some(page);
                continue;
            };
            if self.pages.usage(page) != PageUse::Slots(class) {
                return Err(Broken);
            }
            let allocated = self.pages.get(page, PageWord::Allocated);
            let free = !allocated & class.full();
            if free == 0 {
                // A process died between taking the last slot and this.
                self.unlink(list, page)?;
                continue;
            }
            let slot = u64::from(free.trailing_zeros());
            let allocated = allocated | 1 << slot;
            self.pages.set(page, PageWord::Allocated, allocated);
            if allocated & class.full() == class.full() {
                self.unlink(list, page)?;
            }
            if taken == Some(page) {
                // Once nothing more is to be stored in its line.
                self.pages.publish_usage(page, PageUse::Slots(class));
                crash::reach(CrashPoint::HeapPageTaken);
            }
            return Ok(Some(self.pages.bytes_at(page) + slot * class.lines() * LINE_BYTES));
        }
    }

    fn take_pages(&self, pages: u64) -> Result<Option<u64>, Broken> {
        let Some(page) = self.take_run(pages)? else { return Ok(None) };
        self.pages.set(page, PageWord::Allocated, 1);
        self.pages.set(page, PageWord::Named, 0);
        self.pages.set(PageNumber(page.0 + pages - 1), PageWord::RunStart, NO_RUN);
        self.pages.publish_usage(page, PageUse::Run(pages));
        crash::reach(CrashPoint::HeapPageTaken);
        Ok(Some(self.pages.bytes_at(page)))
    }

    /// Frees the object at `place`.
    pub(super) fn give_back(&self, place: &Place) -> Result<(), Refused> {
        let page = place.page;
        let bit = 1 << place.slot;
        let allocated = self.pages.get(page, PageWord::Allocated);
        if allocated & bit == 0 {
            return Err(Refused::NotAllocated);
        }
        if self.pages.get(page, PageWord::Named) & bit != 0 {
            return Err(Refused::Named);
        }
        match place.kind {
            PlaceKind::Slot(class) => {
                let list = List::slots(class);
                if allocated & class.full() == class.full() {
                    self.push(list, page)?;
                }
                let left = allocated & !bit & class.full();
                self.pages.set(page, PageWord::Allocated, left);
                // The last page of its class is kept: to take it again costs nothing.
                let alone = self.words.head(list) == page.0 + 1
                    && self.pages.get(page, PageWord::Next) == 0;
                if left == 0 && !alone {
                    self.unlink(list, page)?;
                    self.release(page, 1)?;
                }
            }
            PlaceKind::Pages(pages) => {
                self.pages.set(page, PageWord::Allocated, 0);
                self.release(page, pages)?;
            }
        }
        Ok(())
    }

    /// Whether the object at `place` is allocated.
    pub(super) fn is_allocated(&self, place: &Place) -> bool {
        self.pages.get(place.page, PageWord::Allocated) & 1 << place.slot != 0
    }

    /// Says that a root names the object at `place`, or that none does any more.
    pub(super) fn set_named(&self, place: &Place, named: bool) {
        let bit = 1 << place.slot;
        let before = self.pages.get(place.page, PageWord::Named);
        let after = if named { before | bit } else { before & !bit };
        self.pages.set(place.page, PageWord::Named, after);
    }

    /// Gives up the slot pages that are kept empty, so that a chunk without objects shows as one.
    pub(super) fn release_empty(&self) -> Result<(), Broken> {
        for class in (0..).map_while(SizeClass::from_index) {
            let list = List::slots(class);
            if let Some(page) = self.first(list)?
                && self.pages.usage(page) == PageUse::Slots(class)
                && self.pages.get(page, PageWord::Allocated) & class.full() == 0
            {
                self.unlink(list, page)?;
                self.release(page, 1)?;
            }
        }
        Ok(())
    }

    /// A chunk of the heap in which there is no object; it leaves the lists.
    pub(super) fn take_idle_chunk(&self) -> Result<Option<ChunkId>, Broken> {
        let run = self.take_run(self.pages.data_pages())?;
        Ok(run.map(|page| self.pages.chunk_of(page)))
    }

    /// Chunks in which there is no object.
    pub(super) fn idle_chunks(&self) -> Result<u64, Broken> {
        let whole = self.pages.data_pages();
        let mut idle = 0;
        self.walk_list(List::runs(whole), |page| {
            idle += u64::from(self.pages.get(page, PageWord::RunPages) == whole);
            false
        })?;
        Ok(idle)
    }

    /// Makes pages that were in an object free, together with the free runs on both sides.
    fn release(&self, page: PageNumber, pages: u64) -> Result<(), Broken> {
        self.pages.publish_usage(page, PageUse::Free);
        crash::reach(CrashPoint::HeapPageReleased);
        let data = self.pages.data_of(self.pages.chunk_of(page));
        let (mut start, mut length) = (page.0, pages);
        let after = PageNumber(page.0 + pages);
        if after.0 < data.end && self.pages.usage(after) == PageUse::Free {
            let run = self.pages.get(after, PageWord::RunPages);
            if run == 0 || run > data.end - after.0 {
                return Err(Broken);
            }
            self.unlink(List::runs(run), after)?;
            length += run;
        }
        if page.0 > data.start && self.pages.usage(PageNumber(page.0 - 1)) == PageUse::Free {
            let first = self.pages.get(PageNumber(page.0 - 1), PageWord::RunStart);
            // Else it is the end of an object of several pages.
            if first != NO_RUN {
                let fits = (data.start..page.0).contains(&first)
                    && self.pages.usage(PageNumber(first)) == PageUse::Free
                    && self.pages.get(PageNumber(first), PageWord::RunPages) == page.0 - first;
                if !fits {
                    return Err(Broken);
                }
                self.unlink(List::runs(page.0 - first), PageNumber(first))?;
                start = first;
                length += page.0 - first;
            }
        }
        self.add_run(PageNumber(start), length)
    }

    fn add_run(&self, start: PageNumber, pages: u64) -> Result<(), Broken> {
        self.pages.set(start, PageWord::RunPages, pages);
        self.pages.set(PageNumber(start.0 + pages - 1), PageWord::RunStart, start.0);
        self.push(List::runs(pages), start)
    }

    /// Takes `pages` free pages in a row from the shortest runs that have them.
    fn take_run(&self, pages: u64) -> Result<Option<PageNumber>, Broken> {
        for list in List::runs_from(pages) {
            let mut found = None;
            self.walk_list(list, |page| {
                let length = self.pages.get(page, PageWord::RunPages);
                let fits = length >= pages;
                if fits {
                    found = Some((page, length));
                }
                fits
            })?;
            let Some((page, length)) = found else { continue };
            let left = self.pages.data_of(self.pages.chunk_of(page)).end - page.0;
            if self.pages.usage(page) != PageUse::Free || length > left {
                return Err(Broken);
            }
            self.unlink(list, page)?;
            if length > pages {
                self.add_run(PageNumber(page.0 + pages), length - pages)?;
            }
            return Ok(Some(page));
        }
        Ok(None)
    }

    /// Makes lists and ends of runs anew for `chunks`, which are all that this heap has built.
    /// Publishes what the pages are: a process may have died before it did. Calls `between` after
    /// every few milliseconds' work.
    pub(super) fn relink(
        &self,
        chunks: impl Iterator<Item = ChunkId>,
        between: impl Fn(),
    ) -> Result<(), Broken> {
        for list in List::all() {
            self.words.set_head(list, 0);
        }
        for chunk in chunks {
            self.words.learn(chunk);
            let mut run: Option<(PageNumber, u64)> = None;
            for (number, piece) in (1..).zip(self.pieces(chunk)) {
                // A line of the header describes a page.
                if number % PART_LINES == 0 {
                    between();
                }
                let free = match piece {
                    Piece::Free { page } | Piece::Slots { page, allocated: 0, .. } => {
                        self.pages.set_usage(page, PageUse::Free);
                        Some(page)
                    }
                    Piece::Slots { page, class, allocated } => {
                        if allocated != class.full() {
                            self.push(List::slots(class), page)?;
                        }
                        None
                    }
                    Piece::Run { page, pages } => {
                        let last = PageNumber(page.0 + pages - 1);
                        self.pages.set(last, PageWord::RunStart, NO_RUN);
                        None
                    }
                    Piece::Damaged { .. } => None,
                };
                match (free, &mut run) {
                    (Some(_), Some((_, pages))) => *pages += 1,
                    (Some(page), None) => run = Some((page, 1)),
                    (None, _) => {
                        if let Some((start, pages)) = run.take() {
                            self.add_run(start, pages)?;
                        }
                    }
                }
            }
            if let Some((start, pages)) = run {
                self.add_run(start, pages)?;
            }
            for part in self.pages.lines_of(chunk).parts(PART_LINES) {
                self.pages.fabric.publish(part);
                between();
            }
        }
        Ok(())
    }

    /// The pieces of a chunk, one after another, each page in one.
    pub(super) fn pieces(&self, chunk: ChunkId) -> impl Iterator<Item = Piece> {
        let data = self.pages.data_of(chunk);
        let mut next = data.start;
        std::iter::from_fn(move || {
            let page = PageNumber(next);
            if next >= data.end {
                return None;
            }
            let allocated = self.pages.get(page, PageWord::Allocated);
            let (piece, pages) = match self.pages.usage(page) {
                PageUse::Slots(class) => {
                    let allocated = allocated & class.full();
                    (Piece::Slots { page, class, allocated }, 1)
                }
                PageUse::Run(pages) if pages <= data.end - next && allocated & 1 == 1 => {
                    (Piece::Run { page, pages }, pages)
                }
                // A run that is not allocated: a process died before it could say so.
                PageUse::Run(_) | PageUse::Free => (Piece::Free { page }, 1),
                PageUse::Damaged => (Piece::Damaged { page }, 1),
            };
            next += pages;
            Some(piece)
        })
    }

    fn first(&self, list: List) -> Result<Option<PageNumber>, Broken> {
        self.page_of(self.words.head(list))
    }

    /// The page that a word of a list names.
    fn page_of(&self, word: u64) -> Result<Option<PageNumber>, Broken> {
        match word.checked_sub(1) {
            None => Ok(None),
            Some(page) => self.pages.checked(page).map(Some).ok_or(Broken),
        }
    }

    /// Calls `stop` for each page of a list until it says so.
    fn walk_list(
        &self,
        list: List,
        mut stop: impl FnMut(PageNumber) -> bool,
    ) -> Result<(), Broken> {
        let mut next = self.first(list)?;
        let mut previous = 0;
        for _ in 0..WALK_MAX {
            let Some(page) = next else { return Ok(()) };
            // A list whose links agree both ways ends.
            if self.pages.get(page, PageWord::Previous) != previous {
                return Err(Broken);
            }
            if stop(page) {
                return Ok(());
            }
            previous = page.0 + 1;
            next = self.page_of(self.pages.get(page, PageWord::Next))?;
        }
        Err(Broken)
    }

    fn push(&self, list: List, page: PageNumber) -> Result<(), Broken> {
        let next = self.first(list)?;
        self.pages.set(page, PageWord::Previous, 0);
        self.pages.set(page, PageWord::Next, next.map_or(0, |next| next.0 + 1));
        if let Some(next) = next {
            self.pages.set(next, PageWord::Previous, page.0 + 1);
        }
        self.words.set_head(list, page.0 + 1);
        Ok(())
    }

    fn unlink(&self, list: List, page: PageNumber) -> Result<(), Broken> {
        let me = page.0 + 1;
        let next_word = self.pages.get(page, PageWord::Next);
        let next = self.page_of(next_word)?;
        let previous = self.page_of(self.pages.get(page, PageWord::Previous))?;
        if next.is_some_and(|next| self.pages.get(next, PageWord::Previous) != me) {
            return Err(Broken);
        }
        match previous {
            Some(previous) if self.pages.get(previous, PageWord::Next) == me => {
                self.pages.set(previous, PageWord::Next, next_word);
            }
            None if self.words.head(list) == me => self.words.set_head(list, next_word),
            _ => return Err(Broken),
        }
        if let Some(next) = next {
            let previous = previous.map_or(0, |previous| previous.0 + 1);
            self.pages.set(next, PageWord::Previous, previous);
        }
        Ok(())
    }
}
