//! A pool in a file, made as an operator makes one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cxl_shm::host::{HOST_TIER_FOLDER, HostTierFile};
use cxl_shm::layout::{Layout, read_superblock};
use cxl_shm::region::Region;
use tempfile::TempDir;

/// A pool of three nodes. When it is dropped nothing of it is left, also of processes that were
/// killed; none is attached to it any more.
pub(crate) struct Pool {
    folder: TempDir,
}

impl Pool {
    /// One in `folder`.
    pub(crate) fn format_in(folder: impl AsRef<Path>) -> Self {
        let pool = Self { folder: tempfile::tempdir_in(folder).unwrap() };
        let sizes = ["--nodes", "3", "--chunk", "256KiB", "--block", "16KiB", "--create", "8MiB"];
        let output = pool.rackline(&["format"]).args(sizes).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        pool
    }

    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    /// The command on this pool.
    pub(crate) fn rackline(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
        command.args(arguments).arg("--region").arg(self.path()).stdin(Stdio::null());
        command
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let region = Region::open(&self.path(), None).unwrap();
        let superblock = read_superblock(region.fabric()).unwrap().0;
        let layout = Layout::new(superblock.geometry).unwrap();
        HostTierFile::remove_all(Path::new(HOST_TIER_FOLDER), &superblock, &layout).unwrap();
    }
}
