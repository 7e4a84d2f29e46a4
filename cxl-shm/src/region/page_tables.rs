//! Filling this process's page tables for memory that a region has already. Without it the first
//! touch of each page by a process is a fault (0.2 to 0.5 us), and a page of 4 KiB is copied in as
//! little.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};

use super::Region;
use super::file_system::{Kind, kind_of};
use crate::fabric::Mapping;
use crate::layout::RegionKind;
use crate::units::{Extent, PAGE_BYTES};

/// Pages of a step: a fraction of a millisecond, for which a thread that maps memory may wait.
const STEP_PAGES: u64 = 1024;
/// Pages in all. Their entries take 64 MiB of page tables, in each process: enough for 32 GiB of a
/// file in `/dev/shm`, and for 16 TiB of a device with pages of 2 MiB.
const PAGES_MAX: u64 = 8 << 20;

/// The page tables of one process for one region, while they are filled.
///
/// Only memory that the region has is entered: a hole of a sparse file stays a hole. No byte
/// changes, so others may use the region meanwhile.
#[derive(Debug)]
pub struct PageTables {
    mapping: Arc<Mapping>,
    holes: Holes,
    page_bytes: u64,
    /// Where the next step starts.
    next: u64,
    /// How far there is memory from there on.
    until: u64,
    /// Pages that may still be entered.
    pages_left: u64,
}

/// Which memory there is.
#[derive(Debug)]
enum Holes {
    /// All of it.
    None,
    /// What the file says. It is the very file that is mapped.
    In(File),
}

impl Region {
    /// What fills this process's page tables for the region. `None` where nothing should: the
    /// system would read a file that is not in memory from its drive.
    ///
    /// # Errors
    /// The system's error when it cannot be asked about the file.
    pub fn page_tables(&self) -> io::Result<Option<PageTables>> {
        let holes = match self.kind() {
            RegionKind::Devdax => Holes::None,
            RegionKind::File => match kind_of(&self.file)? {
                Kind::Tmpfs => Holes::In(self.file.try_clone()?),
                // It does not tell its holes.
                Kind::Hugetlbfs if self.is_backed()? => Holes::None,
                Kind::Hugetlbfs | Kind::Other => return Ok(None),
            },
        };
        Ok(Some(PageTables {
            mapping: Arc::clone(self.fabric.mapping()),
            holes,
            page_bytes: self.path.align_bytes(),
            next: 0,
            until: 0,
            pages_left: PAGES_MAX,
        }))
    }

    /// Whether there is memory behind every byte.
    fn is_backed(&self) -> io::Result<bool> {
        /// Unit of `st_blocks`, whatever the block size of the file system.
        const BLOCK_BYTES: u64 = 512;
        Ok(self.file.metadata()?.blocks().saturating_mul(BLOCK_BYTES) >= self.bytes())
    }
}

impl PageTables {
    /// The smallest page that the memory has.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The bytes of a file in `/dev/shm` that this process reaches through huge pages so far: none
    /// unless the file system was mounted with them (`huge=advise`). `None` for other memory, all of
    /// which has pages of [`page_bytes`](Self::page_bytes).
    ///
    /// # Errors
    /// The system's error.
    pub fn huge_bytes(&self) -> io::Result<Option<u64>> {
        match self.holes {
            Holes::None => Ok(None),
            Holes::In(_) => self.mapping.huge_bytes().map(Some),
        }
    }

    /// Enters the next pages, some megabytes of them. The answer is their bytes, or `None` when
    /// there is no more to enter.
    ///
    /// # Errors
    /// The system's error, when memory is poisoned or the file was truncated, or when the kernel
    /// is older than Linux 5.14. Nothing is changed then, and there is no use in another step.
    pub fn step(&mut self) -> io::Result<Option<u64>> {
        if self.next == self.until {
            let Some(part) = self.part_from(self.next)? else { return Ok(None) };
            (self.next, self.until) = (part.offset(), part.end());
        }
        let most_bytes = STEP_PAGES.min(self.pages_left) * self.page_bytes;
        let bytes = most_bytes.min(self.until - self.next);
        let Some(part) = Extent::new(self.next, bytes).filter(|_| bytes > 0) else {
            return Ok(None);
        };
        self.mapping.prefault(part)?;
        self.next = part.end();
        self.pages_left -= bytes.div_ceil(self.page_bytes);
        Ok(Some(bytes))
    }

