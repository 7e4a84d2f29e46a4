//! Tables of segments, read from the drive.

use std::collections::{BTreeMap, HashSet};
use std::io;

use super::reopen::Loss;
use super::replay::{Pages, Replay};
use super::{Opened, Volume};
use crate::format::{BlockRecord, FileName, PageKind, Record, Seal};
use crate::io::{Content, Drive, PAGE_BYTES};

/// What a table says.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) blocks: Vec<BlockRecord>,
    /// Its pages that are not used, and its records.
    pub(super) losses: Vec<Loss>,
}

impl Table {
    /// Reads `table_pages` pages of version `version` of the table of `segment`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(
        drive: &dyn Drive,
        folder: [u8; 16],
        (segment, version): (u32, u32),
        table_pages: u32,
    ) -> io::Result<Self> {
        let name = FileName::Table(segment, version).to_string();
        let file = Opened { drive, file: drive.open(&name, Content::Records)? };
        let mut pages = Pages::new(drive, file.file)?;
        let mut table = Self::default();
        for page in 0..table_pages {
            let seal = Seal { kind: PageKind::Table, folder, file: segment.into(), page };
            let mut lost = |cause: String| {
                table.losses.push(Loss::TablePage { segment, page, cause });
            };
            let Some(bytes) = pages.get(page)? else {
                lost("the file ends before".to_owned());
                break;
            };
            let count = match seal.check(bytes) {
                Ok((count, _)) => count,
                Err(error) => {
                    lost(error.to_string());
                    continue;
                }
            };
            for record in Record::all_in(bytes, count) {
                match record {
                    Some(Record::Block(block)) if block.segment == segment => {
                        table.blocks.push(block);
                    }
                    _ => lost("an unknown record".to_owned()),
                }
            }
        }
        Ok(table)
    }
}

impl Volume {
    /// The blocks in a table, and how many of its pages are lost.
    pub(super) fn read_table(
        &self,
        segment: u32,
        version: u32,
        table_pages: u32,
    ) -> io::Result<(Vec<BlockRecord>, u32)> {
        let Table { blocks, losses } =
            Table::read(&*self.drive, self.folder, (segment, version), table_pages)?;
        let lost = u32::try_from(losses.len()).unwrap_or(u32::MAX);
        let mut state = self.state();
        for loss in losses {
            if !state.losses.contains(&loss) {
                state.losses.push(loss);
            }
        }
        Ok((blocks, lost))
    }
}

impl Replay {
    /// After damage to the journal: tables on the drive say themselves what they have. A table that
    /// the journal names is used as it is. All others add to what the journal says of their segment:
    /// one may be from a commit that failed, and have a part of the blocks. A block that was removed
    /// before may come back, and has the right bytes or is found damaged (DRIVE-D2).
    ///
    /// Returns the tables that were taken in. They are needed until a journal has what they say.
    pub(super) fn adopt_tables(
        &mut self,
        drive: &dyn Drive,
        folder: [u8; 16],
        names: &[FileName],
    ) -> Vec<FileName> {
        let mut versions = BTreeMap::<u32, Vec<u32>>::new();
        for name in names {
            if let FileName::Table(segment, version) = *name {
                versions.entry(segment).or_default().push(version);
            }
        }
        let mut adopted = Vec::new();
        for (segment, versions) in versions {
            let known = self.segments.entry(segment).or_default();
            if known.table.take_if(|(version, _)| !versions.contains(version)).is_none()
                && known.table.is_some()
            {
                continue;
            }
            let mut places: HashSet<u32> = known.blocks.iter().map(|it| it.first_page).collect();
            for version in versions {
                let pages = table_pages(drive, segment, version);
                match Table::read(drive, folder, (segment, version), pages) {
                    Ok(table) => {
                        let new = table.blocks.into_iter();
                        known.blocks.extend(new.filter(|block| places.insert(block.first_page)));
                        self.losses.extend(table.losses);
                        adopted.push(FileName::Table(segment, version));
                    }
                    // A later scan tries again.
                    Err(_) if known.blocks.is_empty() => known.table = Some((version, pages)),
                    Err(_) => self.losses.push(Loss::Table { segment }),
                }
            }
        }
        adopted
    }
}

/// Whole pages that a table has on the drive.
fn table_pages(drive: &dyn Drive, segment: u32, version: u32) -> u32 {
    let name = FileName::Table(segment, version).to_string();
    let Ok(file) = drive.open(&name, Content::Records) else { return 0 };
    let file = Opened { drive, file };
    let length = drive.length(file.file).unwrap_or(0);
    u32::try_from(length / u64::from(PAGE_BYTES)).unwrap_or(u32::MAX)
}
