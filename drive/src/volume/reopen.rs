//! A folder is opened: its manifest and journal are read, and segments can be scanned.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex};

use super::commit::replace_manifest;
use super::journal::{InForce, Log, pages_for};
use super::replay::{Replay, Replayed};
use super::segment::{Phase, Segment};
use super::state::State;
use super::{CAPACITY_BYTES_MIN, Opened, SEGMENT_BYTES_MIN, Volume, VolumeOptions};
use crate::format::{
    CarriedOut, FileName, JOURNAL_MAX, MANIFEST, Manifest, NUMBER_MAX, PageError, STORE_UNKNOWN,
};
use crate::index::{SEGMENT_PAGES_MAX, SEGMENTS_MAX};
use crate::io::{Content, Drive, PAGE_BYTES};

/// Segments that a full folder has, where nobody says otherwise.
const SEGMENTS: u64 = 64;

/// Why a folder was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenVolumeError {
    /// The device does not answer.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The root is damaged.
    #[error(
        "the manifest is {cause}; `rackline spill fsck --repair` makes another from what it finds"
    )]
    ManifestDamaged {
        /// What is wrong with it.
        cause: String,
    },
    /// The root is not there.
    #[error(
        "there is no manifest; if the folder had blocks, `rackline spill fsck --repair` makes \
             another from what it finds"
    )]
    ManifestMissing,
    /// Another version wrote the folder.
    #[error(
        "the folder has format {0}, which this program does not read; use the program that \
             wrote it, or empty the folder"
    )]
    OtherVersion(u32),
    /// The folder is of another host.
    #[error(
        "the folder belongs to another host: two writers would damage it; when that host has \
             given it up, pass --take-over"
    )]
    OtherHost,
    /// The capacity or the length of a segment cannot be used.
    #[error("{0}")]
    Sizes(String),
}

/// What opening, scanning or reading found lost. Blocks that it covers are misses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// A journal is not there.
    #[error("journal {journal} is missing: blocks of segments without a table are lost")]
    Journal {
        /// Its number.
        journal: u64,
    },
    /// A page of a journal is not used.
    #[error("page {page} of journal {journal} is lost: {cause}")]
    JournalPage {
        /// Its journal.
        journal: u64,
        /// Its number.
        page: u32,
        /// What is wrong.
        cause: String,
    },
    /// The extents of a segment are not there.
    #[error("segment {segment} is missing: its blocks are lost")]
    Segment {
        /// Its number.
        segment: u32,
    },
    /// A table is not there.
    #[error("the table of segment {segment} is missing: its blocks are lost")]
    Table {
        /// Its segment.
        segment: u32,
    },
    /// A page of a table is not used.
    #[error("page {page} of the table of segment {segment} is lost: {cause}")]
    TablePage {
        /// Its segment.
        segment: u32,
        /// Its number.
        page: u32,
        /// What is wrong.
        cause: String,
    },
    /// A record names an extent that the segment cannot have.
    #[error("segment {segment} has no whole extent at page {first_page}: a block is lost")]
    Extent {
        /// Its segment.
        segment: u32,
        /// Where it would begin.
        first_page: u32,
    },
}

pub(super) fn during(action: &'static str) -> impl Fn(io::Error) -> OpenVolumeError {
    move |source| OpenVolumeError::System { action, source }
}

impl Volume {
    /// Opens a folder, or makes it a new one. Blocks of the newest segment are found at once, all
    /// others after [`scan`](Self::scan).
    ///
    /// # Errors
    /// [`OpenVolumeError`].
    pub fn open(
        drive: Box<dyn Drive>,
        options: VolumeOptions,
        store: [u8; 16],
    ) -> Result<Arc<Self>, OpenVolumeError> {
        check_sizes(&options)?;
        let names = drive.names().map_err(during("list the folder"))?;
        let files: Vec<_> = names.iter().filter_map(|name| FileName::read(name)).collect();
        if !names.iter().any(|name| name == MANIFEST) {
            if !files.is_empty() {
                return Err(OpenVolumeError::ManifestMissing);
            }
            let manifest = new_manifest(&options, store);
            replace_manifest(&*drive, &manifest).map_err(during("make a manifest"))?;
        }
        let mut manifest = read_manifest(&*drive)?;
        if manifest.host != options.host && !options.take_over {
            return Err(OpenVolumeError::OtherHost);
        }
        if manifest.segment_bytes > options.capacity_bytes / 4 {
            return Err(OpenVolumeError::Sizes(format!(
                "the folder has segments of {} bytes, and its capacity has to be four times that at \
                 least: give a larger capacity",
                manifest.segment_bytes
            )));
        }
        let most = most_of(manifest.segment_bytes);
        if options.capacity_bytes > most {
            return Err(OpenVolumeError::Sizes(format!(
                "the folder was made with segments of {} bytes, and has {SEGMENTS_MAX} of them at \
                 most: give a capacity of {most} bytes or less, or begin a new folder",
                manifest.segment_bytes
            )));
        }
        if manifest.store == STORE_UNKNOWN && store != STORE_UNKNOWN {
            // A repair has made the manifest, and did not know the store.
            manifest.store = store;
            manifest.generation += 1;
            replace_manifest(&*drive, &manifest).map_err(during("replace the manifest"))?;
        }
        Self::with_manifest(drive, options, &manifest, &files)
    }

