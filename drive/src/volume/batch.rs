//! What one commit makes durable.

use std::collections::{BTreeSet, HashSet};

use super::moves::Came;
use super::segment::{Phase, Segment};
use super::state::{Leaving, State, Written};
use crate::format::{BlockRecord, FileName, Record};
use crate::io::FileId;

/// Blocks that were removed since the table of a segment was written, before another is: one in so
/// many of those that the table has.
const REWRITE_SHARE: usize = 4;

/// A table that is to be written.
#[derive(Debug)]
pub(super) struct Sealing {
    pub(super) slot: u32,
    pub(super) id: u32,
    pub(super) version: u32,
    /// The blocks, unless they are in the table that is replaced.
    pub(super) blocks: Option<Vec<BlockRecord>>,
    /// Version and pages of the table that is replaced.
    pub(super) replaces: Option<(u32, u32)>,
}

/// A table that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    pub(super) slot: u32,
    pub(super) id: u32,
    pub(super) version: u32,
    pub(super) table_pages: u32,
    pub(super) records: u32,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) written: Vec<Written>,
    pub(super) leaving: Vec<Leaving>,
    /// Segments that the journal does not name yet.
    pub(super) announced: Vec<(u32, u32)>,
    pub(super) sealing: Vec<Sealing>,
    pub(super) sealed: Vec<Sealed>,
    /// Segments that go.
    pub(super) dropped: Vec<(u32, u32)>,
    /// Files whose extents are synced first.
    pub(super) data: BTreeSet<FileId>,
}

impl Batch {
    /// Takes what waits for a commit, of blocks that are written the first `blocks_max`. The others
    /// wait on.
    pub(super) fn take(state: &mut State, blocks_max: usize) -> Self {
        let mut batch = Self::default();
        let later = state.written.split_off(blocks_max.min(state.written.len()));
        for written in std::mem::replace(&mut state.written, later) {
            // A block that was removed while it was moved is not to come back.
            let gone = written
                .moved_from
                .is_some_and(|from| state.index.find(&written.record.key) != Some(from));
            if gone {
                state.forget(&written);
            } else {
                batch.written.push(written);
            }
        }
        batch.leaving = std::mem::take(&mut state.leaving);
        let busy: HashSet<u32> = batch.written.iter().map(|written| written.slot).collect();
        // The journal names a segment before it names a place in it.
        let leaving: HashSet<u32> = batch.leaving.iter().map(|leaving| leaving.slot).collect();
        let later: HashSet<u32> = state.written.iter().map(|written| written.slot).collect();
        let mut rewrites = 0;
        for (slot, segment) in state.all() {
            if busy.contains(&slot) {
                batch.data.insert(segment.data);
            }
            let is_named = busy.contains(&slot) || leaving.contains(&slot);
            if !segment.announced && (is_named || segment.phase != Phase::Open) {
                batch.announced.push((slot, segment.id));
            }
            if segment.is_spent() {
                batch.dropped.push((slot, segment.id));
                continue;
            }
            let removed = segment.removed.len();
            let is_still = segment.scanned && segment.under_way == 0 && !later.contains(&slot);
            let mut sealing = Sealing {
                slot,
                id: segment.id,
                version: segment.next_version,
                blocks: None,
                replaces: None,
            };
            match segment.phase {
                Phase::Closed if is_still => {
                    let gone = batch.gone_from(slot, &segment.removed);
                    let written = batch.written.iter().filter(|it| it.slot == slot);
                    let all = segment.blocks.iter().copied().chain(written.map(|it| it.record));
                    let blocks = all.filter(|block| !gone.contains(&block.first_page));
                    sealing.blocks = Some(blocks.collect());
                    batch.sealing.push(sealing);
                }
                Phase::Sealed { version, table_pages }
                    if is_still
                        && rewrites == 0
                        && removed * REWRITE_SHARE > segment.records as usize =>
                {
                    sealing.replaces = Some((version, table_pages));
                    rewrites += 1;
                    batch.sealing.push(sealing);
                }
                _ => {}
            }
        }
        for Sealing { slot, .. } in &batch.sealing {
            if let Some(segment) = state.segment(*slot) {
                segment.next_version += 1;
            }
        }
        batch
    }

    /// First pages of the blocks of a segment that are no more.
    pub(super) fn gone_from(&self, slot: u32, removed: &[u32]) -> HashSet<u32> {
        let leaving = self.leaving.iter().filter(|it| it.slot == slot);
        let moved = self.written.iter().filter_map(|it| it.moved_from);
        let moved = moved.filter(|from| from.slot == slot).map(|from| from.first_page);
        removed.iter().copied().chain(leaving.map(|it| it.first_page)).chain(moved).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty()
            && self.leaving.is_empty()
            && self.announced.is_empty()
            && self.sealing.is_empty()
            && self.dropped.is_empty()
    }

