//! The pool, followed by its logs.

use std::path::{Path, PathBuf};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::layout::{Superblock, SuperblockError, read_superblock};
use cxl_shm::region::{OpenError, Region};
use kv_cache::{Changes, GeometryError, Handle, IndexKey, KeySpace, PoolReader};

use super::record::{self, RECORD_BYTES, Record};

/// Handles whose descriptors are read together.
const LOOK_TOGETHER: usize = 4096;
/// How often the path is checked for another file.
const PATH_CHECK_MS: u64 = 1000;

/// Why a region is not followed, or not any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{}: {source}", .region.display())]
    Superblock { region: PathBuf, source: SuperblockError },
    #[error(transparent)]
    Cache(#[from] GeometryError),
    #[error("{} was formatted again, or its file was replaced", .region.display())]
    Replaced { region: PathBuf },
}

/// What the pool gained and lost since the last look.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Keys of which a copy is gone.
    pub(super) removed: Vec<IndexKey>,
    /// Records that were published, in the order in which engines wrote them.
    pub(super) records: Vec<Record>,
}

#[derive(Debug)]
pub(super) struct Source {
    region: Region,
    superblock: Superblock,
    reader: PoolReader,
    records: KeySpace,
    /// Blocks that were added, and may be records.
    unread: Vec<Handle>,
    clock: SystemClock,
    path_checked_ms: u64,
    malformed: u64,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, SourceError> {
        let region = Region::open_read_only(path)?;
        let (superblock, layout) = superblock_of(&region)?;
        let reader = PoolReader::new(&superblock, &layout)?.with_changes();
        Ok(Self {
            region,
            superblock,
            reader,
            records: record::key_space(),
            unread: Vec::new(),
            clock: SystemClock::start(),
            path_checked_ms: 0,
            malformed: 0,
        })
    }

    /// Takes in what was announced.
    pub(super) fn follow(&mut self) -> Result<News, SourceError> {
        self.reader.refresh(self.region.fabric());
        let Changes { added, mut removed } = self.reader.take_changes();
        self.unread.extend(added.into_iter().map(|(handle, _)| handle));
        let mut records = self.read_records();
        if !records.is_empty() {
            // A record is published after its blocks, perhaps by another node. The heads of the logs
            // are read one after another: that of the blocks may have been read before that of the
            // record, and is read again. Records that come with this look wait for the next.
            self.reader.refresh(self.region.fabric());
            let changes = self.reader.take_changes();
            removed.extend(changes.removed);
            self.unread.extend(changes.added.into_iter().map(|(handle, _)| handle));
        }
        self.check_region()?;
        records.sort_by(|one, other| one.since_epoch_s.total_cmp(&other.since_epoch_s));
        Ok(News { removed, records })
    }

    /// The records among the blocks that were added.
    fn read_records(&mut self) -> Vec<Record> {
        let unread = std::mem::take(&mut self.unread);
        let mut records = Vec::new();
        for handles in unread.chunks(LOOK_TOGETHER) {
            let fabric = self.region.fabric();
            let found = self.reader.read_marked(fabric, handles, &self.records, RECORD_BYTES);
            for (key, bytes) in found {
                match Record::decode(&bytes).filter(|record| self.records.key(&record.hash) == key)
                {
                    Some(record) => records.push(record),
                    None => self.note_malformed(),
                }
            }
        }
        records
    }

    /// Whether some node has a block, as of the last look.
    pub(super) fn has(&self, key: IndexKey) -> bool {
        self.reader.has(key)
    }

    fn note_malformed(&mut self) {
        self.malformed += 1;
        if self.malformed.is_power_of_two() {
            tracing::warn!(
                records = self.malformed,
                "records of another version, or damaged, were left out: run engines and this command \
                 from one release"
            );
        }
    }

    fn check_region(&mut self) -> Result<(), SourceError> {
        let (now, _) = superblock_of(&self.region)?;
        let mut is_same = now.uuid == self.superblock.uuid;
        let now_ms = self.clock.now_ms();
        if is_same && now_ms >= self.path_checked_ms + PATH_CHECK_MS {
            self.path_checked_ms = now_ms;
            is_same = self.region.is_at_its_path();
        }
        let region = || self.region.path().to_owned();
        if is_same { Ok(()) } else { Err(SourceError::Replaced { region: region() }) }
    }
}

fn superblock_of(region: &Region) -> Result<(Superblock, cxl_shm::layout::Layout), SourceError> {
    read_superblock(region.fabric())
        .map_err(|source| SourceError::Superblock { region: region.path().to_owned(), source })
}
