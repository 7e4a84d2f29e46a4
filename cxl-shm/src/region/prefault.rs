//! Touching every page beforehand, so that no publish pays for a first touch (1.9 us a page in
//! `/dev/shm`) and none meets a full file system, which is SIGBUS.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::Region;
use super::file_system::room_left;
use crate::layout::RegionKind;
use crate::units::{Extent, PAGE_BYTES};

/// Why a region could not be pre-faulted. Its bytes are as they were; some may have memory behind
/// them that had none before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrefaultError {
    /// The file system, or the machine, is full.
    #[error(
        "no room to back {}: it needs {needed_bytes} bytes more; left in its file system: {}, and \
         the machine may have less; free some memory, or format a smaller region",
        .path.display(), stated(*.free_bytes)
    )]
    NoSpace {
        /// Path of the region.
        path: PathBuf,
        /// Bytes that have no memory behind them yet.
        needed_bytes: u64,
        /// Bytes the file system has left; `None` when it states no limit.
        free_bytes: Option<u64>,
    },
    /// The kernel does not know how.
    #[error("this kernel cannot pre-fault: it needs Linux 5.14 or newer; start without it")]
    Unsupported,
    /// The operating system refused for another reason, such as poisoned memory.
    #[error(
        "cannot pre-fault {} at byte {offset}: {source}; look for memory errors of the device \
         (`dmesg`, `cxl list --media-errors`)",
        .path.display()
    )]
    System {
        /// Path of the region.
        path: PathBuf,
        /// Start of the step that failed.
        offset: u64,
        /// The system's reason.
        source: io::Error,
    },
}

fn stated(free_bytes: Option<u64>) -> String {
    free_bytes.map_or_else(|| "not stated".into(), |bytes| format!("{bytes} bytes"))
}

impl Region {
    /// Puts memory behind the whole region, `step_bytes` at a time (rounded up to whole pages or
    /// units of the device), and calls `progress` with the bytes done and the bytes in all after
    /// each step. No byte changes, so it may run while others use the region.
    ///
    /// # Errors
    /// [`PrefaultError`]. Nothing is touched when the room is known beforehand to be too small.
    pub fn prefault(
        &self,
        step_bytes: u64,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), PrefaultError> {
        self.require_room()?;
        let total = self.bytes();
        let align = self.path.align_bytes();
        let step = step_bytes.clamp(1, total).div_ceil(align) * align;
        let mut done = 0;
        while done < total {
            let part = Extent::new(done, step.min(total - done)).ok_or_else(|| {
                // A mapping that long does not exist; said rather than assumed.
                self.failed(done, io::ErrorKind::InvalidInput.into())
            })?;
            let populated = self.fabric.mapping().prefault(part);
            populated.map_err(|source| self.failed(done, source))?;
            done = part.end();
            progress(done, total);
        }
        Ok(())
    }

    /// Filling `/dev/shm` to the brim and then failing would hurt every process on the machine.
    fn require_room(&self) -> Result<(), PrefaultError> {
        // A device has its memory, and hugetlbfs has set it aside when it was mapped.
        if self.kind() == RegionKind::Devdax || self.path.align_bytes() != PAGE_BYTES {
            return Ok(());
        }
        let (needed_bytes, free_bytes) =
            self.needed_and_free().map_err(|source| self.failed(0, source))?;
        match free_bytes {
            Some(free) if free < needed_bytes => Err(self.no_space(needed_bytes, free_bytes)),
            _ => Ok(()),
        }
    }

    fn needed_and_free(&self) -> io::Result<(u64, Option<u64>)> {
        /// Unit of `st_blocks`, whatever the block size of the file system.
        const BLOCK_BYTES: u64 = 512;
        let backed_bytes = self.file.metadata()?.blocks().saturating_mul(BLOCK_BYTES);
        Ok((self.bytes().saturating_sub(backed_bytes), room_left(&self.file)?))
    }

    fn no_space(&self, needed_bytes: u64, free_bytes: Option<u64>) -> PrefaultError {
        PrefaultError::NoSpace { path: self.path().to_owned(), needed_bytes, free_bytes }
    }

