//! What a path names: found out, and validated, before anything is opened.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::Region;
use super::dax::{Sysfs, device_name};
use super::file_system::{Kind, align_bytes, kind_of};
use super::open_error::OpenError;
use crate::fabric::{MapError, MappedFabric, Mapping};
use crate::layout::RegionKind;

/// A path that names a region: its kind is known and its size makes sense.
#[derive(Clone, Debug)]
pub struct RegionPath {
    path: PathBuf,
    kind: RegionKind,
    bytes: u64,
    align_bytes: u64,
    identity: Identity,
}

/// What a process may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    ReadWrite,
}

/// Which file or device it is, whatever its name. Inode numbers are unique in a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    file_system: u64,
    inode: u64,
    /// 0 for a file.
    device: u64,
}

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { file_system: metadata.dev(), inode: metadata.ino(), device: metadata.rdev() }
    }
}

impl RegionPath {
    /// Finds out what `path` names, without opening it: opening a character device may do anything.
    ///
    /// # Errors
    /// [`OpenError`]: it does not exist, is not a region, has no usable size.
    pub fn inspect(path: &Path, sysfs: &Sysfs) -> Result<Self, OpenError> {
        let refused = |source| refused(path, RegionKind::File, source);
        let metadata = fs::metadata(path).map_err(refused)?;
        let (kind, bytes, align_bytes) = if metadata.is_file() {
            (RegionKind::File, metadata.len(), align_bytes(path).map_err(refused)?)
        } else if metadata.file_type().is_char_device() {
            let rdev = metadata.rdev();
            let device = sysfs.dax_device(path, major(rdev), minor(rdev))?;
            let device = device.ok_or_else(|| not_region(path, metadata.file_type()))?;
            (RegionKind::Devdax, device.bytes, device.align_bytes)
        } else {
            return Err(not_region(path, metadata.file_type()));
        };
        if bytes == 0 {
            return Err(OpenError::Empty { path: path.to_owned(), kind });
        }
        if !bytes.is_multiple_of(align_bytes) {
            return Err(OpenError::Misaligned { path: path.to_owned(), bytes, align_bytes });
        }
        // Absolute, so that it stays right when the process changes its directory.
        let path = std::path::absolute(path).map_err(refused)?;
        Ok(Self { path, kind, bytes, align_bytes, identity: Identity::of(&metadata) })
    }

    /// Opens and maps all of it. Nothing in it is read or changed.
    ///
    /// # Errors
    /// [`OpenError`]: no permission, no driver, replaced since it was inspected, cannot be mapped.
    pub fn open(self) -> Result<Region, OpenError> {
        self.open_for(Access::ReadWrite)
    }

    /// Opens and maps all of it, for reading alone.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(self) -> Result<Region, OpenError> {
        self.open_for(Access::Read)
    }

    fn open_for(self, access: Access) -> Result<Region, OpenError> {
        let refused = |source| refused_for(&self.path, self.kind, access, source);
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            // The path may have become a pipe or a terminal since: neither may hold us up.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&self.path)
            .map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        let resized = self.kind == RegionKind::File && metadata.len() != self.bytes;
        if Identity::of(&metadata) != self.identity || resized {
            return Err(OpenError::Replaced { path: self.path });
        }
        self.map(file, access).map_err(|(path, source)| OpenError::Map {
            advice: map_advice(&path, &source),
            path: path.path,
            source,
        })
    }

    /// Maps `file`, which is what this path names.
    pub(super) fn map(self, file: File, access: Access) -> Result<Region, (Self, MapError)> {
        crate::fork::prepare();
        let mapping = match access {
            Access::Read => Mapping::shared_read_only(&file, self.bytes),
            Access::ReadWrite => Mapping::shared(&file, self.bytes),
        };
        let mapped = mapping.and_then(|mut mapping| {
            mapping.contain_faults(self.align_bytes, access == Access::ReadWrite)?;
            if matches!(kind_of(&file), Ok(Kind::Tmpfs)) {
                mapping.ask_for_huge_pages();
            }
            MappedFabric::new(mapping)
        });
        match mapped {
            Ok(fabric) => Ok(Region { path: self, file, fabric }),
            Err(error) => Err((self, error)),
        }
    }

    /// The path of a file that was just created: nothing about it needs to be found out.
    pub(super) fn created(path: PathBuf, metadata: &Metadata, align_bytes: u64) -> Self {
        Self {
            path,
            kind: RegionKind::File,
            bytes: metadata.len(),
            align_bytes,
            identity: Identity::of(metadata),
        }
    }

    /// Checks that it is of the kind that was asked for.
    ///
    /// # Errors
    /// [`OpenError::WrongKind`].
    pub fn require_kind(&self, expected: RegionKind) -> Result<(), OpenError> {
        if self.kind == expected {
            return Ok(());
        }
        Err(OpenError::WrongKind { path: self.path.clone(), expected, found: self.kind })
    }

    /// Checks that it has at least `bytes_min` bytes.
    ///
    /// # Errors
    /// [`OpenError::TooSmall`].
    pub fn require_bytes(&self, bytes_min: u64) -> Result<(), OpenError> {
        if self.bytes >= bytes_min {
            return Ok(());
        }
        Err(OpenError::TooSmall { path: self.path.clone(), bytes: self.bytes, bytes_min })
    }

    /// The path, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device or file.
    #[must_use]
    pub fn kind(&self) -> RegionKind {
        self.kind
    }

    /// Major and minor number of the device; `None` for a file.
    pub(super) fn device_number(&self) -> Option<(u32, u32)> {
        let device = self.identity.device;
        (self.kind == RegionKind::Devdax).then(|| (major(device), minor(device)))
    }

    /// Size in bytes: never zero, a multiple of [`align_bytes`](Self::align_bytes).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What offsets and lengths within it have to be multiples of to be mapped or populated.
    #[must_use]
    pub fn align_bytes(&self) -> u64 {
        self.align_bytes
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }
}

