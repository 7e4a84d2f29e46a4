//! The folders of this host: opened, read, and tried again when a device did not answer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::SystemClock;
use cxl_shm::host::HostIdentity;
use kv_drive::io::{CallThread, OpenFolderError};
use kv_drive::store::{Access, FolderOptions, OpenStoreError, Store, StoreOptions};
use kv_drive::volume::CAPACITY_BYTES_MIN;

use crate::error::AgentError;
use crate::settings::{DriveFolder, Settings};

/// How often devices that did not answer are tried again, in milliseconds.
const REOPEN_MS: u64 = 5_000;
/// How often the thread looks whether it is to end, in milliseconds.
const STOP_LOOK_MS: u64 = 20;

/// Whether the tables of all folders that answer are read.
#[derive(Debug, Default)]
pub(crate) struct TablesRead(Mutex<Progress>);

#[derive(Debug, Default)]
struct Progress {
    are_read: bool,
    /// How often tables were read that had not been before.
    times: u64,
}

impl TablesRead {
    /// Whether they are: a block that is not found then is not there.
    #[must_use]
    pub(crate) fn are_read(&self) -> bool {
        self.progress().are_read
    }

    /// How often tables were read that had not been before: blocks came with them.
    #[must_use]
    pub(crate) fn times(&self) -> u64 {
        self.progress().times
    }

    /// Says that tables are being read.
    pub(crate) fn begin(&self) {
        self.progress().are_read = false;
    }

    /// Says that tables are read. `has_more` says whether blocks came with them.
    pub(crate) fn end(&self, has_more: bool) {
        let mut progress = self.progress();
        progress.times += u64::from(has_more);
        progress.are_read = true;
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the folders as one store of this host. Reads no table of a segment.
///
/// # Errors
/// [`AgentError`].
pub(crate) fn open(settings: &Settings) -> Result<Store, AgentError> {
    let [first, second] = HostIdentity::current().map_err(AgentError::Host)?.machine_id;
    let mut host = [0; 16];
    host[..8].copy_from_slice(&first.to_le_bytes());
    host[8..].copy_from_slice(&second.to_le_bytes());
    let folders = settings.drives.iter().map(folder_options).collect::<Result<Vec<_>, _>>()?;
    let (engine, take_over) = (settings.engine, settings.take_over);
    let options = StoreOptions { engine, host, take_over, access: Access::Write };
    let store = Store::open(&folders, options).map_err(|error| match error {
        OpenStoreError::Folder(OpenFolderError::Owned { folder }) => {
            owned(&settings.drives, folder)
        }
        error => error.into(),
    })?;
    for (path, volume) in store.volumes() {
        let (folder, engine) = (path.display(), volume.engine());
        let capacity = volume.usage().capacity;
        tracing::info!(%folder, capacity_bytes = capacity, %engine, "a folder of a drive is open");
    }
    Ok(store)
}

/// A process has the folder: this one, where it was given under another name before.
fn owned(drives: &[DriveFolder], folder: PathBuf) -> AgentError {
    let place = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        let found = std::fs::metadata(path)?;
        Ok((found.dev(), found.ino()))
    };
    let place = |path: &Path| in_time(path, place).ok();
    let its = place(&folder);
    let same: Vec<_> = drives.iter().filter(|it| its.is_some() && place(&it.path) == its).collect();
    match same[..] {
        [first, _, ..] => AgentError::SameFolder { first: first.path.clone(), second: folder },
        _ => OpenStoreError::from(OpenFolderError::Owned { folder }).into(),
    }
}

fn folder_options(folder: &DriveFolder) -> Result<FolderOptions, AgentError> {
    let path = folder.path.clone();
    let capacity_bytes = match folder.capacity_bytes {
        Some(bytes) => bytes,
        // On a full file system the folder opens all the same: what it has is served.
        None => in_time(&folder.path, room_of)
            .map_err(|source| AgentError::Folder { folder: path.clone(), source })?
            .max(CAPACITY_BYTES_MIN),
    };
    Ok(FolderOptions { path, capacity_bytes })
}

/// Looks at a folder in the time that a call to a device may take (DRIVE-I6).
fn in_time<T: Send + 'static>(
    folder: &Path,
    look: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let path = folder.to_owned();
    CallThread::start(crossbeam_channel::never())?.call(move || look(&path), drop)?
}

/// Nine tenths of what the file system has left for the folder, with what the folder has.
fn room_of(folder: &Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let system = rustix::fs::statvfs(folder)?;
    let mut room = system.f_bavail.saturating_mul(system.f_frsize);
    for entry in std::fs::read_dir(folder)? {
        room = room.saturating_add(entry?.metadata()?.blocks() * 512);
    }
    Ok(room / 10 * 9)
}

/// Reads the tables, and later those of folders whose device answers again, until it is stopped.
pub(crate) fn keep_reading(store: &Store, tables: &TablesRead, stop: &AtomicBool) {
    let clock = SystemClock::start();
    let (mut read_all, mut is_new) = (false, true);
    let (mut next_ms, mut told) = (0, BTreeSet::new());
    while !stop.load(Ordering::Relaxed) {
        if clock.now_us() / 1000 >= next_ms {
            if store.reopen() > 0 {
                tracing::info!("a drive answers again");
                (read_all, is_new) = (false, true);
            }
            if !read_all {
                tables.begin();
                read_all = read(store, &mut told);
                tables.end(std::mem::take(&mut is_new) || read_all);
            }
            next_ms = clock.now_us() / 1000 + REOPEN_MS;
        }
        clock.sleep_ms(STOP_LOOK_MS);
    }
}

/// Reads the tables that are not read yet. Says whether all could be.
fn read(store: &Store, told: &mut BTreeSet<String>) -> bool {
    let mut tenth = 0;
    let scanned = store.scan(|done, all| {
        let now = done * 10 / all.max(1);
        if now > tenth && done < all {
            tenth = now;
            tracing::info!("reading the tables of the drives: {} %", now * 10);
        }
    });
    for loss in store.volumes().flat_map(|(_, volume)| volume.losses()) {
        // Each once: tables are read again while one of them gives errors.
        let loss = loss.to_string();
        if !told.contains(&loss) {
            tracing::warn!("a part of a drive is lost: {loss}");
            told.insert(loss);
        }
    }
    match scanned {
        Ok(()) => {
            let blocks: u64 = store.volumes().map(|(_, volume)| volume.usage().blocks).sum();
            tracing::info!(blocks, "the tables of the drives are read");
            true
        }
        Err(error) => {
            tracing::error!("some tables cannot be read: {error}; their blocks are misses");
            false
        }
    }
}
