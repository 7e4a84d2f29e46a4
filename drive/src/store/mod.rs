//! A store: blocks on one folder or several, each with its capacity.
//!
//! - **DRIVE-S1**: A folder that fails, is full or is gone costs misses for its blocks. The blocks of
//!   the other folders are found, and new ones go there.
//! - **DRIVE-S2**: All folders of a store name the same store. A folder of another store is refused,
//!   because its blocks would be counted and removed by two owners. A new folder takes the name from
//!   the others. While none of them answers it is not known, and nothing is opened.

mod owner;
mod room;
mod verify;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use cxl_shm::clock::SystemClock;
use kv_cache::BlockKey;

use crate::io::{
    BoundedDrive, Buffer, CallThread, Drive, EngineKind, FolderDrive, OpenFolderError,
    TooFewOpenFiles, open_files,
};
use crate::volume::{
    BlockSpec, CommitError, OpenVolumeError, ReadMiss, ReserveError, STORE_UNKNOWN, Volume,
    VolumeOptions, WriteError, has_manifest, most_bytes, rebuild_manifest, segments_in,
    segments_of, store_of,
};

pub use room::KeepRoom;
pub use verify::Verified;

/// A folder of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FolderOptions {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes that it may have allocated.
    pub capacity_bytes: u64,
}

/// What a store is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To be read. Nothing in the folders changes.
    Read,
    /// To be read and written.
    Write,
    /// As to be written, and a manifest that cannot be used is made anew from what is found.
    Repair,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Which engine is tried first.
    pub engine: EngineKind,
    /// The host that the folders belong to.
    pub host: [u8; 16],
    /// Whether folders of another host are taken over.
    pub take_over: bool,
    /// What for.
    pub access: Access,
}

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// A folder cannot be used.
    #[error(transparent)]
    Folder(#[from] OpenFolderError),
    /// What is in a folder cannot be used.
    #[error("{}: {source}", .folder.display())]
    Volume {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: OpenVolumeError,
    },
    /// Two folders are of two stores (DRIVE-S2).
    #[error("{} is of another store than the folders before it; give the folders of one store", .folder.display())]
    OtherStore {
        /// The folder.
        folder: PathBuf,
    },
    /// Which store new folders belong to is not known (DRIVE-S2).
    #[error(
        "the device of {} does not answer, and {} is new: it belongs to the store of the other one; \
         try again when the device answers, or leave out the folder if it is gone for good",
        .silent.display(), .new.display()
    )]
    StoreUnknown {
        /// A folder whose device does not answer.
        silent: PathBuf,
        /// A folder that names no store.
        new: PathBuf,
    },
    /// The segments of the folders are more files than this process may open.
    #[error(transparent)]
    OpenFiles(#[from] TooFewOpenFiles),
    /// There is none.
    #[error("a store has at least one folder, and none of those given can be used")]
    NoFolder,
}

/// Why a block was not put.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// No folder took it.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The folder that took it failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The drive has stopped.
    #[error("the drive has stopped before the block was written")]
    Stopped,
}

/// Why a block was not fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetMiss {
    /// The folder that has it says why.
    #[error(transparent)]
    Read(#[from] ReadMiss),
    /// The deadline is over.
    #[error("the device did not answer before the deadline")]
    Late,
    /// The drive has stopped.
    #[error("the drive has stopped")]
    Stopped,
}

impl GetMiss {
    /// Whether the bytes of the block are not those that were written.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Read(ReadMiss::Damaged))
    }
}

/// A folder and what is open of it.
#[derive(Debug)]
struct Folder {
    options: FolderOptions,
    /// Carries out the calls to the folder, also those that open it (DRIVE-I6).
    calls: Arc<CallThread>,
    /// `None` while its device does not answer.
    volume: RwLock<Option<Arc<Volume>>>,
}

