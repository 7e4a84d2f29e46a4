//! The memory that hosts share: a devdax device, or a regular file (`/dev/shm`, hugetlbfs) as the
//! embedded default of a single host.
//!
//! Opening validates before it maps and changes nothing: `/dev/shm` accepts every misuse that a
//! devdax answers with `EINVAL`, or with SIGBUS at the first touch, so that the kernel is no judge
//! of either. Once a region is mapped all access goes through its [`MappedFabric`]. A devdax is
//! never read, written or synced through its file: it supports none of these.
//!
//! **A region is sized once and never shrunk.** A process that touches the lost part of a truncated file
//! meets a fault of its memory, which is contained as far as it can be (FAULT-F1 in `fabric/faults.rs`).
//!
//! Where is what: [`RegionPath`] what a path names, [`Sysfs`] the size of a devdax, [`Region`] the
//! mapped memory, [`PageTables`] what saves the first touch of each page a fault, [`RegionUse`] the mark that
//! keeps a formatter away from attached processes.

mod create;
mod dax;
mod file_system;
mod in_use;
mod numa;
mod open_error;
mod page_tables;
mod path;
mod path_watch;
mod platform;
mod prefault;
mod remove;
mod visibility;

use std::fs::File;
use std::path::Path;

use crate::fabric::{Fabric, MappedFabric, ReadBack};
pub use crate::layout::RegionKind;

pub use create::CreateError;
pub use dax::Sysfs;
pub use file_system::{FreeBytesError, free_bytes};
pub use in_use::{RegionUse, UseError};
pub use numa::NearCpus;
pub use open_error::OpenError;
pub use page_tables::PageTables;
pub use path::RegionPath;
pub use path_watch::{PathLost, PathWatch};
pub use platform::{hypervisor, platform_of};
pub use prefault::PrefaultError;
pub use remove::RemoveError;
pub use visibility::{Basis, Visibility};

/// A region, mapped whole. Unmapped when it and every clone of its fabric are dropped.
///
/// # Example
/// ```
/// use cxl_shm::fabric::Fabric;
/// use cxl_shm::region::Region;
/// use cxl_shm::layout::RegionKind;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("pool");
/// let created = Region::create_file(&path, 1 << 20)?;
/// let attached = Region::open(&path, Some(RegionKind::File))?;
/// assert_eq!(attached.bytes(), 1 << 20);
/// assert_eq!(attached.fabric().bytes(), 1 << 20);
/// created.remove_file()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Region {
    path: RegionPath,
    /// Names the very file that is mapped, whatever becomes of the path.
    file: File,
    fabric: MappedFabric,
}

impl Region {
    /// Opens the region at `path` and maps all of it. Nothing in it is read or changed.
    ///
    /// `expected` is what the operator asked for; `None` takes either kind.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open(path: &Path, expected: Option<RegionKind>) -> Result<Self, OpenError> {
        let path = RegionPath::inspect(path, &Sysfs::default())?;
        if let Some(expected) = expected {
            path.require_kind(expected)?;
        }
        path.open()
    }

    /// As [`open`](Self::open), for reading alone: the user needs no permission to write, and no
    /// mistake of this process changes the region. Loads and refreshes work. A store or a publish ends
    /// the process (SIGSEGV).
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open_read_only(path: &Path) -> Result<Self, OpenError> {
        RegionPath::inspect(path, &Sysfs::default())?.open_read_only()
    }

    /// The memory.
    #[must_use]
    pub fn fabric(&self) -> &MappedFabric {
        &self.fabric
    }

    /// Size of the memory in bytes: all of the device or file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.fabric.bytes()
    }

    /// Device or file.
    #[must_use]
    pub fn kind(&self) -> RegionKind {
        self.path.kind()
    }

    /// Whether it is memory of this host alone: a file in tmpfs or hugetlbfs, which live in the
    /// host's own DRAM. A file of any other file system may lie on a device that others map.
    #[must_use]
    pub fn is_own_memory(&self) -> bool {
        self.kind() == RegionKind::File && file_system::is_memory(&self.file)
    }

    /// Publishes through [`fabric`](Self::fabric) with or without read-back from here on.
    pub(crate) fn set_read_back(&mut self, read_back: ReadBack) {
        self.fabric = self.fabric.clone().with_read_back(read_back);
    }

    /// Where it is, as an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.path.path()
    }

    /// Whether the path still names the file or device that is mapped. A file may have been removed, or
    /// replaced by another one: the mapping keeps the old file, which nobody else finds any more.
    #[must_use]
    pub fn is_at_its_path(&self) -> bool {
        let found = std::fs::metadata(self.path());
        found.is_ok_and(|metadata| path::Identity::of(&metadata) == self.path.identity())
    }

    /// Checks that the region has at least `bytes_min` bytes: what its superblock says, or what a
    /// geometry asks for.
    ///
    /// # Errors
    /// [`OpenError::TooSmall`].
    pub fn require_bytes(&self, bytes_min: u64) -> Result<(), OpenError> {
        self.path.require_bytes(bytes_min)
    }
}