    /// What the journal is to say, after the tables are written.
    pub(super) fn records(&self, id_of: impl Fn(u32) -> Option<u32>) -> Vec<Record> {
        let mut records = Vec::new();
        let removed = |slot: u32, first_page: u32| {
            id_of(slot).map(|segment| Record::Removed { segment, first_page })
        };
        let opened = |(_, segment): &(u32, u32)| Record::Opened { segment: *segment };
        records.extend(self.announced.iter().map(opened));
        records.extend(self.written.iter().map(|written| Record::Block(written.record)));
        // A segment that goes takes all its blocks with it.
        let goes: HashSet<u32> = self.dropped.iter().map(|(slot, _)| *slot).collect();
        let leaving = self.leaving.iter().filter(|it| !goes.contains(&it.slot));
        records.extend(leaving.filter_map(|it| removed(it.slot, it.first_page)));
        let moved = self.written.iter().filter_map(|written| written.moved_from);
        let moved = moved.filter(|from| !goes.contains(&from.slot));
        records.extend(moved.filter_map(|from| removed(from.slot, from.first_page)));
        records.extend(self.sealed.iter().map(|it| Record::Sealed {
            segment: it.id,
            version: it.version,
            table_pages: it.table_pages,
        }));
        let dropped = |(_, segment): &(u32, u32)| Record::Dropped { segment: *segment };
        records.extend(self.dropped.iter().map(dropped));
        records
    }

    /// Makes what is durable visible. Returns the files that nothing names any more, with the pages
    /// that they have of what segments may have, and those that are to be closed.
    pub(super) fn publish(self, state: &mut State) -> (Vec<(FileName, u32)>, Vec<FileId>) {
        let (mut gone, mut closed) = (Vec::new(), Vec::new());
        for (slot, _) in &self.announced {
            if let Some(segment) = state.segment(*slot) {
                segment.announced = true;
            }
        }
        for written in &self.written {
            state.commit_written(written);
        }
        for Leaving { slot, first_page, pages } in self.leaving {
            if let Some(segment) = state.segment(slot) {
                segment.leaving -= pages;
                segment.garbage.push((first_page, pages));
                segment.removed.push(first_page);
            }
        }
        for Sealed { slot, id, version, table_pages, records } in self.sealed {
            let Some(segment) = state.segment(slot) else { continue };
            if let Phase::Sealed { version, .. } = segment.phase {
                gone.push((FileName::Table(id, version), 0));
            }
            segment.phase = Phase::Sealed { version, table_pages };
            segment.records = records;
            segment.blocks = Vec::new();
            segment.removed = Vec::new();
        }
        for (slot, id) in self.dropped {
            let segment = state.segments.get_mut(slot as usize).and_then(Option::take);
            gone.push((FileName::Data(id), segment.as_ref().map_or(0, Segment::allocated)));
            closed.extend(segment.as_ref().map(|segment| segment.data));
            if let Some(Phase::Sealed { version, .. }) = segment.map(|segment| segment.phase) {
                gone.push((FileName::Table(id, version), 0));
            }
            state.by_id.remove(&id);
        }
        (gone, closed)
    }

    /// What waited for this commit waits for the next, except for blocks: these are forgotten.
    pub(super) fn give_back(self, state: &mut State, sync_failed: bool) {
        if sync_failed {
            let open: Vec<u32> = self.written.iter().map(|written| written.slot).collect();
            for slot in open {
                if let Some(segment) = state.segment(slot) {
                    segment.failed = true;
                }
            }
        }
        state.close_open();
        state.forget_written(&self.written);
        state.leaving.extend(self.leaving);
    }
}

impl State {
    fn commit_written(&mut self, written: &Written) {
        let Written { slot, record, moved_from } = written;
        let pages = record.extent_pages();
        if let Some(segment) = self.segment(*slot) {
            segment.waiting -= pages;
            if !matches!(segment.phase, Phase::Sealed { .. }) {
                segment.blocks.push(*record);
            }
        }
        let Some(from) = moved_from else {
            self.coming.remove(&record.key);
            let is_known = self.index.find(&record.key).is_some();
            if !is_known && self.enter(*slot, record, Came::Written) {
                return;
            }
            // A scan has found the block elsewhere meanwhile, or too many other lengths.
            return self.leave_unentered(*slot, record);
        };
        if self.index.find(&record.key) == Some(*from) {
            if let Some(old) = self.segment(from.slot) {
                old.live -= pages;
                old.live_blocks -= 1;
                old.garbage.push((from.first_page, pages));
                old.removed.push(from.first_page);
            }
            // The index has its length already.
            if self.enter(*slot, record, Came::Moved) {
                return;
            }
        }
        // It was removed while the commit was under way: the place it had waits already.
        self.leave_unentered(*slot, record);
    }

    /// Lets the extent of a block go that the journal names and the index does not.
    fn leave_unentered(&mut self, slot: u32, record: &BlockRecord) {
        let (first_page, pages) = (record.first_page, record.extent_pages());
        if let Some(segment) = self.segment(slot) {
            segment.leaving += pages;
        }
        self.leaving.push(Leaving { slot, first_page, pages });
    }
}
