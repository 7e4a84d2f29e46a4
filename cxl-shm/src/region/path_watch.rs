//! Whether the path of a region still names what a process has mapped.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::Region;
use super::path::Identity;

/// The mode bit that [`Region::remove_file`] sets: the file is removed on purpose, while processes use it.
pub(super) const REMOVED_ON_PURPOSE: u32 = 0o1000;

/// What became of the path of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathLost {
    /// It names nothing.
    Removed,
    /// It names another file or device.
    Replaced,
}

impl PathLost {
    /// What it means, and what to do.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Removed => {
                "the file of the region was removed while processes use it: they share its memory among \
                 themselves, and no new process joins them; stop all processes of the region, and \
                 format it again"
            }
            Self::Replaced => {
                "the path of the region names another file or device by now: new processes use that \
                 one, and share nothing with this process; stop the processes that run, and start \
                 them again"
            }
        }
    }
}

/// Looks after the path of a region.
#[derive(Debug)]
pub struct PathWatch {
    path: PathBuf,
    identity: Identity,
    file: File,
    /// It was told of, or is of no interest any more.
    is_over: bool,
}

impl PathWatch {
    /// Watches the path of `region`.
    ///
    /// # Errors
    /// The system's: no further open file.
    pub fn new(region: &Region) -> io::Result<Self> {
        // The process may change its folder. And links may lie on a file system that does not answer,
        // while memory of hosts and devices always does: the thread of the heartbeat looks.
        let path = fs::canonicalize(region.path()).unwrap_or_else(|_| region.path().to_owned());
        let identity = region.path.identity();
        Ok(Self { path, identity, file: region.file.try_clone()?, is_over: false })
    }

    /// What became of the path, once.
    pub fn look(&mut self) -> Option<PathLost> {
        if self.is_over {
            return None;
        }
        let lost = match fs::metadata(&self.path) {
            Ok(named) if Identity::of(&named) == self.identity => return None,
            Ok(_) => PathLost::Replaced,
            Err(error) if error.kind() == io::ErrorKind::NotFound => PathLost::Removed,
            // Nothing is known of it.
            Err(_) => return None,
        };
        self.is_over = true;
        let is_on_purpose =
            self.file.metadata().is_ok_and(|its| its.mode() & REMOVED_ON_PURPOSE != 0);
        (!is_on_purpose).then_some(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(name: &str) -> (tempfile::TempDir, Region, PathWatch) {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let region = Region::create_file(&folder.path().join(name), 1 << 20).unwrap();
        let watch = PathWatch::new(&region).unwrap();
        (folder, region, watch)
    }

    #[test]
    fn a_path_that_names_another_file_is_told_once() {
        let (folder, region, mut watch) = watched("pool");
        assert_eq!(watch.look(), None);
        let other = Region::create_file(&folder.path().join("other"), 1 << 20).unwrap();
        fs::rename(other.path(), region.path()).unwrap();
        assert_eq!(watch.look(), Some(PathLost::Replaced));
        assert_eq!(watch.look(), None);
    }

    #[test]
    fn a_process_may_change_its_folder_and_links_may_go() {
        let (folder, region, _) = watched("pool");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(region.path(), &link).unwrap();
        let there = std::env::current_dir().unwrap();
        let up = "../".repeat(there.components().count());
        let relative = PathBuf::from(format!("{up}{}", &link.display().to_string()[1..]));
        let mut watch = PathWatch::new(&Region::open(&relative, None).unwrap()).unwrap();
        assert!(watch.path.is_absolute());
        fs::remove_file(&link).unwrap();
        assert_eq!(watch.look(), None, "the memory is where it was");
    }

    #[test]
    fn a_file_that_was_removed_is_told_of_unless_it_was_on_purpose() {
        let (_folder, region, mut watch) = watched("pool");
        fs::remove_file(region.path()).unwrap();
        assert_eq!(watch.look(), Some(PathLost::Removed));
        let (_folder, region, mut watch) = watched("own");
        region.remove_file().unwrap();
        assert_eq!(watch.look(), None);
        assert!(PathLost::Removed.in_words().contains("stop all processes"));
    }
}
