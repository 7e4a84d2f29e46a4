//! Programs that fork while another thread attaches.
//!
//! A child has the memory of its parent as the fork found it. What another thread was doing for the first
//! time in the program, and others wait for, stays half done in the child, and who needs it there waits for
//! good. Of that kind is one thing that everybody needs: the library of checksums asks once what the
//! processor can do. So whoever forks lets that come to its end first.
#![expect(unsafe_code, reason = "a function that the C library calls")]

use std::sync::atomic::{AtomicBool, Ordering};

use crc_fast::CrcAlgorithm;

/// Called by whoever forks, in a program that has mapped a region.
extern "C" fn finish_what_is_done_once() {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &[]);
}

/// From now on, forks of this program wait until no thread is doing what is done once.
pub(crate) fn prepare() {
    static IS_PREPARED: AtomicBool = AtomicBool::new(false);
    if IS_PREPARED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: a function of this library, which neither unwinds nor forks; the C library forgets it when it
    // unloads this library. That several threads may pass it is no harm.
    let refused = unsafe { libc::pthread_atfork(Some(finish_what_is_done_once), None, None) };
    // It is refused when there is no memory: the next region tries again.
    IS_PREPARED.store(refused == 0, Ordering::Release);
}
