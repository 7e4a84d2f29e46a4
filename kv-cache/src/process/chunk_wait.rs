//! For how long one call waits for the lock of the chunk table.

use cxl_shm::clock::Clock;
use cxl_shm::lock::LockError;

/// What a call may still wait for the lock of the chunk table, in all that it does there. Once the
/// lock was not acquired, everything that needs it is refused at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkWait {
    left_ms: u64,
    /// Why the lock was not acquired.
    in_vain: Option<LockError>,
}

impl ChunkWait {
    /// At most `timeout_ms` milliseconds, all waits of the call together.
    pub(crate) fn new(timeout_ms: u64) -> Self {
        Self { left_ms: timeout_ms, in_vain: None }
    }

    /// Why the lock was not acquired, once that happened.
    pub(crate) fn in_vain(&self) -> Option<LockError> {
        self.in_vain
    }

    /// Calls `ask`, which takes the lock, with the time that is left. `lock_error` says which of
    /// its errors mean that the lock was not acquired.
    ///
    /// # Errors
    /// Those of `ask`, and that of an earlier call when the lock was not acquired then.
    pub(crate) fn ask<T, E: From<LockError>>(
        &mut self,
        clock: &impl Clock,
        ask: impl FnOnce(u64) -> Result<T, E>,
        lock_error: impl FnOnce(&E) -> Option<LockError>,
    ) -> Result<T, E> {
        if let Some(error) = self.in_vain {
            return Err(error.into());
        }
        let began_ms = clock.now_ms();
        let outcome = ask(self.left_ms);
        self.left_ms = self.left_ms.saturating_sub(clock.now_ms().saturating_sub(began_ms));
        self.in_vain = outcome.as_ref().err().and_then(lock_error);
        outcome
    }
}
