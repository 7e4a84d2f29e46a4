//! What the file system under a region file has to offer.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfs, fstatfs, fstatvfs, statfs};

use crate::units::PAGE_BYTES;

/// Why the room in a directory is not known.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask how much room there is in {}: {source}; check that it exists",
    .directory.display())]
pub struct FreeBytesError {
    /// The directory asked about.
    pub directory: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

/// Bytes that a new file in `directory` can have; `None` when its file system states no limit.
///
/// In `/dev/shm` that is what its mount has left, or what the machine has if that is less: the
/// usual limit of a mount says nothing about the memory that programs took. A control group may
/// allow less than both.
///
/// # Errors
/// [`FreeBytesError`].
pub fn free_bytes(directory: &Path) -> Result<Option<u64>, FreeBytesError> {
    let failed = |source| FreeBytesError { directory: directory.to_owned(), source };
    room_left(&File::open(directory).map_err(failed)?).map_err(failed)
}

/// As [`free_bytes`], for the file system of an open file.
pub(super) fn room_left(file: &File) -> io::Result<Option<u64>> {
    let mount_bytes = left(&fstatvfs(file)?);
    if fstatfs(file)?.f_type != libc::TMPFS_MAGIC {
        return Ok(mount_bytes);
    }
    let machine_bytes = memory_available(&fs::read_to_string("/proc/meminfo")?)?;
    Ok(Some(mount_bytes.map_or(machine_bytes, |bytes| bytes.min(machine_bytes))))
}

/// Kinds of file systems.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// In this host's memory: `/dev/shm`.
    Tmpfs,
    /// In huge pages of this host's memory.
    Hugetlbfs,
    /// Any other.
    Other,
}

/// What the file lies in.
pub(super) fn kind_of(file: &File) -> io::Result<Kind> {
    Ok(match fstatfs(file)?.f_type {
        libc::TMPFS_MAGIC => Kind::Tmpfs,
        libc::HUGETLBFS_MAGIC => Kind::Hugetlbfs,
        _ => Kind::Other,
    })
}

/// Whether the file lives in this host's memory and nowhere else. What cannot be asked does not.
pub(super) fn is_memory(file: &File) -> bool {
    kind_of(file).is_ok_and(|kind| kind != Kind::Other)
}

fn left(stat: &StatVfs) -> Option<u64> {
    // A file system that has no blocks at all states no limit: nothing could be in it otherwise.
    (stat.f_blocks != 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes that programs can still take without swapping, as `/proc/meminfo` has it.
fn memory_available(meminfo: &str) -> io::Result<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map(|kib| kib.saturating_mul(1024))
        .ok_or_else(|| io::Error::other("/proc/meminfo does not say what memory is available"))
}

/// What the size of the file at `path` has to be a multiple of.
pub(super) fn align_bytes(path: &Path) -> io::Result<u64> {
    let stat = statfs(path)?;
    if stat.f_type != libc::HUGETLBFS_MAGIC {
        // Not the file system's block size: that of a network file system is a matter of its
        // transfers and may be anything.
        return Ok(PAGE_BYTES);
    }
    // Here the block size is that of the huge pages.
    let huge_page_bytes = u64::try_from(stat.f_bsize).map_err(io::Error::other)?;
    if huge_page_bytes.is_multiple_of(PAGE_BYTES) && huge_page_bytes != 0 {
        Ok(huge_page_bytes)
    } else {
        Err(io::Error::other(format!("huge pages of {huge_page_bytes} bytes make no sense")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_room_and_a_missing_one_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(free_bytes(directory.path()).unwrap().is_none_or(|free| free > 0));
        let error = free_bytes(&directory.path().join("nothing")).unwrap_err();
        assert!(error.to_string().contains("check that it exists"), "{error}");
    }

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let meminfo = "MemTotal:       24683340 kB\nMemAvailable:   24123456 kB\nBuffers: 1 kB\n";
        assert_eq!(memory_available(meminfo).unwrap(), 24_123_456 * 1024);
        for bad in ["", "MemTotal: 1 kB\n", "MemAvailable: 1\n", "MemAvailable: many kB\n"] {
            memory_available(bad).unwrap_err();
        }
        let shm = free_bytes(Path::new("/dev/shm")).unwrap().expect("a tmpfs has a limit");
        let total = rustix::system::sysinfo().totalram;
        assert!(shm <= total, "{shm} bytes of {total}");
    }

    #[test]
    fn no_blocks_means_no_limit() {
        let directory = tempfile::tempdir().unwrap();
        let mut stat = rustix::fs::statvfs(directory.path()).unwrap();
        (stat.f_blocks, stat.f_bavail, stat.f_frsize) = (0, 0, 4096);
        assert_eq!(left(&stat), None);
        (stat.f_blocks, stat.f_bavail) = (10, 3);
        assert_eq!(left(&stat), Some(3 * 4096));
        stat.f_bavail = 0;
        assert_eq!(left(&stat), Some(0), "full is not unlimited");
    }

    #[test]
    fn ordinary_files_are_aligned_to_pages() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(align_bytes(file.path()).unwrap(), PAGE_BYTES);
    }
}
