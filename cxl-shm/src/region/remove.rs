//! Removing the file of a region.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use super::Region;
use super::path::Identity;
use super::path_watch::REMOVED_ON_PURPOSE;
use crate::layout::RegionKind;

/// Why the file of a region could not be removed. It is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// It is not a file.
    #[error("{} is a devdax device, which cannot be removed: format it again instead",
        .path.display())]
    Device {
        /// Path of the region.
        path: PathBuf,
    },
    /// The path names another file by now. It is left alone.
    #[error(
        "{} is no longer the file of this region: check the file, and remove it by hand if it is \
         not needed",
        .path.display()
    )]
    Replaced {
        /// Path of the region.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot remove {}: {source}; remove it by hand to free its memory", .path.display())]
    System {
        /// Path of the region.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Region {
    /// Removes the file of this region. Its memory is free once the last process that has it
    /// mapped is gone; those go on as before. A file that is gone already is no error.
    ///
    /// # Errors
    /// [`RemoveError`]; nothing has been removed.
    pub fn remove_file(&self) -> Result<(), RemoveError> {
        let path = || self.path().to_owned();
        if self.kind() == RegionKind::Devdax {
            return Err(RemoveError::Device { path: path() });
        }
        let removed = match fs::metadata(self.path()) {
            Ok(metadata) if Identity::of(&metadata) != self.path.identity() => {
                return Err(RemoveError::Replaced { path: path() });
            }
            Ok(found) => {
                // Processes that use it are not to take this for a mistake ([`PathWatch`]).
                let mode = Permissions::from_mode(found.mode() | REMOVED_ON_PURPOSE);
                let _ = self.file.set_permissions(mode);
                fs::remove_file(self.path())
            }
            Err(error) => Err(error),
        };
        match removed {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(RemoveError::System { path: path(), source })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fabric::Fabric;
    use crate::units::WordOffset;

    const BYTES: u64 = 1 << 16;

    #[test]
    fn removing_takes_the_name_and_leaves_the_mapping() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let region = Region::create_file(&path, BYTES).unwrap();
        region.remove_file().unwrap();
        assert!(!path.exists());
        let word = WordOffset::new(8).unwrap();
        region.fabric().store(word, 1);
        assert_eq!(region.fabric().load(word), 1);
        region.remove_file().expect("a file that is gone already is no error");
    }

    #[test]
    fn a_file_that_took_its_place_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let region = Region::create_file(&path, BYTES).unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        fs::write(&path, "precious").unwrap();
        let error = region.remove_file().unwrap_err();
        assert!(matches!(error, RemoveError::Replaced { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_device_is_not_removed() {
        let (_tree, sysfs) = crate::region::dax::fake_device(5, 2 << 20);
        let path = crate::region::RegionPath::inspect(Path::new("/dev/zero"), &sysfs).unwrap();
        let error = path.open().unwrap().remove_file().unwrap_err();
        assert!(matches!(error, RemoveError::Device { .. }), "{error}");
    }
}