impl Folder {
    fn volume(&self) -> Option<Arc<Volume>> {
        self.volume.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Blocks on folders of drives, owned by this process.
#[derive(Debug)]
pub struct Store {
    folders: Vec<Folder>,
    options: StoreOptions,
    store: [u8; 16],
}

impl Store {
    /// Opens the folders. New ones become part of the store. A folder whose device does not answer
    /// is left out, and [`reopen`](Self::reopen) tries it again (DRIVE-S1).
    ///
    /// # Errors
    /// [`OpenStoreError`].
    pub fn open(folders: &[FolderOptions], options: StoreOptions) -> Result<Self, OpenStoreError> {
        let mut drives = Vec::new();
        let mut store = None;
        for folder in folders {
            let calls = start_calls(&folder.path)?;
            let mut drive = match connect(&folder.path, &calls, options.engine) {
                Err(OpenFolderError::System { source, .. }) if is_device_error(&source) => None,
                outcome => Some(outcome?),
            };
            match drive.as_ref().map(|drive| store_of(drive)) {
                Some(Ok(its)) => store = store.or(its),
                Some(Err(error)) if is_device_error(&error) => drive = None,
                // Opening the volume says why.
                Some(Err(_)) | None => {}
            }
            drives.push((folder, calls, drive));
        }
        let files = drives.iter().filter_map(|(folder, _, drive)| Some((*folder, drive.as_ref()?)));
        open_files::allow(files.map(|it| segments_max(it.1, it.0, options.access)).sum())?;
        let store = match store {
            Some(store) => store,
            // A repair of a part of the folders does not invent what the others say.
            None if options.access == Access::Repair => STORE_UNKNOWN,
            None => new_store(&drives)?,
        };
        let mut opened = Vec::new();
        for (folder, calls, drive) in drives {
            let volume = match drive {
                Some(drive) => open_volume(folder, drive, &options, store)?,
                None => None,
            };
            if volume.is_none() {
                tracing::error!(
                    folder = %folder.path.display(),
                    "the device does not answer: its blocks are misses until it does"
                );
            }
            let volume = RwLock::new(volume);
            opened.push(Folder { options: folder.clone(), calls, volume });
        }
        if opened.iter().all(|folder| folder.volume().is_none()) {
            return Err(OpenStoreError::NoFolder);
        }
        Ok(Self { folders: opened, options, store })
    }

    /// Tries folders again whose device did not answer. Says how many are open now and were not.
    pub fn reopen(&self) -> usize {
        let mut count = 0;
        for folder in self.folders.iter().filter(|folder| folder.volume().is_none()) {
            let (path, engine) = (&folder.options.path, self.options.engine);
            let Ok(drive) = connect(path, &folder.calls, engine) else { continue };
            let files = segments_max(&drive, &folder.options, self.options.access);
            if let Err(error) = open_files::allow(files) {
                tracing::error!(folder = %path.display(), "{error}");
                continue;
            }
            match open_volume(&folder.options, drive, &self.options, self.store) {
                Ok(Some(volume)) => {
                    let mut place = folder.volume.write().unwrap_or_else(PoisonError::into_inner);
                    *place = Some(volume);
                    count += 1;
                }
                Ok(None) => {}
                Err(error) => tracing::error!("{error}"),
            }
        }
        count
    }

    /// The folders that are open, with their paths.
    pub fn volumes(&self) -> impl Iterator<Item = (&Path, Arc<Volume>)> {
        let open = |folder: &Folder| folder.volume();
        self.folders.iter().filter_map(move |it| Some((it.options.path.as_path(), open(it)?)))
    }

    /// Reads the tables of all folders. `progress` is told how many segments of how many are read.
    ///
    /// # Errors
    /// The first error of a device. Blocks of the segments that it concerns are misses, up to
    /// another scan.
    pub fn scan(&self, mut progress: impl FnMut(usize, usize)) -> io::Result<()> {
        let (mut before, mut outcome) = (0, Ok(()));
        for (_, volume) in self.volumes() {
            let mut last = 0;
            let scanned = volume.scan(|done, all| {
                progress(before + done, before + all);
                last = all;
                true
            });
            before += last;
            outcome = outcome.and(scanned);
        }
        outcome
    }

    /// Writes a block from the beginning of `buffer`, and waits until it is written. It is found
    /// after the next commit. The buffer comes back unless a drive lost it.
    ///
    /// # Errors
    /// [`PutError`].
    pub fn put(
        &self,
        spec: &BlockSpec<'_>,
        buffer: Buffer,
    ) -> (Option<Buffer>, Result<(), PutError>) {
        let reservation = match self.reserve(spec) {
            Ok((_, reservation)) => reservation,
            Err(refused) => return (Some(buffer), Err(refused.into())),
        };
        let (tell, told) = bounded(1);
        let done = move |buffer, outcome| drop(tell.send((buffer, outcome)));
        reservation.write(buffer, Box::new(done));
        match told.recv() {
            Ok((buffer, outcome)) => (buffer, outcome.map_err(PutError::Write)),
            Err(_) => (None, Err(PutError::Stopped)),
        }
    }

    /// Makes all that was put or removed durable. Returns the keys of the blocks that are found from
    /// now on, and the errors of folders: their blocks are not kept (DRIVE-S1).
    pub fn commit(&self) -> (Vec<BlockKey>, Vec<CommitError>) {
        let (mut keys, mut errors) = (Vec::new(), Vec::new());
        for (_, volume) in self.volumes() {
            errors.extend(volume.commit_untold().err());
            // Blocks of steps before the one that failed are kept.
            keys.extend(volume.take_untold());
        }
        (keys, errors)
    }

    /// Length of a block in bytes, when a folder has it.
    #[must_use]
    pub fn find(&self, key: &BlockKey) -> Option<u32> {
        self.volumes().find_map(|(_, volume)| volume.find(key))
    }

    /// Reads a block to the beginning of `buffer`, which has at least
    /// [`buffer_bytes`](crate::volume::StoredBlock::buffer_bytes) of it, and says how many bytes the
    /// block has. Waits no longer
    /// than `timeout`: then the buffer stays with the drive.
    ///
    /// # Errors
    /// The buffer unless the drive keeps it, and why the block is a miss.
    pub fn get(
        &self,
        key: BlockKey,
        buffer: Buffer,
        timeout: Duration,
    ) -> Result<(Buffer, u32), (Option<Buffer>, GetMiss)> {
        let Some(volume) = self.volume_of(&key) else {
            return Err((Some(buffer), ReadMiss::NotFound.into()));
        };
        let (tell, told) = bounded(1);
        let done = Box::new(move |unverified| drop(tell.send(unverified)));
        volume.read(key, buffer, done).map_err(|(buffer, miss)| (Some(buffer), miss.into()))?;
        match told.recv_timeout(timeout) {
            Ok(unverified) => {
                unverified.verify().map_err(|(buffer, miss)| (Some(buffer), miss.into()))
            }
            Err(RecvTimeoutError::Timeout) => {
                volume.read_was_late();
                Err((None, GetMiss::Late))
            }
            Err(RecvTimeoutError::Disconnected) => Err((None, GetMiss::Stopped)),
        }
    }

    /// Removes a block. Says whether a folder had it.
    pub fn remove(&self, key: &BlockKey) -> bool {
        // A key may have two places after damage.
        self.volumes().filter(|(_, volume)| volume.remove(key)).count() > 0
    }

    /// Says that a request has used these blocks, from the root on, on a drive or in the pool. They
    /// count as used in one moment (DRIVE-P2). Blocks that no folder has are passed over.
    pub fn used(&self, keys: &[BlockKey]) {
        self.volumes().for_each(|(_, volume)| volume.used(keys));
    }
}

/// Segments that a folder may have: each is an open file.
fn segments_max(drive: &BoundedDrive, folder: &FolderOptions, access: Access) -> u64 {
    let now = segments_of(drive);
    match access {
        Access::Write => now.max(segments_in(drive, folder.capacity_bytes)),
        Access::Read | Access::Repair => now,
    }
}

/// Identity of a new store, in new folders. `drives` are those of all its folders.
///
/// # Errors
/// [`OpenStoreError::StoreUnknown`]: the folders of a device that does not answer may name it.
fn new_store(
    drives: &[(&FolderOptions, Arc<CallThread>, Option<BoundedDrive>)],
) -> Result<[u8; 16], OpenStoreError> {
    let path = |answers: bool| {
        let found = drives.iter().find(|(.., drive)| drive.is_some() == answers);
        found.map(|(folder, ..)| folder.path.clone())
    };
    match (path(false), path(true)) {
        (Some(silent), Some(new)) => Err(OpenStoreError::StoreUnknown { silent, new }),
        _ => Ok(*uuid::Uuid::new_v4().as_bytes()),
    }
}

/// The volume in a folder. `None` when the device does not answer.
fn open_volume(
    folder: &FolderOptions,
    drive: BoundedDrive,
    options: &StoreOptions,
    store: [u8; 16],
) -> Result<Option<Arc<Volume>>, OpenStoreError> {
    let mut volume_options = VolumeOptions {
        capacity_bytes: folder.capacity_bytes,
        segment_bytes: None,
        host: options.host,
        take_over: options.take_over,
        clock: Arc::new(SystemClock::start()),
    };
    let failed = |source| OpenStoreError::Volume { folder: folder.path.clone(), source };
    let mut losses = Vec::new();
    if options.access == Access::Repair {
        let known = (store != STORE_UNKNOWN).then_some(store);
        losses =
            rebuild_manifest(&drive, &volume_options, known).map_err(failed)?.unwrap_or_default();
        if !has_manifest(&drive) {
            return Err(failed(OpenVolumeError::ManifestMissing));
        }
        // Nothing new is written, and what is there stays, however much that is.
        volume_options.capacity_bytes = folder.capacity_bytes.min(most_bytes(&drive));
    }
    let drive = Box::new(drive);
    let outcome = match options.access {
        Access::Read => Volume::open_to_read(drive, volume_options),
        Access::Write | Access::Repair => Volume::open(drive, volume_options, store),
    };
    match outcome {
        Ok(volume) if [store, STORE_UNKNOWN].contains(&volume.store()) => {
            volume.add_losses(losses);
            Ok(Some(volume))
        }
        Ok(_) => Err(OpenStoreError::OtherStore { folder: folder.path.clone() }),
        Err(OpenVolumeError::System { source, .. }) if is_device_error(&source) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// The thread of a folder's calls.
fn start_calls(path: &Path) -> Result<Arc<CallThread>, OpenFolderError> {
    let calls = CallThread::start(time_is_over(path));
    calls.map(Arc::new).map_err(|source| OpenFolderError::System {
        folder: path.to_owned(),
        action: "start a thread for",
        source,
    })
}

/// Opens a folder. Waits no longer than the calls may take.
fn connect(
    path: &Path,
    calls: &Arc<CallThread>,
    engine: EngineKind,
) -> Result<BoundedDrive, OpenFolderError> {
    let folder = path.to_owned();
    let open = move || FolderDrive::open(&folder, engine).map(|drive| with_faults(&folder, drive));
    let silent =
        |source| OpenFolderError::System { folder: path.to_owned(), action: "open", source };
    BoundedDrive::open(Arc::clone(calls), open).map_err(silent)?
}

#[cfg(feature = "sim")]
fn time_is_over(path: &Path) -> Receiver<()> {
    use crate::io::faulty::Faults;
    Faults::asked_for(path).map_or_else(crossbeam_channel::never, |faults| faults.over())
}

#[cfg(not(feature = "sim"))]
fn time_is_over(_: &Path) -> Receiver<()> {
    crossbeam_channel::never()
}

#[cfg(feature = "sim")]
fn with_faults(path: &Path, drive: FolderDrive) -> Arc<dyn Drive> {
    use crate::io::faulty::{Faults, FaultyDrive};
    match Faults::asked_for(path) {
        Some(faults) => Arc::new(FaultyDrive::new(drive, faults)),
        None => Arc::new(drive),
    }
}

#[cfg(not(feature = "sim"))]
fn with_faults(_: &Path, drive: FolderDrive) -> Arc<dyn Drive> {
    Arc::new(drive)
}

/// Whether the device is at fault, and not what the caller has asked for.
fn is_device_error(error: &io::Error) -> bool {
    let device = [libc::EIO, libc::ENODEV, libc::ENXIO, libc::ESTALE];
    let is_silent = error.kind() == io::ErrorKind::TimedOut;
    is_silent || error.raw_os_error().is_some_and(|code| device.contains(&code))
}

#[cfg(test)]
mod tests;
