//! Poison in real memory: what a device answers with an uncorrectable error, as Linux shows it.
//!
//! `userfaultfd` installs a mark in the page tables of this process. The next access to the page is
//! answered as one to a poisoned page of the machine: SIGBUS with `BUS_MCEERR_AR`. Other processes
//! read the page as before. It needs Linux 6.6, and a user who may use `userfaultfd`.
#![expect(unsafe_code, reason = "system calls that have no interface")]

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

use crate::fabric::faults;
use crate::units::{Extent, PAGE_BYTES};

const API: u64 = 0xAA;
const FEATURE_POISON: u64 = 1 << 14;
const REGISTER_MISSING: u64 = 1;
/// The requests, as `_IOWR(0xAA, number, the structure)` makes them.
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_POISON: libc::c_ulong = 0xC020_AA08;
/// Other threads may touch the page again before it is poisoned.
const TRIES: usize = 100_000;

/// Poisons the pages of `extent` wherever this process has mapped the file at `path` for writing.
///
/// # Errors
/// That of the system; `NotFound` when no mapping of the file has the pages.
pub fn poison(path: &Path, extent: Extent) -> Result<()> {
    let path = fs::canonicalize(path)?;
    let first = extent.offset() / PAGE_BYTES * PAGE_BYTES;
    let bytes = extent.end().next_multiple_of(PAGE_BYTES) - first;
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mut poisoned = false;
    for line in maps.lines().filter(|line| line.ends_with(&*path.to_string_lossy())) {
        let mut fields = line.split_ascii_whitespace();
        let hex = |text: &str| u64::from_str_radix(text, 16).map_err(Error::other);
        let (start, end) =
            fields.next().and_then(|range| range.split_once('-')).unwrap_or(("", ""));
        let (start, end) = (hex(start)?, hex(end)?);
        let is_written = fields.next().is_some_and(|allowed| allowed.starts_with("rw"));
        let offset = hex(fields.next().unwrap_or(""))?;
        if is_written && offset <= first && first + bytes <= offset + (end - start) {
            poison_at(start + (first - offset), bytes)?;
            poisoned = true;
        }
    }
    if poisoned { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
}

/// From now on no fault of this process is contained: what suites show that they notice.
pub fn contain_nothing() {
    faults::contain_nothing();
}

fn poison_at(start: u64, bytes: u64) -> Result<()> {
    // SAFETY: no memory of ours is passed.
    let opened =
        unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    // It stays open: closed, it would take the mark back.
    let file =
        i32::try_from(opened).ok().filter(|file| *file >= 0).ok_or_else(Error::last_os_error)?;
    request(file, UFFDIO_API, &mut [API, FEATURE_POISON, 0])?;
    request(file, UFFDIO_REGISTER, &mut [start, bytes, REGISTER_MISSING, 0])?;
    for _ in 0..TRIES {
        let at = std::ptr::without_provenance_mut(usize::try_from(start).map_err(Error::other)?);
        let length = usize::try_from(bytes).map_err(Error::other)?;
        // SAFETY: the range is of a shared mapping of a file, which keeps its bytes.
        if unsafe { libc::madvise(at, length, libc::MADV_DONTNEED) } != 0 {
            return Err(Error::last_os_error());
        }
        match request(file, UFFDIO_POISON, &mut [start, bytes, 0, 0]) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            outcome => return outcome,
        }
    }
    Err(std::io::ErrorKind::TimedOut.into())
}

fn request<const WORDS: usize>(
    file: i32,
    request: libc::c_ulong,
    argument: &mut [u64; WORDS],
) -> Result<()> {
    // SAFETY: each request reads and writes as many words as the argument has.
    let refused = unsafe { libc::ioctl(file, request, argument.as_mut_ptr()) };
    if refused == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
