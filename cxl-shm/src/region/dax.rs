//! What the kernel says about a devdax device, read from sysfs.
//!
//! `fstat` of a devdax says 0 bytes, and mapping it beyond its end succeeds until the first touch,
//! which is SIGBUS. So the size comes from sysfs and from nowhere else.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::open_error::OpenError;
use crate::units::PAGE_BYTES;

/// Alignment of a devdax whose kernel is too old to name it: what x86-64 and arm64 always used.
const ALIGN_BYTES_DEFAULT: u64 = 2 << 20;

/// Driver that turns a devdax into ordinary memory of the kernel.
const SYSTEM_RAM_DRIVER: &str = "kmem";

/// The sysfs tree. A parameter, so that tests can put a tree of their own in its place.
#[derive(Clone, Debug)]
pub struct Sysfs {
    /// Where it is mounted.
    pub root: PathBuf,
}

impl Default for Sysfs {
    /// The kernel's own, `/sys`.
    fn default() -> Self {
        Self { root: PathBuf::from("/sys") }
    }
}

/// A devdax device that can be mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DaxDevice {
    /// Size in bytes.
    pub(super) bytes: u64,
    /// What offsets and lengths of mappings are multiples of: a power of two, a page or more.
    pub(super) align_bytes: u64,
}

impl Sysfs {
    /// The devdax behind character device `major:minor`; `None` when it is another kind of device.
    ///
    /// `path` is for messages only.
    ///
    /// # Errors
    /// [`OpenError::SystemRam`] when the kernel uses the device as memory of its own,
    /// [`OpenError::Sysfs`] when an attribute cannot be read or makes no sense.
    pub(super) fn dax_device(
        &self,
        path: &Path,
        major: u32,
        minor: u32,
    ) -> Result<Option<DaxDevice>, OpenError> {
        let device = self.root.join(format!("dev/char/{major}:{minor}"));
        if link_name(&device.join("subsystem"))?.as_deref() != Some(OsStr::new("dax")) {
            return Ok(None);
        }
        if link_name(&device.join("driver"))?.as_deref() == Some(OsStr::new(SYSTEM_RAM_DRIVER)) {
            return Err(OpenError::SystemRam { path: path.to_owned(), device: device_name(path) });
        }
        let size = device.join("size");
        let bytes = read_number(&size)?
            .ok_or_else(|| OpenError::Sysfs { attribute: size, reason: "it is missing".into() })?;
        let align = device.join("align");
        let align_bytes = read_number(&align)?.unwrap_or(ALIGN_BYTES_DEFAULT);
        if !align_bytes.is_power_of_two() || align_bytes < PAGE_BYTES {
            let reason = format!("an alignment of {align_bytes} bytes makes no sense");
            return Err(OpenError::Sysfs { attribute: align, reason });
        }
        Ok(Some(DaxDevice { bytes, align_bytes }))
    }
}

/// Name of the device for `daxctl`: the last part of `path` (`dax0.0` of `/dev/dax0.0`).
pub(super) fn device_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Last part of where symbolic link `link` points; `None` when there is no such link.
fn link_name(link: &Path) -> Result<Option<std::ffi::OsString>, OpenError> {
    match fs::read_link(link) {
        Ok(target) => Ok(target.file_name().map(OsStr::to_owned)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(OpenError::Sysfs { attribute: link.to_owned(), reason: error.to_string() })
        }
    }
}

/// The number in file `attribute`; `None` when there is no such file.
fn read_number(attribute: &Path) -> Result<Option<u64>, OpenError> {
    let unreadable = |reason| OpenError::Sysfs { attribute: attribute.to_owned(), reason };
    let content = match fs::read(attribute) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    match parse_number(&content) {
        Some(number) => Ok(Some(number)),
        None => Err(unreadable(format!("\"{}\" is not a number", content.escape_ascii()))),
    }
}

