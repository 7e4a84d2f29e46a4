//! The file that carries a host tier: in the host's DRAM, under a name made of region and node.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::{Errno, retry_on_intr};

use super::tier::HostTier;
use crate::clock::{Clock, SystemClock};
use crate::fabric::{MapError, MappedFabric, MappedHostMemory, Mapping};
use crate::host::life_lock;
use crate::host::process::ProcessIdentity;
use crate::layout::{Layout, Superblock};
use crate::units::NodeId;

/// Why the host tier is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostTierError {
    /// The file cannot be opened, sized or locked.
    #[error("cannot use the host-tier file {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It has another size than this region needs: another program's, or another version's.
    #[error(
        "the host-tier file {path} has {found_bytes} bytes instead of {bytes}; if no process of \
         this host uses the region, remove it"
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size it should have.
        bytes: u64,
    },
    /// Another version of the software made it, and lays its words out in another way.
    #[error(
        "the host-tier file {path} was made by another version of Rackline: its first word is \
         {found:#018x} instead of {expected:#018x}. All processes of a host must run one version: \
         stop those of the other version; if no process of this host uses the region, remove the file"
    )]
    OtherLayout {
        /// The file.
        path: PathBuf,
        /// Its first word.
        found: u64,
        /// The first word in this version's layout.
        expected: u64,
    },
    /// It is a link, or no file, or others than this user may write it.
    #[error(
        "the host-tier file {path} {what}. All processes of a host that use a region must run as one \
         user, and no other user may have the file: stop the processes of other users, then remove it"
    )]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A host tier's file, locked: no other process of the host joins or leaves meanwhile. The lock
/// goes with the value, also when the process dies.
#[derive(Debug)]
pub struct HostTierFile {
    file: File,
    path: PathBuf,
    new: bool,
}

/// Where host tiers lie: in the host's own DRAM.
pub const HOST_TIER_FOLDER: &str = "/dev/shm";

impl HostTierFile {
    /// Where the host tier of `node` lies in `folder` ([`HOST_TIER_FOLDER`]).
    #[must_use]
    pub fn path_in(folder: &Path, superblock: &Superblock, node: NodeId) -> PathBuf {
        folder.join(format!("rackline-{}-n{node}", superblock.uuid_text()))
    }