fn not_region(path: &Path, found: FileType) -> OpenError {
    let (found, advice) = if found.is_dir() {
        ("a directory", "; give the path of a file in it")
    } else if found.is_block_device() {
        ("a block device", "; reconfigure its namespace with `ndctl create-namespace -m devdax`")
    } else if found.is_char_device() {
        ("a character device that sysfs does not list as dax", "; check that /sys is mounted")
    } else {
        ("a pipe or a socket", "")
    };
    OpenError::NotRegion { path: path.to_owned(), found, advice }
}

/// The error for what the system answered to a look at `path`.
fn refused(path: &Path, kind: RegionKind, source: io::Error) -> OpenError {
    refused_for(path, kind, Access::ReadWrite, source)
}

/// The error for what the system answered to a look at `path` or to its opening.
fn refused_for(path: &Path, kind: RegionKind, access: Access, source: io::Error) -> OpenError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            let to = if access == Access::Read { "read" } else { "read and write" };
            OpenError::Permission { path, to, source }
        }
        // What opening a device node answers when no driver is bound behind it.
        _ if kind == RegionKind::Devdax && source.raw_os_error() == Some(libc::ENXIO) => {
            OpenError::NoDriver { device: device_name(&path), path }
        }
        _ => OpenError::System { path, source },
    }
}