    /// The next part from there on that has memory.
    fn part_from(&self, from: u64) -> io::Result<Option<Extent>> {
        let bytes = self.mapping.bytes();
        if from >= bytes {
            return Ok(None);
        }
        let (start, end) = match &self.holes {
            Holes::None => (from, bytes),
            Holes::In(file) => match seek(file, SeekFrom::Data(from)) {
                Ok(start) => (start, seek(file, SeekFrom::Hole(start))?),
                // A hole up to the end.
                Err(rustix::io::Errno::NXIO) => return Ok(None),
                Err(error) => return Err(error.into()),
            },
        };
        // A tmpfs tells its holes by pages: their edges are edges of pages.
        let end = end.min(bytes).next_multiple_of(PAGE_BYTES);
        Ok(end.checked_sub(start).and_then(|bytes| Extent::new(start, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;
    use crate::fabric::Fabric;
    use crate::region::dax;
    use crate::units::WordOffset;

    const MIB: u64 = 1 << 20;

    fn sparse(bytes: u64) -> (tempfile::TempDir, Region) {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let region = Region::create_file(&directory.path().join("pool"), bytes).unwrap();
        (directory, region)
    }

    fn backed(region: &Region) -> u64 {
        region.file.metadata().unwrap().blocks() * 512
    }

    fn entered(region: &Region) -> Vec<u64> {
        let mut tables = region.page_tables().unwrap().expect("a file in memory");
        std::iter::from_fn(|| tables.step().unwrap()).collect()
    }

    /// Page faults of this thread so far that needed no drive: field 10 of proc_pid_stat(5).
    fn faults() -> i64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields = stat.rsplit(')').next().unwrap();
        fields.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn a_hole_stays_a_hole_and_no_touch_of_what_was_entered_faults() {
        let (_directory, region) = sparse(64 * MIB);
        let filled = [(0, 3 * MIB), (32 * MIB + PAGE_BYTES, 8 * MIB)];
        for (start, bytes) in filled {
            let extent = Extent::new(start, bytes).unwrap();
            region.fabric().mapping().prefault(extent).unwrap();
        }
        // Another process, whose page tables have none of it.
        let other = Region::open(region.path(), None).unwrap();
        assert_eq!(entered(&other), [3 * MIB, 4 * MIB, 4 * MIB]);
        assert_eq!(backed(&region), 11 * MIB, "nothing was filled");
        let before = faults();
        for (start, bytes) in filled {
            for page in (start..start + bytes).step_by(4096) {
                other.fabric().store(WordOffset::new(page).unwrap(), 1);
            }
        }
        // Of 2,816 pages: the loop itself may touch one of its own.
        assert!(faults() - before < 8, "{} faults", faults() - before);
    }

    #[test]
    fn pages_are_huge_where_the_mount_gives_them() {
        // As `/dev/shm` is mounted: a test may not mount another, and `RACKLINE_HUGE_TMPFS` names
        // one that a person has mounted with `huge=advise`.
        let huge = std::env::var_os("RACKLINE_HUGE_TMPFS");
        let folder = huge.clone().unwrap_or_else(|| "/dev/shm".into());
        let directory = tempfile::tempdir_in(folder).unwrap();
        let region = Region::create_file(&directory.path().join("pool"), 64 * MIB).unwrap();
        region.prefault(8 * MIB, |_, _| ()).unwrap();
        let mut tables = region.page_tables().unwrap().unwrap();
        while tables.step().unwrap().is_some() {}
        let bytes = tables.huge_bytes().unwrap().expect("a tmpfs says");
        assert!(bytes <= 64 * MIB && bytes.is_multiple_of(2 * MIB), "{bytes}");
        assert!(huge.is_none() || bytes >= 60 * MIB, "{bytes} of huge pages");
    }

    #[test]
    fn an_empty_file_stays_empty() {
        let (_directory, region) = sparse(MIB);
        assert_eq!(entered(&region), [] as [u64; 0]);
        assert_eq!(backed(&region), 0);
    }

    #[test]
    fn as_many_pages_as_the_tables_may_have() {
        let (_directory, region) = sparse(16 * MIB);
        region.prefault(MIB, |_, _| ()).unwrap();
        let mut tables = region.page_tables().unwrap().unwrap();
        tables.pages_left = 1500;
        let steps: Vec<_> = std::iter::from_fn(|| tables.step().unwrap()).collect();
        assert_eq!(steps, [1024 * 4096, 476 * 4096]);
    }

    #[test]
    fn a_device_is_entered_whole_and_a_file_on_a_drive_not_at_all() {
        let (_tree, sysfs) = dax::fake_device(5, 4 * MIB);
        let device = crate::region::RegionPath::inspect(Path::new("/dev/zero"), &sysfs).unwrap();
        assert_eq!(entered(&device.open().unwrap()), [4 * MIB]);
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = Region::create_file(&directory.path().join("pool"), MIB).unwrap();
        if matches!(kind_of(&file.file).unwrap(), Kind::Other) {
            assert!(file.page_tables().unwrap().is_none());
        }
        assert_eq!(backed(&file), 0, "read from the drive, or filled");
    }

    #[test]
    fn a_truncated_file_is_an_error_and_no_signal() {
        let (_directory, region) = sparse(2 * MIB);
        region.prefault(MIB, |_, _| ()).unwrap();
        let mut tables = region.page_tables().unwrap().unwrap();
        tables.holes = Holes::None;
        OpenOptions::new().write(true).open(region.path()).unwrap().set_len(MIB).unwrap();
        tables.step().unwrap_err();
    }
}