    /// Opens a folder to be read, and changes nothing in it. Nothing may be written then.
    ///
    /// # Errors
    /// [`OpenVolumeError`].
    pub fn open_to_read(
        drive: Box<dyn Drive>,
        options: VolumeOptions,
    ) -> Result<Arc<Self>, OpenVolumeError> {
        let names = drive.names().map_err(during("list the folder"))?;
        if !names.iter().any(|name| name == MANIFEST) {
            return Err(OpenVolumeError::ManifestMissing);
        }
        let manifest = read_manifest(&*drive)?;
        let files: Vec<_> = names.iter().filter_map(|name| FileName::read(name)).collect();
        let replay = Replay::read(&*drive, &manifest).map_err(during("read the journal"))?;
        let (volume, _) = Self::assemble(drive, options, &manifest, &files, replay)?;
        Ok(volume)
    }

    fn with_manifest(
        drive: Box<dyn Drive>,
        options: VolumeOptions,
        manifest: &Manifest,
        files: &[FileName],
    ) -> Result<Arc<Self>, OpenVolumeError> {
        // The bytes of a manifest are durable before its rename; the rename may not be (DRIVE-D4).
        drive.sync_folder().map_err(during("make the manifest durable"))?;
        let replay = Replay::read(&*drive, manifest).map_err(during("read the journal"))?;
        let (volume, named) = Self::assemble(drive, options, manifest, files, replay)?;
        let named: HashSet<_> = named.into_iter().collect();
        let orphans = files.iter().copied().filter(|name| !named.contains(name));
        volume.remove_files(orphans.map(|name| (name, volume.pages_of_orphan(name))));
        Ok(volume)
    }

    /// Pages that a file takes of what segments may have, when no manifest names it.
    fn pages_of_orphan(&self, name: FileName) -> u32 {
        if !matches!(name, FileName::Data(_)) {
            return 0;
        }
        let Ok(file) = self.drive.open(&name.to_string(), Content::Payload) else { return 0 };
        let file = Opened { drive: &*self.drive, file };
        let allocated = self.drive.allocated(file.file).unwrap_or(0);
        u32::try_from(allocated.div_ceil(u64::from(PAGE_BYTES))).unwrap_or(u32::MAX)
    }