    /// Removes the files of all nodes of a region in `folder`. Only when no process of this host
    /// uses the region: what they hold is soft state of processes that are gone.
    ///
    /// # Errors
    /// [`HostTierError::File`] for the first that cannot be removed.
    pub fn remove_all(
        folder: &Path,
        superblock: &Superblock,
        layout: &Layout,
    ) -> Result<(), HostTierError> {
        for node in layout.nodes() {
            let path = Self::path_in(folder, superblock, node);
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(HostTierError::File { path, source }),
            }
        }
        Ok(())
    }

    /// Opens the file, creates it when it is not there, and locks it.
    ///
    /// # Errors
    /// [`HostTierError::File`].
    pub fn lock(path: &Path) -> Result<Self, HostTierError> {
        loop {
            if let Some(locked) = Self::try_lock(path, FlockOperation::LockExclusive)? {
                return Ok(locked);
            }
        }
    }

    /// As [`lock`](Self::lock), but gives up after `wait_ms`: `None` while a process that joins or
    /// leaves does not end.
    pub(crate) fn lock_within(path: &Path, wait_ms: u64) -> Result<Option<Self>, HostTierError> {
        let clock = SystemClock::start();
        loop {
            let locked = Self::try_lock(path, FlockOperation::NonBlockingLockExclusive)?;
            if locked.is_some() || clock.now_ms() >= wait_ms {
                return Ok(locked);
            }
            clock.sleep_ms(1);
        }
    }

    /// One try; `None` when another process has the lock, or the file was removed meanwhile.
    fn try_lock(path: &Path, how: FlockOperation) -> Result<Option<Self>, HostTierError> {
        let failed = |source| HostTierError::File { path: path.to_owned(), source };
        let file = open_own(path)?;
        match retry_on_intr(|| flock(&file, how)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        }
        // The last to leave removes the file under the lock: ours may be the removed one.
        let same = match std::fs::metadata(path) {
            Ok(named) => {
                let ours = file.metadata().map_err(failed)?;
                (named.dev(), named.ino()) == (ours.dev(), ours.ino())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(failed(error)),
        };
        let new = file.metadata().map_err(failed)?.len() == 0;
        Ok(same.then(|| Self { file, path: path.to_owned(), new }))
    }

    /// Maps its words; a new file gets its size. A process that maps it knows that every process
    /// which uses it lays it out alike.
    ///
    /// # Errors
    /// [`HostTierError`].
    pub fn map(&self, words: usize) -> Result<MappedHostMemory, HostTierError> {
        let bytes = words as u64 * 8;
        let failed = |source| HostTierError::File { path: self.path.clone(), source };
        let found_bytes = self.file.metadata().map_err(failed)?.len();
        if found_bytes == 0 {
            // Not only sized: a folder without room must be an error here, not a SIGBUS later.
            retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), 0, bytes))
                .map_err(|error| failed(error.into()))?;
        }
        // Before the size, which another version may have chosen otherwise.
        let mut first = [0; 8];
        if found_bytes >= 8 {
            self.file.read_exact_at(&mut first, 0).map_err(failed)?;
        }
        let found = u64::from_le_bytes(first);
        if let Err(expected) = HostTier::check_layout(found) {
            return Err(HostTierError::OtherLayout { path: self.path.clone(), found, expected });
        }
        if found_bytes != 0 && found_bytes != bytes {
            return Err(HostTierError::WrongSize { path: self.path.clone(), found_bytes, bytes });
        }
        Ok(MappedHostMemory::new(Mapping::shared(&self.file, bytes)?))
    }

    /// As [`map`](Self::map), for a process of the region that `fabric` has mapped, which is
    /// `identity` in the registry of `locks` locks: a fault of the region's metadata cuts the process
    /// off from these words too (FAULT-F4).
    ///
    /// # Errors
    /// [`HostTierError`].
    pub(crate) fn map_for(
        &self,
        words: usize,
        fabric: &MappedFabric,
        locks: u32,
        identity: ProcessIdentity,
    ) -> Result<MappedHostMemory, HostTierError> {
        let memory = self.map(words)?;
        let second = Mapping::shared(&self.file, words as u64 * 8)?;
        let places_at = HostTier::places_at(locks);
        Ok(memory.of_region(fabric, second, places_at, identity.word())?)
    }

    /// Whether the file had no size yet when it was locked: nobody has ever used it.
    pub(crate) const fn is_new(&self) -> bool {
        self.new
    }

    /// Whether a process uses the file as a member: of any pid namespace, and also while it is
    /// stopped or frozen.
    ///
    /// # Errors
    /// [`HostTierError::File`].
    pub(crate) fn is_in_use(&self) -> Result<bool, HostTierError> {
        let failed = |source| HostTierError::File { path: self.path.clone(), source };
        life_lock::is_held(&self.file).map_err(failed)
    }

    /// From now on the file is in use, as long as what [`map`](Self::map) returned is there.
    ///
    /// # Errors
    /// [`HostTierError::File`].
    pub fn use_for_life(&self) -> Result<(), HostTierError> {
        let failed = |source| HostTierError::File { path: self.path.clone(), source };
        life_lock::hold(&self.file).map_err(failed)
    }

    /// Removes the file if it had no size yet when it was locked: nobody has ever used it.
    ///
    /// # Errors
    /// [`HostTierError::File`].
    pub fn remove_if_new(self) -> Result<(), HostTierError> {
        if self.new { self.remove() } else { Ok(()) }
    }

    /// Removes the file: the last process of the host has left.
    ///
    /// # Errors
    /// [`HostTierError::File`].
    pub fn remove(self) -> Result<(), HostTierError> {
        std::fs::remove_file(&self.path)
            .map_err(|source| HostTierError::File { path: self.path.clone(), source })
    }
}

