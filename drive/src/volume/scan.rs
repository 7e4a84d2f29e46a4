//! The blocks of sealed segments enter the index, one segment after another, beside everything else.

use std::collections::HashSet;
use std::io;

use kv_cache::{BlockKey, NamespaceTag};

use super::moves::Came;
use super::reopen::Loss;
use super::segment::Phase;
use super::state::{Leaving, State};
use super::{Volume, offset_of};
use crate::format::{BlockRecord, LAYERS_MAX};
use crate::index::BLOCK_BYTES_MAX;

impl Volume {
    /// Reads the tables of all segments that are not scanned. Blocks are found as soon as their
    /// segment is read, and everything else goes on meanwhile. `progress` is told how many segments
    /// are scanned, of how many, and may end the scan by `false`.
    ///
    /// # Errors
    /// The first error of the system. The segments that it concerns stay unscanned, and a later call
    /// reads them; all others are scanned.
    pub fn scan(&self, mut progress: impl FnMut(usize, usize) -> bool) -> io::Result<()> {
        let (all, open) = {
            let state = self.state();
            let open: Vec<u32> =
                state.all().filter(|(_, it)| !it.scanned).map(|(slot, _)| slot).collect();
            (state.all().count(), open)
        };
        let mut first_error = None;
        let mut scanned = all - open.len();
        for slot in open {
            if !progress(scanned, all) {
                return first_error.map_or(Ok(()), Err);
            }
            match self.scan_segment(slot) {
                Ok(()) => scanned += 1,
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        progress(scanned, all);
        self.state().was_scanned = true;
        first_error.map_or(Ok(()), Err)
    }

    fn scan_segment(&self, slot: u32) -> io::Result<()> {
        let (id, data, phase, removed) = {
            let mut state = self.state();
            let Some(segment) = state.segment(slot).filter(|it| !it.scanned) else { return Ok(()) };
            (segment.id, segment.data, segment.phase, segment.removed.clone())
        };
        let Phase::Sealed { version, table_pages } = phase else { return Ok(()) };
        let length = self.drive.length(data)?;
        let allocated = self.drive.allocated(data)?;
        let (mut blocks, _) = match self.read_table(id, version, table_pages) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.state().losses.push(Loss::Table { segment: id });
                (Vec::new(), 0)
            }
            outcome => outcome?,
        };
        let removed: HashSet<u32> = removed.into_iter().collect();
        let records = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        blocks.retain(|block| !removed.contains(&block.first_page));
        let mut state = self.state();
        if let Some(segment) = state.segment(slot) {
            segment.scanned = true;
            segment.records = records;
        }
        state.enter_all(slot, blocks, length, allocated);
        Ok(())
    }

    /// Whether all segments are scanned, or a scan has ended that could not read the tables of some.
    pub(crate) fn was_scanned(&self) -> bool {
        let state = self.state();
        state.was_scanned || state.all().all(|(_, segment)| segment.scanned)
    }

    /// Whether all segments are scanned.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        self.state().all().all(|(_, segment)| segment.scanned)
    }

    /// The keys of about a thousand blocks: those of part `part`. `None` behind the last part.
    #[must_use]
    pub fn keys(&self, part: usize) -> Option<Vec<BlockKey>> {
        self.keys_of(part, |_| true)
    }

    /// Those of the keys in part `part` whose blocks count for a namespace that `is_wanted`. `None`
    /// behind the last part.
    #[must_use]
    pub fn keys_of(
        &self,
        part: usize,
        is_wanted: impl Fn(NamespaceTag) -> bool,
    ) -> Option<Vec<BlockKey>> {
        self.state().index.keys(part, is_wanted)
    }
}

impl State {
    /// Enters the blocks that records name, those that can be. The file of the segment has `length`
    /// bytes, of which `allocated` are kept.
    pub(super) fn enter_all(
        &mut self,
        slot: u32,
        mut blocks: Vec<BlockRecord>,
        length: u64,
        allocated: u64,
    ) {
        let Some(segment) = self.segment(slot) else { return };
        let (id, pages) = (segment.id, segment.pages);
        let removed: HashSet<u32> = segment.removed.iter().copied().collect();
        blocks.sort_unstable_by_key(|block| block.first_page);
        let (mut end, mut used, mut gaps) = (0, 0, Vec::new());
        for block in blocks.iter().filter(|block| !removed.contains(&block.first_page)) {
            let extent = block.extent_pages();
            let is_whole = (1..=BLOCK_BYTES_MAX).contains(&block.bytes)
                && (1..=LAYERS_MAX).contains(&block.layers)
                && block.first_page >= end
                && block.first_page.checked_add(extent).is_some_and(|end| end <= pages)
                && offset_of(block.first_page + extent) <= length;
            if !is_whole {
                self.losses.push(Loss::Extent { segment: id, first_page: block.first_page });
                continue;
            }
            if end < block.first_page {
                gaps.push((end, block.first_page - end));
            }
            end = block.first_page + extent;
            used += extent;
            let is_known = self.index.find(&block.key).is_some();
            if is_known || !self.enter(slot, block, Came::Found) {
                if !is_known {
                    self.losses.push(Loss::Extent { segment: id, first_page: block.first_page });
                }
                // The key has another place, or its length no room. This one goes, and the journal is to say so first.
                let first_page = block.first_page;
                if let Some(segment) = self.segment(slot) {
                    segment.leaving += extent;
                }
                self.leaving.push(Leaving { slot, first_page, pages: extent });
            }
        }
        if end < pages {
            gaps.push((end, pages - end));
        }
        if let Some(segment) = self.segment(slot) {
            segment.given_back = 0;
            if allocated <= offset_of(used) {
                segment.given_back = pages - used;
            } else {
                segment.garbage = gaps;
            }
        }
    }
}
