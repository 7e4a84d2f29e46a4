//! What a journal says, read from its beginning.

use std::collections::{BTreeMap, HashSet};

use super::journal::pages_for;
use super::reopen::Loss;
use super::{Opened, offset_of};
use crate::format::{BlockRecord, FileName, Manifest, PageKind, Record, Seal};
use crate::io::{Content, Drive, FileId, PAGE_BYTES};

/// A segment, as the journal describes it.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    /// Version and pages of its table.
    pub(super) table: Option<(u32, u32)>,
    /// Its blocks, while it has no table.
    pub(super) blocks: Vec<BlockRecord>,
    /// First pages of the blocks that were removed since.
    pub(super) removed: HashSet<u32>,
}

/// The segments that are there.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) segments: BTreeMap<u32, Replayed>,
    pub(super) losses: Vec<Loss>,
    /// Pages that the journal has, of those that the manifest names.
    pub(super) journal_pages: u32,
}

impl Replay {
    /// Reads the journal that `manifest` names, as far as it counts. A page that is damaged loses
    /// what it says, and no more. A table with more pages than records of its segment can take is
    /// not believed: pages of tables are counted before these are read.
    ///
    /// # Errors
    /// The system's, when the drive does not answer.
    pub(super) fn read(drive: &dyn Drive, manifest: &Manifest) -> std::io::Result<Self> {
        let mut replay = Self::default();
        let Manifest { folder, journal, journal_pages, generation, .. } = *manifest;
        if journal_pages == 0 {
            return Ok(replay);
        }
        let name = FileName::Journal(journal).to_string();
        let file = match drive.open(&name, Content::Records) {
            Ok(file) => Opened { drive, file },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                replay.losses.push(Loss::Journal { journal });
                return Ok(replay);
            }
            Err(error) => return Err(error),
        };
        let mut pages = Pages::new(drive, file.file)?;
        let pages_a_segment = manifest.segment_bytes / u64::from(PAGE_BYTES);
        let table_pages_max = pages_for(usize::try_from(pages_a_segment).unwrap_or(usize::MAX));
        for page in 0..journal_pages {
            let seal = Seal { kind: PageKind::Journal, folder, file: journal, page };
            let lost = |cause: String| Loss::JournalPage { journal, page, cause };
            let Some(bytes) = pages.get(page)? else {
                replay.losses.push(lost("the file ends before".to_owned()));
                break;
            };
            replay.journal_pages = page + 1;
            match seal.check(bytes) {
                Ok((count, its)) if its <= generation => {
                    for record in Record::all_in(bytes, count) {
                        match record {
                            Some(Record::Sealed { table_pages, .. })
                                if table_pages > table_pages_max =>
                            {
                                replay.losses.push(lost("a table that is too long".to_owned()));
                            }
                            Some(record) => replay.apply(record),
                            None => replay.losses.push(lost("an unknown record".to_owned())),
                        }
                    }
                }
                Ok(_) => replay.losses.push(lost("it is of a later commit".to_owned())),
                Err(error) => replay.losses.push(lost(error.to_string())),
            }
        }
        Ok(replay)
    }

    /// What a journal has to say, so that this is read from it.
    pub(super) fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        for (segment, Replayed { table, blocks, removed }) in &self.segments {
            let segment = *segment;
            records.push(match *table {
                Some((version, table_pages)) => Record::Sealed { segment, version, table_pages },
                None => Record::Opened { segment },
            });
            let removed = removed.iter().map(|page| Record::Removed { segment, first_page: *page });
            records.extend(removed);
            if table.is_none() {
                records.extend(blocks.iter().map(|block| Record::Block(*block)));
            }
        }
        records
    }

    pub(super) fn apply(&mut self, record: Record) {
        match record {
            Record::Opened { segment } => {
                self.segments.entry(segment).or_default();
            }
            Record::Block(block) => {
                self.segments.entry(block.segment).or_default().blocks.push(block);
            }
            Record::Removed { segment, first_page } => {
                self.segments.entry(segment).or_default().removed.insert(first_page);
            }
            Record::Sealed { segment, version, table_pages } => {
                let table = Some((version, table_pages));
                self.segments.insert(segment, Replayed { table, ..Replayed::default() });
            }
            Record::Dropped { segment } => {
                self.segments.remove(&segment);
            }
        }
    }
}

/// Pages of a file, read many at a time.
pub(super) struct Pages<'a> {
    drive: &'a dyn Drive,
    file: FileId,
    length: u64,
    /// Where `bytes` begins.
    first: u32,
    bytes: Vec<u8>,
}

/// Pages that are read at a time: 1 MiB.
const READ_PAGES: u32 = 256;

impl<'a> Pages<'a> {
    pub(super) fn new(drive: &'a dyn Drive, file: FileId) -> std::io::Result<Self> {
        let length = drive.length(file)?;
        Ok(Self { drive, file, length, first: 0, bytes: Vec::new() })
    }

    /// A page; `None` when the file has it not whole. To be asked in order.
    pub(super) fn get(&mut self, page: u32) -> std::io::Result<Option<&[u8]>> {
        let (from, size) = (offset_of(page), PAGE_BYTES as usize);
        if from + u64::from(PAGE_BYTES) > self.length {
            return Ok(None);
        }
        let have = self.bytes.len() / size;
        if page < self.first || (page - self.first) as usize >= have {
            let wanted = (self.length - from).min(offset_of(READ_PAGES));
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX) / size * size;
            self.bytes.resize(wanted, 0);
            self.first = page;
            self.drive.read(self.file, from, &mut self.bytes)?;
        }
        let start = (page - self.first) as usize * size;
        Ok(self.bytes.get(start..start + size))
    }
}