/// Opens the file, or creates it, for this user alone. It lies in a folder in which every user may
/// create files and links: another user's file would give that user the locks of this host.
fn open_own(path: &Path) -> Result<File, HostTierError> {
    let not_ours = |what| HostTierError::NotOurs { path: path.to_owned(), what };
    let failed = |source| HostTierError::File { path: path.to_owned(), source };
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // What is no file may not hold us up before we have looked at it.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = opened.map_err(|source| {
        let named = std::fs::symlink_metadata(path).ok();
        named.and_then(|named| foreign(&named)).map_or_else(|| failed(source), not_ours)
    })?;
    match foreign(&file.metadata().map_err(failed)?) {
        Some(what) => Err(not_ours(what)),
        None => Ok(file),
    }
}

/// Why this user alone does not have the file; `None` when this user does.
fn foreign(file: &Metadata) -> Option<String> {
    let (owner, user) = (file.uid(), rustix::process::geteuid().as_raw());
    let mode = file.mode() & 0o777;
    if file.is_symlink() {
        Some("is a symbolic link".to_owned())
    } else if !file.is_file() {
        Some("is not a regular file".to_owned())
    } else if owner != user {
        Some(format!("belongs to user {owner}, and this process runs as user {user}"))
    } else if mode & 0o077 != 0 {
        Some(format!("may be used by other users too (mode {mode:03o})"))
    } else {
        None
    }
}

impl Drop for HostTierFile {
    fn drop(&mut self) {
        // Closing is not enough: a mapping keeps the open file, and with it the lock.
        if let Err(error) = flock(&self.file, FlockOperation::Unlock) {
            tracing::warn!(%error, path = %self.path.display(), "cannot unlock the host tier");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::HostMemory;
    use crate::units::Incarnation;

    const WORDS: usize = 4096;

    fn map(path: &Path) -> Result<MappedHostMemory, HostTierError> {
        HostTierFile::lock(path)?.map(WORDS)
    }

    #[test]
    fn a_file_that_is_not_this_users_alone_is_refused() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tier");
        let refused = |what: &str| {
            let error = map(&path).unwrap_err();
            assert!(matches!(error, HostTierError::NotOurs { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
            assert!(error.to_string().contains("must run as one user"), "{error}");
        };
        let other = folder.path().join("other");
        std::fs::write(&other, [0; 8]).unwrap();
        symlink(&other, &path).unwrap();
        refused("is a symbolic link");
        assert_eq!(std::fs::read(&other).unwrap(), [0; 8], "nothing is written through a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        refused("is not a regular file");
        std::fs::remove_dir(&path).unwrap();
        map(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o620)).unwrap();
        refused("(mode 620)");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        map(&path).unwrap();
        // Only the superuser can give a file away.
        if chown(&path, Some(12345), None).is_ok() {
            refused("belongs to user 12345");
        }
    }

    #[test]
    fn a_tier_is_in_use_as_long_as_a_member_has_it_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tier");
        let is_in_use = || HostTierFile::lock(&path).unwrap().is_in_use().unwrap();
        let join = || {
            let file = HostTierFile::lock(&path).unwrap();
            let memory = file.map(WORDS).unwrap();
            file.use_for_life().unwrap();
            memory
        };
        assert!(!is_in_use());
        let (one, other) = (join(), join());
        assert!(is_in_use());
        drop(one);
        assert!(is_in_use(), "the other lives");
        drop(other);
        assert!(!is_in_use());
    }

    #[test]
    fn a_tier_of_another_version_is_refused_whatever_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tier");
        map(&path).unwrap();
        map(&path).expect("nobody has used it yet");
        let memory = map(&path).unwrap();
        HostTier::new(memory.clone(), 8).reset([1, 2], NodeId(0), Incarnation(1), 7);
        map(&path).expect("this version's own");
        let mut others = vec![*b"RACKHOST"];
        let mut next = memory.load(0).to_le_bytes();
        next[6] += 1;
        others.push(next);
        for first in others {
            for bytes in [8, WORDS * 8 - 64, WORDS * 8, WORDS * 16] {
                let mut content = vec![0; bytes];
                content[..8].copy_from_slice(&first);
                std::fs::write(&path, &content).unwrap();
                let error = map(&path).unwrap_err();
                assert!(matches!(error, HostTierError::OtherLayout { .. }), "{error}");
                assert!(error.to_string().contains("another version of Rackline"), "{error}");
            }
        }
    }
}