    fn failed(&self, offset: u64, source: io::Error) -> PrefaultError {
        let errno = source.raw_os_error();
        if errno == Some(libc::EINVAL) {
            return PrefaultError::Unsupported;
        }
        let full = matches!(errno, Some(libc::ENOSPC | libc::ENOMEM));
        // What the kernel answers where a touch would be SIGBUS: a full tmpfs, a truncated file.
        let sigbus = errno == Some(libc::EFAULT);
        if let (RegionKind::File, true, Ok((needed_bytes, free_bytes))) =
            (self.kind(), full || sigbus, self.needed_and_free())
            && (full || free_bytes.is_some_and(|free| free < needed_bytes))
        {
            return self.no_space(needed_bytes, free_bytes);
        }
        PrefaultError::System { path: self.path().to_owned(), offset, source }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::path::Path;

    use super::*;
    use crate::fabric::Fabric;
    use crate::region::{dax, free_bytes};
    use crate::units::WordOffset;

    const MIB: u64 = 1 << 20;

    fn region(bytes: u64) -> (tempfile::TempDir, Region) {
        // Other file systems count the blocks of a file some time after it got them.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("pool");
        // Not by `create_file`, which refuses what does not fit.
        File::create_new(&path).unwrap().set_len(bytes).unwrap();
        let region = Region::open(&path, None).unwrap();
        (directory, region)
    }

    #[test]
    fn every_byte_is_backed_and_none_changed() {
        let (_directory, region) = region(3 * MIB);
        let word = WordOffset::new(2 * MIB + 8).unwrap();
        region.fabric().store(word, 42);
        assert_ne!(region.needed_and_free().unwrap().0, 0);
        let mut steps = Vec::new();
        region.prefault(2 * MIB, |done, total| steps.push((done, total))).unwrap();
        assert_eq!(steps, [(2 * MIB, 3 * MIB), (3 * MIB, 3 * MIB)]);
        assert_eq!(region.needed_and_free().unwrap().0, 0);
        assert_eq!(region.fabric().load(word), 42);
    }

    #[test]
    fn steps_are_whole_pages_and_at_least_one() {
        let (_directory, region) = region(3 * PAGE_BYTES);
        for (step_bytes, steps_expected) in [(0, 3), (PAGE_BYTES + 1, 2), (u64::MAX, 1)] {
            let mut steps = 0;
            region.prefault(step_bytes, |_, _| steps += 1).unwrap();
            assert_eq!(steps, steps_expected, "steps of {step_bytes}");
        }
    }

    #[test]
    fn a_device_is_populated_in_its_own_units() {
        let (_tree, sysfs) = dax::fake_device(5, 4 * MIB);
        let path = crate::region::RegionPath::inspect(Path::new("/dev/zero"), &sysfs).unwrap();
        let mut steps = Vec::new();
        path.open().unwrap().prefault(1, |done, _| steps.push(done)).unwrap();
        assert_eq!(steps, [2 * MIB, 4 * MIB]);
    }

    #[test]
    fn a_region_that_does_not_fit_is_not_begun() {
        // Of the file system that `region` uses, and twice as much: others may free some meanwhile.
        let free = free_bytes(Path::new("/dev/shm")).unwrap().expect("/dev/shm has a size");
        let bytes = (free / PAGE_BYTES + 1) * 2 * PAGE_BYTES;
        let (_directory, region) = region(bytes);
        let mut steps = 0;
        let error = region.prefault(MIB, |_, _| steps += 1).unwrap_err();
        assert!(
            matches!(error, PrefaultError::NoSpace { needed_bytes, .. } if needed_bytes == bytes),
            "{error}"
        );
        assert_eq!((steps, region.needed_and_free().unwrap().0), (0, bytes));
    }

    #[test]
    fn answers_of_the_system_are_told_apart() {
        let (_directory, region) = region(MIB);
        let failed = |errno| region.failed(0, io::Error::from_raw_os_error(errno));
        assert!(matches!(failed(libc::ENOMEM), PrefaultError::NoSpace { .. }));
        assert!(matches!(failed(libc::ENOSPC), PrefaultError::NoSpace { .. }));
        assert!(matches!(failed(libc::EINVAL), PrefaultError::Unsupported));
        // There is room, so it is not for want of room that a touch would be SIGBUS.
        assert!(matches!(failed(libc::EFAULT), PrefaultError::System { .. }));
        assert!(matches!(failed(libc::EHWPOISON), PrefaultError::System { .. }));
    }

    #[test]
    fn a_truncated_file_is_an_error_and_no_signal() {
        let (_directory, region) = region(2 * MIB);
        OpenOptions::new().write(true).open(region.path()).unwrap().set_len(MIB).unwrap();
        let error = region.prefault(MIB, |_, _| ()).unwrap_err();
        assert!(matches!(error, PrefaultError::System { offset: MIB, .. }), "{error}");
    }
}