    /// The folder in memory, and the files that it uses.
    fn assemble(
        drive: Box<dyn Drive>,
        options: VolumeOptions,
        manifest: &Manifest,
        files: &[FileName],
        mut replay: Replay,
    ) -> Result<(Arc<Self>, Vec<FileName>), OpenVolumeError> {
        let journal_pages = replay.journal_pages;
        let is_damaged = !replay.losses.is_empty() || journal_pages == 0;
        let adopted = match is_damaged {
            true => replay.adopt_tables(&*drive, manifest.folder, files),
            false => Vec::new(),
        };
        let mut log = Log {
            generation: manifest.generation,
            journal: manifest.journal,
            file: None,
            pages: journal_pages,
            first_pages: journal_pages,
            last_journal: manifest.journal,
            leftovers: adopted.clone(),
            written_bytes: manifest.written_bytes,
            counted_payload: 0,
            untold: Vec::new(),
        };
        let mut named = vec![FileName::Journal(manifest.journal)];
        named.extend(adopted);
        let mut next_segment = manifest.next_segment;
        for file in files {
            match *file {
                FileName::Journal(journal) if journal <= JOURNAL_MAX => {
                    log.last_journal = log.last_journal.max(journal);
                }
                FileName::Data(id) | FileName::Table(id, _) if id <= NUMBER_MAX => {
                    next_segment = next_segment.max(id + 1);
                }
                _ => {}
            }
        }
        if !is_damaged {
            let name = FileName::Journal(manifest.journal).to_string();
            log.file = drive.open(&name, Content::Records).ok();
        }
        // The next journal begins with what is in force.
        let records: usize =
            replay.segments.values().map(|it| 1 + it.blocks.len() + it.removed.len()).sum();
        log.first_pages = log.first_pages.min(pages_for(records));
        let in_force = InForce {
            journal_pages,
            written_bytes: manifest.written_bytes,
            counted_payload: 0,
            // Removals may be among what is lost (DRIVE-C1).
            carried_out: match replay.losses.is_empty() {
                true => manifest.carried_out,
                false => CarriedOut::default(),
            },
        };
        let losses = std::mem::take(&mut replay.losses);
        let mut state = State { next_segment, losses, in_force, ..State::default() };
        let volume = Self {
            folder: manifest.folder,
            store: manifest.store,
            open_ms_before: manifest.open_ms,
            opened_ms: options.clock.now_ms(),
            segment_bytes: manifest.segment_bytes,
            drive,
            options,
            transfers: Arc::default(),
            log: Mutex::new(log),
            state: Mutex::default(),
            opening: Mutex::default(),
        };
        for (id, replayed) in replay.segments {
            volume.open_replayed(&mut state, files, &mut named, id, replayed)?;
        }
        *volume.state() = state;
        Ok((Arc::new(volume), named))
    }

    fn open_replayed(
        &self,
        state: &mut State,
        files: &[FileName],
        named: &mut Vec<FileName>,
        id: u32,
        replayed: Replayed,
    ) -> Result<(), OpenVolumeError> {
        let Replayed { table, blocks, removed } = replayed;
        let data = match self.drive.open(&FileName::Data(id).to_string(), Content::Payload) {
            Ok(data) => data,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                state.losses.push(Loss::Segment { segment: id });
                return Ok(());
            }
            Err(source) => {
                return Err(OpenVolumeError::System { action: "open a segment", source });
            }
        };
        named.push(FileName::Data(id));
        let versions = files.iter().filter_map(|file| match file {
            FileName::Table(segment, version) if *segment == id && *version <= NUMBER_MAX => {
                Some(*version)
            }
            _ => None,
        });
        let pages = self.pages_a_segment();
        let mut segment = Segment::new(id, data, pages, Phase::Closed);
        segment.next_version = versions.max().unwrap_or(0) + 1;
        segment.announced = true;
        segment.cursor = pages;
        segment.removed = removed.into_iter().collect();
        segment.removed.sort_unstable();
        if let Some((version, table_pages)) = table {
            segment.phase = Phase::Sealed { version, table_pages };
            segment.scanned = false;
            let allocated = self.drive.allocated(data).map_err(during("open a segment"))?;
            let kept = allocated.div_ceil(u64::from(PAGE_BYTES)).min(u64::from(pages));
            segment.given_back = pages - u32::try_from(kept).unwrap_or(pages);
            named.push(FileName::Table(id, version));
        } else {
            segment.blocks.clone_from(&blocks);
        }
        let is_sealed = table.is_some();
        let Some(slot) = state.add(segment) else {
            let too_many = "the folder has more segments than this program keeps".to_owned();
            return Err(OpenVolumeError::Sizes(too_many));
        };
        if !is_sealed {
            let length = self.drive.length(data).map_err(during("open a segment"))?;
            let allocated = self.drive.allocated(data).map_err(during("open a segment"))?;
            state.enter_all(slot, blocks, length, allocated);
        }
        Ok(())
    }

    /// What was found lost since the folder was opened.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        self.state().losses.clone()
    }

    /// Adds what a repair has found lost before the folder was opened.
    pub(crate) fn add_losses(&self, losses: Vec<Loss>) {
        self.state().losses.extend(losses);
    }

    /// Identity of the store that the folder belongs to.
    #[must_use]
    pub const fn store(&self) -> [u8; 16] {
        self.store
    }
}