fn map_advice(path: &RegionPath, error: &MapError) -> &'static str {
    match (error, path.kind) {
        (MapError::Flush(_), _) => "run on a processor that has one",
        (_, RegionKind::Devdax) => {
            "check the device with `daxctl list` and the limits of `ulimit -v`"
        }
        (_, RegionKind::File) => {
            "check the limits of `ulimit -v`, and on hugetlbfs that enough huge pages are free \
             (/proc/sys/vm/nr_hugepages)"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::fabric::Fabric;
    use crate::region::dax::fake_device;
    use crate::units::{Extent, LineRange, WordOffset};

    const MIB: u64 = 1 << 20;

    fn file_of(bytes: u64) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        File::create_new(&path).unwrap().set_len(bytes).unwrap();
        (directory, path)
    }

    /// Not even a mistake of this process can change it.
    #[test]
    fn what_is_opened_to_be_read_is_mapped_to_be_read() {
        let (_directory, path) = file_of(MIB);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        let modes = || {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            let of_path = maps.lines().filter(|line| line.ends_with(path.to_str().unwrap()));
            of_path.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
        };
        let read = Region::open_read_only(&path).unwrap();
        assert_eq!(modes(), ["r--s"]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let word = WordOffset::new(64).unwrap();
        let written = Region::open(&path, None).unwrap();
        written.fabric().store(word, 7);
        read.fabric().refresh(LineRange::covering(Extent::new(64, 64).unwrap()));
        assert_eq!(read.fabric().load(word), 7);
    }

    #[test]
    fn a_devdax_is_mapped_at_the_size_that_sysfs_says() {
        // /dev/zero stands in for the device: a character device that can be mapped shared, and
        // of which fstat says 0 bytes too.
        let (_tree, sysfs) = fake_device(5, 4 * MIB);
        let path = RegionPath::inspect(Path::new("/dev/zero"), &sysfs).unwrap();
        path.require_kind(RegionKind::Devdax).unwrap();
        let region = path.open().unwrap();
        assert_eq!((region.bytes(), region.kind()), (4 * MIB, RegionKind::Devdax));
        let last = WordOffset::new(4 * MIB - 8).unwrap();
        region.fabric().store(last, 7);
        assert_eq!(region.fabric().load(last), 7);
    }

    #[test]
    fn a_devdax_must_have_whole_units() {
        let (_tree, sysfs) = fake_device(5, 3 * MIB);
        let error = RegionPath::inspect(Path::new("/dev/zero"), &sysfs).unwrap_err();
        assert!(error.to_string().ends_with("make it 2097152 bytes"), "{error}");
        let (_tree, sysfs) = fake_device(5, 0);
        let error = RegionPath::inspect(Path::new("/dev/zero"), &sysfs).unwrap_err();
        assert!(matches!(error, OpenError::Empty { kind: RegionKind::Devdax, .. }), "{error}");
    }

    #[test]
    fn a_refused_mapping_says_what_to_do() {
        // /dev/null opens but cannot be mapped.
        let (_tree, sysfs) = fake_device(3, 2 * MIB);
        let error =
            RegionPath::inspect(Path::new("/dev/null"), &sysfs).unwrap().open().unwrap_err();
        assert!(matches!(error, OpenError::Map { .. }), "{error}");
        assert!(error.to_string().contains("daxctl list"), "{error}");
    }

    #[test]
    fn other_things_are_not_regions() {
        let (directory, path) = file_of(MIB);
        let link = directory.path().join("dangling");
        symlink("nothing", &link).unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, says) in [
            (directory.path().to_owned(), "is a directory"),
            (directory.path().join("nothing"), "does not exist"),
            (link, "does not exist"),
            (socket, "is a pipe or a socket"),
            (PathBuf::from("/dev/zero"), "is a character device that sysfs does not list as dax"),
            (path.join("below"), "cannot open"),
        ] {
            let error = Region::open(&path, None).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_file_is_opened_as_asked_for_only() {
        let (_directory, path) = file_of(MIB);
        assert_eq!(Region::open(&path, None).unwrap().kind(), RegionKind::File);
        assert_eq!(Region::open(&path, Some(RegionKind::File)).unwrap().bytes(), MIB);
        let error = Region::open(&path, Some(RegionKind::Devdax)).unwrap_err();
        let says = "is a regular file, but a devdax device was asked for";
        assert!(error.to_string().contains(says), "{error}");
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused_and_left_alone() {
        for (bytes, says) in [
            (0, "0 bytes"),
            (1, "make it 4096 bytes"),
            (4097, "make it 4096 bytes"),
            (MIB + 64, "make it 1048576 bytes"),
        ] {
            let (_directory, path) = file_of(bytes);
            let error = Region::open(&path, None).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
        }
    }

    #[test]
    fn a_region_that_is_too_small_is_refused() {
        let (_directory, path) = file_of(MIB);
        let region = Region::open(&path, None).unwrap();
        region.require_bytes(MIB).unwrap();
        let error = region.require_bytes(MIB + 1).unwrap_err();
        assert!(error.to_string().contains("at least 1048577 are needed"), "{error}");
    }

    #[test]
    fn a_file_that_changes_under_way_is_refused() {
        let (directory, path) = file_of(MIB);
        let inspected = RegionPath::inspect(&path, &Sysfs::default()).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * MIB).unwrap();
        let error = inspected.open().unwrap_err();
        assert!(matches!(error, OpenError::Replaced { .. }), "{error}");

        let inspected = RegionPath::inspect(&path, &Sysfs::default()).unwrap();
        let other = directory.path().join("other");
        File::create_new(&other).unwrap().set_len(2 * MIB).unwrap();
        fs::rename(&other, &path).unwrap();
        let error = inspected.open().unwrap_err();
        assert!(matches!(error, OpenError::Replaced { .. }), "{error}");
    }

    #[test]
    fn answers_of_the_system_are_told_apart() {
        let error = |errno, kind| {
            refused(Path::new("/dev/dax0.0"), kind, io::Error::from_raw_os_error(errno))
        };
        assert!(matches!(error(libc::EACCES, RegionKind::Devdax), OpenError::Permission { .. }));
        assert!(matches!(error(libc::EPERM, RegionKind::File), OpenError::Permission { .. }));
        assert!(matches!(error(libc::EROFS, RegionKind::File), OpenError::Permission { .. }));
        let no_driver = error(libc::ENXIO, RegionKind::Devdax);
        assert!(no_driver.to_string().contains("daxctl enable-device dax0.0"), "{no_driver}");
        assert!(matches!(error(libc::ENXIO, RegionKind::File), OpenError::System { .. }));
        assert!(matches!(error(libc::EMFILE, RegionKind::Devdax), OpenError::System { .. }));
    }

    #[test]
    fn a_region_is_found_through_a_link_and_keeps_an_absolute_path() {
        let (directory, path) = file_of(MIB);
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        let region = Region::open(&link, None).unwrap();
        assert_eq!((region.bytes(), region.path()), (MIB, link.as_path()));
    }
}
