//! The mark of use: keeps a formatter away from processes that have the region mapped.
//!
//! It is an advisory lock (`flock`) on the file or device node, so the kernel takes it away when a
//! process dies, however it dies. It reaches as far as the node: processes of this host that open
//! the same one. It says nothing about **other hosts**, nor about a container with a device node of
//! its own; the formatter has to look for their heartbeats in the region.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::Region;
use super::path::Identity;

/// Why a region could not be marked as used. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UseError {
    /// Wanted for formatting, but attached processes are there.
    #[error(
        "{} is in use on this host: stop the processes that have it mapped; `rackline status \
         --region {}` lists the nodes",
        .path.display(), .path.display()
    )]
    InUse {
        /// Path of the region.
        path: PathBuf,
    },
    /// Wanted for use, but a formatter is at work.
    #[error("{} is being formatted: try again when that is done", .path.display())]
    BeingFormatted {
        /// Path of the region.
        path: PathBuf,
    },
    /// The path does not name the mapped file any more.
    #[error("{} was removed or replaced since it was opened: open it again", .path.display())]
    Replaced {
        /// Path of the region.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error(
        "cannot lock {}: {source}; a region has to be on a local file system that supports flock",
        .path.display()
    )]
    System {
        /// Path of the region.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// The mark that this process uses a region, or formats it. Gone when dropped, and when the process
/// dies.
#[derive(Debug)]
pub struct RegionUse {
    /// A descriptor of its own: marks of one process exclude each other like those of two.
    _locked: File,
}

impl RegionUse {
    /// Marks the region as used. Any number of processes may; an attached process holds it for as
    /// long as it touches the region.
    ///
    /// # Errors
    /// [`UseError::BeingFormatted`], [`UseError::Replaced`], [`UseError::System`].
    pub fn shared(region: &Region) -> Result<Self, UseError> {
        lock(region, FlockOperation::NonBlockingLockShared, |path| UseError::BeingFormatted {
            path,
        })
    }

    /// Marks the region as being formatted: nobody on this host uses it, and nobody starts to
    /// while the mark is held.
    ///
    /// # Errors
    /// [`UseError::InUse`], [`UseError::Replaced`], [`UseError::System`].
    pub fn exclusive(region: &Region) -> Result<Self, UseError> {
        lock(region, FlockOperation::NonBlockingLockExclusive, |path| UseError::InUse { path })
    }
}

fn lock(
    region: &Region,
    operation: FlockOperation,
    taken: impl FnOnce(PathBuf) -> UseError,
) -> Result<RegionUse, UseError> {
    let path = || region.path().to_owned();
    let refused = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => UseError::Replaced { path: path() },
        _ => UseError::System { path: path(), source },
    };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(region.path())
        .map_err(refused)?;
    if Identity::of(&file.metadata().map_err(refused)?) != region.path.identity() {
        return Err(UseError::Replaced { path: path() });
    }
    match flock(&file, operation) {
        Ok(()) => Ok(RegionUse { _locked: file }),
        Err(Errno::WOULDBLOCK) => Err(taken(path())),
        Err(errno) => Err(refused(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn region() -> (tempfile::TempDir, Region) {
        let directory = tempfile::tempdir().unwrap();
        let region = Region::create_file(&directory.path().join("pool"), 1 << 16).unwrap();
        (directory, region)
    }

    #[test]
    fn a_region_in_use_is_not_formatted() {
        let (_directory, region) = region();
        let first = RegionUse::shared(&region).unwrap();
        let second = RegionUse::shared(&region).unwrap();
        drop(first);
        let error = RegionUse::exclusive(&region).unwrap_err();
        assert!(matches!(error, UseError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("rackline status --region /"), "{error}");
        drop(second);
        drop(RegionUse::exclusive(&region).unwrap());
    }

    #[test]
    fn a_region_being_formatted_is_not_used() {
        let (_directory, region) = region();
        let formatting = RegionUse::exclusive(&region).unwrap();
        let error = RegionUse::shared(&region).unwrap_err();
        assert!(matches!(error, UseError::BeingFormatted { .. }), "{error}");
        let error = RegionUse::exclusive(&region).unwrap_err();
        assert!(matches!(error, UseError::InUse { .. }), "{error}");
        drop(formatting);
        RegionUse::shared(&region).unwrap();
    }

    #[test]
    fn the_mark_goes_with_the_process_that_has_it() {
        let (_directory, region) = region();
        let RegionUse { _locked: locked } = RegionUse::shared(&region).unwrap();
        // The descriptor moves into another process, and our own copy of it is closed.
        let mut user = Command::new("sleep").arg("1000").stdin(locked).spawn().unwrap();
        let error = RegionUse::exclusive(&region).unwrap_err();
        assert!(matches!(error, UseError::InUse { .. }), "{error}");
        user.kill().unwrap();
        user.wait().unwrap();
        RegionUse::exclusive(&region).unwrap();
    }

    #[test]
    fn the_mark_is_on_the_mapped_file_only() {
        let (directory, region) = region();
        region.remove_file().unwrap();
        let error = RegionUse::shared(&region).unwrap_err();
        assert!(matches!(error, UseError::Replaced { .. }), "{error}");
        Region::create_file(&directory.path().join("pool"), 1 << 16).unwrap();
        let error = RegionUse::exclusive(&region).unwrap_err();
        assert!(matches!(error, UseError::Replaced { .. }), "{error}");
    }
}
