//! What journals say when no manifest says how much of them counts.
//!
//! The last commit of a journal may never have ended. It is taken for one that has when everything it
//! names is there: the names of files become durable before the manifest (DRIVE-D1). Otherwise it
//! adds blocks, and takes nothing away.

use std::collections::{HashMap, HashSet};
use std::io;

use kv_cache::BlockKey;

use super::Opened;
use super::reopen::Loss;
use super::replay::{Pages, Replay};
use super::tables::Table;
use crate::format::{FileName, PageKind, Record, Seal};
use crate::io::{Content, Drive};

/// What the journals among `files` say together, the oldest first: the newest may have been begun when
/// the process died, and have a part of what the one before it says. `files` are in order.
///
/// # Errors
/// The system's.
pub(super) fn replay_all(
    drive: &dyn Drive,
    folder: [u8; 16],
    files: &[FileName],
) -> io::Result<Replay> {
    let there = There { drive, folder, files: files.iter().copied().collect() };
    let (mut replay, mut newest) = (Replay::default(), HashMap::new());
    for name in files {
        let FileName::Journal(journal) = *name else { continue };
        let (commits, losses) = commits_of(drive, folder, journal)?;
        replay.losses.extend(losses);
        let last = commits.len().saturating_sub(1);
        for (number, commit) in commits.into_iter().enumerate() {
            let has_ended = number < last || commit.has_ended(&there);
            for record in commit.records {
                if has_ended || there.may_add(&record) {
                    if let Record::Block(block) = record {
                        let place = (block.segment, block.first_page);
                        newest.insert(block.key, place);
                    }
                    replay.apply(record);
                }
            }
        }
    }
    // A block that was moved, or that two journals have, is where it was last.
    let is_newest = |key: &BlockKey, place| newest.get(key) == Some(&place);
    for (segment, replayed) in &mut replay.segments {
        let mut places = HashSet::new();
        replayed.blocks.retain(|block| {
            is_newest(&block.key, (*segment, block.first_page)) && places.insert(block.first_page)
        });
    }
    Ok(replay)
}

/// The pages of a journal that one commit has written.
#[derive(Debug, Default)]
struct Commit {
    records: Vec<Record>,
    /// A page behind those of the commit before is not whole.
    is_torn: bool,
}

impl Commit {
    fn has_ended(&self, there: &There<'_>) -> bool {
        !self.is_torn && self.records.iter().all(|record| there.has(record))
    }
}

/// The commits of a journal, and its pages that are not whole.
fn commits_of(
    drive: &dyn Drive,
    folder: [u8; 16],
    journal: u64,
) -> io::Result<(Vec<Commit>, Vec<Loss>)> {
    let name = FileName::Journal(journal).to_string();
    let file = Opened { drive, file: drive.open(&name, Content::Records)? };
    let mut pages = Pages::new(drive, file.file)?;
    let (mut commits, mut losses) = (Vec::<Commit>::new(), Vec::new());
    let (mut last, mut is_torn) = (None, false);
    for page in 0.. {
        let Some(bytes) = pages.get(page)? else { break };
        let seal = Seal { kind: PageKind::Journal, folder, file: journal, page };
        match seal.check(bytes) {
            Ok((count, generation)) => {
                if last != Some(generation) {
                    commits.push(Commit::default());
                    last = Some(generation);
                }
                if let Some(commit) = commits.last_mut() {
                    commit.is_torn |= std::mem::take(&mut is_torn);
                    commit.records.extend(Record::all_in(bytes, count).flatten());
                }
            }
            Err(error) => {
                losses.push(Loss::JournalPage { journal, page, cause: error.to_string() });
                is_torn = true;
            }
        }
    }
    if let Some(commit) = commits.last_mut() {
        commit.is_torn |= is_torn;
    }
    Ok((commits, losses))
}

/// Files that are there.
struct There<'a> {
    drive: &'a dyn Drive,
    folder: [u8; 16],
    files: HashSet<FileName>,
}

impl There<'_> {
    /// Whether what a record names is there, or is not there as it says.
    fn has(&self, record: &Record) -> bool {
        match *record {
            Record::Block(block) => self.has_segment(block.segment),
            Record::Opened { segment } => self.has_segment(segment),
            Record::Sealed { segment, version, table_pages } => {
                let name = (segment, version);
                let table = Table::read(self.drive, self.folder, name, table_pages);
                table.is_ok_and(|table| table.losses.is_empty())
            }
            Record::Removed { .. } | Record::Dropped { .. } => true,
        }
    }

    /// Whether a record of a commit that may not have ended counts.
    fn may_add(&self, record: &Record) -> bool {
        match *record {
            Record::Block(_) | Record::Opened { .. } | Record::Sealed { .. } => self.has(record),
            Record::Removed { .. } => false,
            Record::Dropped { segment } => !self.has_segment(segment),
        }
    }

    fn has_segment(&self, segment: u32) -> bool {
        self.files.contains(&FileName::Data(segment))
    }
}
