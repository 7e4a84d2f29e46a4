//! Programs that fork while another thread attaches, and what remains usable in their children.
//!
//! A child has the memory of its parent as the fork found it. A lazily initialised global may be
//! half initialised at that moment, by a thread that does not exist in the child. A thread of the
//! child that needs the global would wait forever. One such global is used everywhere: the checksum
//! library detects the processor's features once. So the forking thread first lets that
//! initialisation finish.
//!
//! State that a parent made for itself alone carries its [`ProcessMark`], which differs in the
//! child.
#![expect(unsafe_code, reason = "functions that the C library calls")]
#![expect(clippy::disallowed_types, reason = "a count in private memory")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crc_fast::CrcAlgorithm;

/// How many forks are between this process and the first one of the program. Every process has its
/// own.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Called by the thread that forks, in a program that has mapped a region.
extern "C" fn finish_what_is_done_once() {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &[]);
}

/// Called in the child, before the fork returns there.
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// From now on, forks of this program wait until no thread is doing what is done once, and are
/// counted.
pub(crate) fn prepare() {
    static IS_PREPARED: AtomicBool = AtomicBool::new(false);
    if IS_PREPARED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: functions of this library, which neither unwind nor fork; the C library forgets them
    // when it unloads this library. That several threads may pass it is no harm.
    let refused =
        unsafe { libc::pthread_atfork(Some(finish_what_is_done_once), None, Some(count_fork)) };
    // It is refused when there is no memory: the next region, or mark, tries again.
    IS_PREPARED.store(refused == 0, Ordering::Release);
}

/// Tells a process from all that were forked from it.
///
/// Its number alone does not: when the process is dead, its number may be given to a descendant,
/// which has all of its memory; and the first process of a pid namespace has number 1, as its
/// parent may have. A child of `_Fork` or a bare system call is told by its number alone.
///
/// The default value belongs to no process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProcessMark {
    process: u32,
    forks: u64,
}

impl ProcessMark {
    /// That of this process.
    #[must_use]
    pub fn of_this() -> Self {
        prepare();
        Self { process: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether it is that of this process.
    #[must_use]
    pub fn is_of_this(self) -> bool {
        self == Self::of_this()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_counted_in_the_child_alone() {
        let parent = ProcessMark::of_this();
        assert!(parent.is_of_this() && !ProcessMark::default().is_of_this());
        // SAFETY: the child calls what is safe after a fork of threads, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // As if it had its parent's number.
            let told = ProcessMark { process: std::process::id(), ..parent }.is_of_this();
            // SAFETY: it ends the process at once.
            unsafe { libc::_exit(i32::from(told || !ProcessMark::of_this().is_of_this())) }
        }
        let mut status = 0;
        // SAFETY: the status is written to a place of its own.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert!(parent.is_of_this());
    }
}
