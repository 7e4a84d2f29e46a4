//! A lock on the file of a host tier, which each member of a node holds for its life.
//!
//! Process ids of two pid namespaces cannot be compared. Seen from another container, no member
//! seems to live, and a frozen member does not even send heartbeats. The kernel knows better. Each
//! member holds a shared lock on the first byte of the file, as a lock of its open file
//! description. The kernel releases the lock when the last descriptor and mapping of that open file
//! are gone. That happens when the process has ended, and not while it is stopped.
//!
//! A child of a member's process inherits its mappings, and so keeps its lock for as long as the
//! child lives.
#![expect(unsafe_code, reason = "locks of open file descriptions have no safe interface here")]

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// The first byte, in the way `kind`.
fn first_byte(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind.try_into().expect("a kind of lock is a small number"),
        l_whence: libc::SEEK_SET.try_into().expect("a small number"),
        l_start: 0,
        l_len: 1,
        // Not used by locks of open file descriptions; the kernel wants zero.
        l_pid: 0,
    }
}

/// Takes the lock for `file`: as long as it, or a mapping of it, is there.
///
/// # Errors
/// When the file system has no such locks.
pub(super) fn hold(file: &File) -> Result<()> {
    let wanted = first_byte(libc::F_RDLCK);
    // SAFETY: the descriptor is open, and the kernel reads one `flock`, which `wanted` is.
    let refused = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) };
    if refused == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Whether a member holds the lock through another open file than `file`.
///
/// # Errors
/// When the file system has no such locks.
pub(super) fn is_held(file: &File) -> Result<bool> {
    // Every lock of another stands in the way of an exclusive one.
    let mut found = first_byte(libc::F_WRLCK);
    // SAFETY: the descriptor is open, and the kernel writes one `flock`, which `found` is.
    let refused = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut found) };
    if refused != 0 {
        return Err(Error::last_os_error());
    }
    Ok(libc::c_int::from(found.l_type) != libc::F_UNLCK)
}
