//! The journal of a folder: records in sealed pages, behind one another.

use std::io;

use kv_cache::BlockKey;

use super::batch::Batch;
use super::segment::Phase;
use super::state::State;
use super::{Volume, offset_of};
use crate::format::{
    CarriedOut, FileName, PageKind, RECORD_BYTES, RECORDS_A_PAGE, Record, Seal, seal_pages,
};
use crate::io::{Content, FileId, PAGE_BYTES};

/// Pages that every journal may have before another begins, where the metadata has room for them.
const PAGES_MIN: u32 = 32;
/// A journal that takes a larger part of the metadata than one in so many is written anew.
const JOURNAL_SHARE: u64 = 8;

/// What the manifest names, and what it will name.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) generation: u64,
    /// Number of the journal in force.
    pub(super) journal: u64,
    /// `None` when that journal could not be opened or written.
    pub(super) file: Option<FileId>,
    /// Pages of it that count.
    pub(super) pages: u32,
    /// Pages with which it began.
    pub(super) first_pages: u32,
    /// The highest number that a journal had.
    pub(super) last_journal: u64,
    /// Files of failed commits. A manifest that may be durable could name them, up to the next
    /// success.
    pub(super) leftovers: Vec<FileName>,
    /// Bytes written to the folder since it was made, as far as commits counted them.
    pub(super) written_bytes: u64,
    /// Payload of `written_bytes` that was counted.
    pub(super) counted_payload: u64,
    /// Blocks that became durable, and whose keys no [`Volume::commit`] has returned yet.
    pub(super) untold: Vec<BlockKey>,
}

/// What the manifest in force says, for those that do not wait for a commit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InForce {
    /// Pages of the journal.
    pub(super) journal_pages: u32,
    /// Bytes written to the folder since it was made.
    pub(super) written_bytes: u64,
    /// Payload of `written_bytes`, since the folder was opened.
    pub(super) counted_payload: u64,
    /// What the folder has carried out of requests to clear namespaces.
    pub(super) carried_out: CarriedOut,
}

/// A journal as a commit leaves it.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) journal: u64,
    pub(super) file: FileId,
    pub(super) pages: u32,
    pub(super) first_pages: u32,
    pub(super) bytes: u64,
}

impl State {
    /// Bytes of the journal in force, of tables and of two manifests.
    pub(super) fn metadata_bytes(&self) -> u64 {
        let tables: u64 = self
            .all()
            .map(|(_, segment)| match segment.phase {
                Phase::Sealed { table_pages, .. } => offset_of(table_pages),
                Phase::Open | Phase::Closed => 0,
            })
            .sum();
        tables + offset_of(self.in_force.journal_pages) + 2 * u64::from(PAGE_BYTES)
    }
}

impl Log {
    /// Whether the next commit begins another journal. The metadata may have `metadata_bytes_max`.
    pub(super) fn is_long(&self, metadata_bytes_max: u64) -> bool {
        let share = metadata_bytes_max / JOURNAL_SHARE / u64::from(PAGE_BYTES);
        let least = PAGES_MIN.min(u32::try_from(share).unwrap_or(u32::MAX)).max(1);
        self.file.is_none() || self.pages > least.max(self.first_pages.saturating_mul(2))
    }
}

/// Pages that so many records take.
pub(super) fn pages_for(records: usize) -> u32 {
    u32::try_from(records.div_ceil(RECORDS_A_PAGE)).unwrap_or(u32::MAX)
}

impl Volume {
    /// Appends the records of `batch`, or begins a journal with all that is in force. Synced.
    pub(super) fn append(&self, log: &mut Log, batch: &Batch) -> io::Result<Appended> {
        let records = self.records_of(batch);
        let is_long = log.is_long(self.metadata_bytes_max());
        if let (Some(file), false) = (log.file, is_long) {
            let bytes = self.journal_pages(log.journal, log.pages, log.generation, &records);
            self.drive.write(file, offset_of(log.pages), &bytes)?;
            self.drive.sync(file)?;
            let pages = log.pages + pages_for(records.len());
            let (journal, first_pages, bytes) = (log.journal, log.first_pages, bytes.len() as u64);
            return Ok(Appended { journal, file, pages, first_pages, bytes });
        }
        let mut all = self.in_force(batch);
        let first_pages = pages_for(all.len());
        all.extend(records);
        log.last_journal += 1;
        let journal = log.last_journal;
        let name = FileName::Journal(journal);
        log.leftovers.push(name);
        let file = self.drive.create(&name.to_string(), Content::Records, 0)?;
        let bytes = self.journal_pages(journal, 0, log.generation, &all);
        let outcome = self.drive.write(file, 0, &bytes).and_then(|()| self.drive.sync(file));
        if let Err(error) = outcome {
            self.drive.close(file);
            return Err(error);
        }
        let (pages, bytes) = (pages_for(all.len()), bytes.len() as u64);
        Ok(Appended { journal, file, pages, first_pages, bytes })
    }

    fn records_of(&self, batch: &Batch) -> Vec<Record> {
        let state = self.state();
        let id_of =
            |slot: u32| state.segments.get(slot as usize)?.as_ref().map(|segment| segment.id);
        batch.records(id_of)
    }

    /// What the journal in force says, without what has no meaning any more.
    fn in_force(&self, batch: &Batch) -> Vec<Record> {
        let state = self.state();
        let mut records = Vec::new();
        for (slot, segment) in state.all().filter(|(_, segment)| segment.announced) {
            if batch.dropped.iter().any(|(dropped, _)| *dropped == slot) {
                continue;
            }
            let id = segment.id;
            let removed = segment
                .removed
                .iter()
                .map(|page| Record::Removed { segment: id, first_page: *page });
            match segment.phase {
                Phase::Sealed { version, table_pages } => {
                    records.push(Record::Sealed { segment: id, version, table_pages });
                    records.extend(removed);
                }
                Phase::Open | Phase::Closed => {
                    let gone: std::collections::HashSet<_> = segment.removed.iter().collect();
                    let blocks =
                        segment.blocks.iter().filter(|block| !gone.contains(&block.first_page));
                    records.push(Record::Opened { segment: id });
                    records.extend(blocks.map(|block| Record::Block(*block)));
                }
            }
        }
        records
    }

    fn journal_pages(
        &self,
        journal: u64,
        page: u32,
        generation: u64,
        records: &[Record],
    ) -> Vec<u8> {
        let seal = Seal { kind: PageKind::Journal, folder: self.folder, file: journal, page };
        let records = records.iter().map(|record| record.to_bytes());
        seal_pages(seal, generation, RECORD_BYTES, records)
    }
}
