//! A host lock that is held.

use super::lock::{HolderToken, HostLock};
use crate::fabric::HostMemory;

/// A host lock, held until this is dropped. When it is dropped by a panic the next holder is told
/// so, as after a death.
#[derive(Debug)]
pub struct HostGuard<'m, H: HostMemory> {
    lock: HostLock<'m, H>,
    token: HolderToken,
    recovered: bool,
    /// The thread was unwinding when it took the lock: then that is no sign of anything left
    /// undone.
    unwinds: bool,
}

impl<'m, H: HostMemory> HostGuard<'m, H> {
    pub(crate) fn new(lock: HostLock<'m, H>, token: HolderToken, recovered: bool) -> Self {
        Self { lock, token, recovered, unwinds: std::thread::panicking() }
    }

    /// Whether the holder before died or panicked inside: what the lock guards may be half done.
    #[must_use]
    pub fn recovered(&self) -> bool {
        self.recovered
    }
}

impl<H: HostMemory> Drop for HostGuard<'_, H> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinds {
            self.lock.abandon(self.token);
        } else {
            self.lock.release(self.token);
        }
    }
}