/// A decimal number, or a hexadecimal one after `0x`, and the newline that the kernel ends with.
fn parse_number(content: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(content).ok()?.trim_end();
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` takes a sign, the kernel never writes one.
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// A sysfs that says that character device `1:minor` is a devdax of `bytes` bytes: `/dev/zero` is
/// `1:5` and can be mapped shared, `/dev/null` is `1:3` and cannot.
#[cfg(test)]
pub(super) fn fake_device(minor: u32, bytes: u64) -> (tempfile::TempDir, Sysfs) {
    let root = tempfile::tempdir().unwrap();
    let device = root.path().join(format!("dev/char/1:{minor}"));
    fs::create_dir_all(&device).unwrap();
    std::os::unix::fs::symlink("../../../bus/dax", device.join("subsystem")).unwrap();
    fs::write(device.join("size"), format!("{bytes}\n")).unwrap();
    let sysfs = Sysfs { root: root.path().to_owned() };
    (root, sysfs)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    const MAJOR: u32 = 252;
    const MINOR: u32 = 7;

    /// A sysfs with one device of `subsystem`, bound to `driver`, laid out as the kernel does.
    fn fake(subsystem: &str, driver: Option<&str>, attributes: &[(&str, &[u8])]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("devices/platform/hmem.0/dax0.0");
        fs::create_dir_all(&device).unwrap();
        let bus = format!("../../../../bus/{subsystem}");
        symlink(&bus, device.join("subsystem")).unwrap();
        if let Some(driver) = driver {
            symlink(format!("{bus}/drivers/{driver}"), device.join("driver")).unwrap();
        }
        for (name, content) in attributes {
            fs::write(device.join(name), content).unwrap();
        }
        fs::create_dir_all(root.path().join("dev/char")).unwrap();
        let node = root.path().join(format!("dev/char/{MAJOR}:{MINOR}"));
        symlink("../../devices/platform/hmem.0/dax0.0", node).unwrap();
        root
    }

    fn device(tree: &TempDir) -> Result<Option<DaxDevice>, OpenError> {
        let sysfs = Sysfs { root: tree.path().to_owned() };
        sysfs.dax_device(Path::new("/dev/dax0.0"), MAJOR, MINOR)
    }

    #[test]
    fn size_and_alignment_come_from_sysfs() {
        let tree =
            fake("dax", Some("device_dax"), &[("size", b"1073741824\n"), ("align", b"4096\n")]);
        let found = device(&tree).unwrap();
        assert_eq!(found, Some(DaxDevice { bytes: 1 << 30, align_bytes: 4096 }));
    }

    #[test]
    fn a_missing_alignment_is_two_mebibytes() {
        let tree = fake("dax", Some("device_dax"), &[("size", b"4194304\n")]);
        let found = device(&tree).unwrap();
        assert_eq!(found, Some(DaxDevice { bytes: 4 << 20, align_bytes: 2 << 20 }));
    }

    #[test]
    fn other_devices_are_not_devdax() {
        let tree = fake("mem", None, &[("size", b"4096\n")]);
        assert_eq!(device(&tree).unwrap(), None);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(device(&empty).unwrap(), None, "nothing is known about the device");
    }

    #[test]
    fn system_ram_says_how_to_reconfigure() {
        let tree = fake("dax", Some("kmem"), &[("size", b"4194304\n")]);
        let error = device(&tree).unwrap_err();
        let advice = "daxctl reconfigure-device --mode=devdax dax0.0";
        assert!(error.to_string().contains(advice), "{error}");
    }

    #[test]
    fn senseless_attributes_are_named() {
        for (size, align) in [
            (&b"many\n"[..], &b"4096\n"[..]),
            (b"-1\n", b"4096\n"),
            (b"+1\n", b"4096\n"),
            (b"", b"4096\n"),
            (b"18446744073709551616\n", b"4096\n"),
            (b"4194304\n", b"0\n"),
            (b"4194304\n", b"64\n"),
            (b"4194304\n", b"3000000\n"),
        ] {
            let tree = fake("dax", Some("device_dax"), &[("size", size), ("align", align)]);
            let error = device(&tree).unwrap_err();
            assert!(matches!(error, OpenError::Sysfs { .. }), "{error}");
        }
        let error = device(&fake("dax", None, &[])).unwrap_err();
        assert!(error.to_string().contains("/size"), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_attributes_never_panic(
            size in prop::collection::vec(any::<u8>(), 0..40),
            align in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let tree = fake("dax", Some("device_dax"), &[("size", &size), ("align", &align)]);
            if let Ok(found) = device(&tree) {
                let found = found.expect("the subsystem is dax");
                prop_assert_eq!(parse_number(&size), Some(found.bytes));
                prop_assert!(found.align_bytes.is_power_of_two());
            }
        }

        #[test]
        fn the_kernels_numbers_are_read_back(number in any::<u64>()) {
            prop_assert_eq!(parse_number(format!("{number}\n").as_bytes()), Some(number));
            prop_assert_eq!(parse_number(format!("{number:#x}\n").as_bytes()), Some(number));
        }
    }
}
