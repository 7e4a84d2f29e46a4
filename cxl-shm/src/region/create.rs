//! Making the file of a region: the embedded default of a single host.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::file_system::{align_bytes, room_left};
use super::path::Access;
use super::{Region, RegionPath};
use crate::fabric::MapError;
use crate::units::PAGE_BYTES;

/// Only the user who made the region may see what it caches.
const MODE: u32 = 0o600;

/// Why the file of a region could not be created. What was created is gone again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// There is something at the path already. It is left alone.
    #[error(
        "{} exists already: choose another path, or remove it when no process uses it",
        .path.display()
    )]
    Exists {
        /// The path as given.
        path: PathBuf,
    },
    /// A size of zero, or one that no file can have.
    #[error("a region cannot have {bytes} bytes: give a size between {PAGE_BYTES} and 2^63")]
    Size {
        /// The size asked for.
        bytes: u64,
    },
    /// The file system does not have that much room.
    #[error(
        "no room for {}: it needs {bytes} bytes and its file system has {free_bytes} left; free \
         some, or ask for a smaller region",
        .path.display()
    )]
    NoSpace {
        /// The path as given.
        path: PathBuf,
        /// The size asked for, rounded up as described at [`Region::create_file`].
        bytes: u64,
        /// What the file system has.
        free_bytes: u64,
    },
    /// The operating system refused for another reason.
    #[error(
        "cannot create {}: {source}; check that its directory exists and can be written",
        .path.display()
    )]
    System {
        /// The path as given.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It could not be mapped.
    #[error(
        "cannot map {}: {source}; ask for a smaller region, or on hugetlbfs reserve more huge \
         pages (/proc/sys/vm/nr_hugepages)",
        .path.display()
    )]
    Map {
        /// The path as given.
        path: PathBuf,
        /// What failed.
        source: MapError,
    },
}

impl Region {
    /// Creates the file `path`, `bytes` bytes long and all zero, and maps it.
    ///
    /// The size is rounded up to whole pages, huge ones on hugetlbfs; [`Region::bytes`] says the
    /// outcome. The file is sparse: memory is taken as it is touched, or at once by
    /// [`Region::prefault`]. Only this user may open it.
    ///
    /// # Errors
    /// [`CreateError`]. A file that was there before is left alone, a file created here is removed
    /// again.
    pub fn create_file(path: &Path, bytes: u64) -> Result<Self, CreateError> {
        let refused = |source| CreateError::System { path: path.to_owned(), source };
        if bytes == 0 {
            return Err(CreateError::Size { bytes });
        }
        // Absolute, so that it stays right when the process changes its directory.
        let absolute = std::path::absolute(path).map_err(refused)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(&absolute)
            .map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => CreateError::Exists { path: path.to_owned() },
                _ => refused(source),
            })?;
        let unfinished = Unfinished(&absolute);

        let align_bytes = align_bytes(&absolute).map_err(refused)?;
        let bytes = bytes
            .checked_next_multiple_of(align_bytes)
            .filter(|rounded| i64::try_from(*rounded).is_ok())
            .ok_or(CreateError::Size { bytes })?;
        // A sparse file takes any size: without this the first touch too many would be SIGBUS.
        match room_left(&file).map_err(refused)? {
            Some(free_bytes) if free_bytes < bytes => {
                return Err(CreateError::NoSpace { path: path.to_owned(), bytes, free_bytes });
            }
            _ => {}
        }
        file.set_len(bytes).map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        let region = RegionPath::created(absolute.clone(), &metadata, align_bytes)
            .map(file, Access::ReadWrite)
            .map_err(|(_, source)| CreateError::Map { path: path.to_owned(), source })?;
        unfinished.keep();
        Ok(region)
    }
}

/// Removes a file that was created here, unless it was finished.
struct Unfinished<'a>(&'a Path);

impl Unfinished<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(self.0) {
            tracing::warn!(path = %self.0.display(), %error, "an unfinished region file is left");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::fabric::Fabric;
    use crate::region::free_bytes;
    use crate::units::WordOffset;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_new_region_is_zero_private_and_of_the_size_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let region = Region::create_file(&path, MIB).unwrap();
        assert_eq!((region.bytes(), region.path()), (MIB, path.as_path()));
        for bytes in [0, MIB / 2, MIB - 8] {
            assert_eq!(region.fabric().load(WordOffset::new(bytes).unwrap()), 0);
        }
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (MIB, 0o600));
    }

    #[test]
    fn what_one_process_stores_another_mapping_loads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let created = Region::create_file(&path, MIB).unwrap();
        let opened = Region::open(&path, None).unwrap();
        let word = WordOffset::new(MIB - 8).unwrap();
        created.fabric().store(word, 42);
        assert_eq!(opened.fabric().load(word), 42);
    }

    #[test]
    fn sizes_are_rounded_up_to_pages() {
        let directory = tempfile::tempdir().unwrap();
        let region = Region::create_file(&directory.path().join("pool"), MIB + 1).unwrap();
        assert_eq!(region.bytes(), MIB + PAGE_BYTES);
    }

    #[test]
    fn what_is_there_already_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        fs::write(&path, "precious").unwrap();
        let error = Region::create_file(&path, MIB).unwrap_err();
        assert!(matches!(error, CreateError::Exists { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn what_fails_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let free = free_bytes(directory.path()).unwrap().expect("the file system has a size");
        // Twice what is free: others may free some meanwhile.
        let error = Region::create_file(&path, free * 2).unwrap_err();
        assert!(matches!(error, CreateError::NoSpace { .. }), "{error}");
        for bytes in [0, u64::MAX, 1 << 63] {
            let error = Region::create_file(&path, bytes).unwrap_err();
            assert!(matches!(error, CreateError::Size { .. }), "{error}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        let error = Region::create_file(&path.join("below"), MIB).unwrap_err();
        assert!(error.to_string().contains("check that its directory exists"), "{error}");
    }
}