fn check_sizes(options: &VolumeOptions) -> Result<(), OpenVolumeError> {
    if options.capacity_bytes < CAPACITY_BYTES_MIN {
        let text = format!("the capacity has to be {CAPACITY_BYTES_MIN} bytes or more");
        return Err(OpenVolumeError::Sizes(text));
    }
    let segment_bytes = fitting_segment_bytes(options.capacity_bytes);
    let most = most_of(options.segment_bytes.unwrap_or(segment_bytes));
    if options.capacity_bytes > most {
        let text = format!("a folder has {most} bytes at most: give less, or several folders");
        return Err(OpenVolumeError::Sizes(text));
    }
    let most = u64::from(SEGMENT_PAGES_MAX) * u64::from(PAGE_BYTES);
    let fits = |bytes: u64| {
        (SEGMENT_BYTES_MIN..=most).contains(&bytes)
            && bytes.is_multiple_of(PAGE_BYTES.into())
            && bytes <= options.capacity_bytes / 4
    };
    if options.segment_bytes.is_some_and(|bytes| !fits(bytes)) {
        return Err(OpenVolumeError::Sizes(format!(
            "a segment has {SEGMENT_BYTES_MIN} to {most} bytes, whole pages of {PAGE_BYTES}, and at \
             most a quarter of the capacity"
        )));
    }
    Ok(())
}

/// Most bytes that segments of this length have together.
fn most_of(segment_bytes: u64) -> u64 {
    segment_bytes.saturating_mul(SEGMENTS_MAX.into())
}

/// Bytes of a segment that fits a capacity.
pub(super) fn fitting_segment_bytes(capacity_bytes: u64) -> u64 {
    let page = u64::from(PAGE_BYTES);
    let most = u64::from(SEGMENT_PAGES_MAX) * page;
    (capacity_bytes / SEGMENTS / page * page).clamp(SEGMENT_BYTES_MIN, most)
}

/// Segments that the folder of `drive` has now. 0 when it does not say.
pub(crate) fn segments_of(drive: &dyn Drive) -> u64 {
    let names = drive.names().unwrap_or_default();
    let is_data = |name: &&String| matches!(FileName::read(name), Some(FileName::Data(_)));
    names.iter().filter(is_data).count() as u64
}

/// Segments that the folder of `drive` has with so much capacity.
pub(crate) fn segments_in(drive: &dyn Drive, capacity_bytes: u64) -> u64 {
    let fitting = fitting_segment_bytes(capacity_bytes);
    let segment_bytes = read_manifest(drive).map_or(fitting, |manifest| manifest.segment_bytes);
    capacity_bytes / segment_bytes.max(1)
}

/// Most bytes that the segments of the folder of `drive` may have together. 0 when it does not say how
/// long they are.
pub(crate) fn most_bytes(drive: &dyn Drive) -> u64 {
    read_manifest(drive).map_or(0, |manifest| most_of(manifest.segment_bytes))
}

pub(super) fn new_manifest(options: &VolumeOptions, store: [u8; 16]) -> Manifest {
    let fitting = fitting_segment_bytes(options.capacity_bytes);
    Manifest {
        folder: *uuid::Uuid::new_v4().as_bytes(),
        store,
        host: options.host,
        generation: 1,
        segment_bytes: options.segment_bytes.unwrap_or(fitting),
        journal: 0,
        journal_pages: 0,
        next_segment: 1,
        written_bytes: 0,
        open_ms: 0,
        carried_out: CarriedOut::default(),
    }
}

pub(super) fn read_manifest(drive: &dyn Drive) -> Result<Manifest, OpenVolumeError> {
    let file = drive.open(MANIFEST, Content::Records).map_err(during("open the manifest"))?;
    let file = Opened { drive, file };
    let mut bytes = vec![0; PAGE_BYTES as usize];
    match drive.read(file.file, 0, &mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(OpenVolumeError::ManifestDamaged { cause: "too short".to_owned() });
        }
        Err(source) => {
            return Err(OpenVolumeError::System { action: "read the manifest", source });
        }
    }
    let manifest = Manifest::read(&bytes).map_err(|error| match error {
        PageError::Version(version) => OpenVolumeError::OtherVersion(version),
        error => OpenVolumeError::ManifestDamaged { cause: error.to_string() },
    })?;
    let most = u64::from(SEGMENT_PAGES_MAX) * u64::from(PAGE_BYTES);
    if !(SEGMENT_BYTES_MIN..=most).contains(&manifest.segment_bytes) {
        let cause = "of segments that no folder has".to_owned();
        return Err(OpenVolumeError::ManifestDamaged { cause });
    }
    if !manifest.is_possible() {
        let cause = "of numbers that no folder comes to".to_owned();
        return Err(OpenVolumeError::ManifestDamaged { cause });
    }
    Ok(manifest)
}
