//! What a member does with the locks between hosts.

use crate::clock::Clock;
use crate::lock::{Contention, LockError, PendingLock, SharedGuard};
use crate::node::{Backend, Member};
use crate::units::LockId;

impl<B: Backend> Member<B> {
    /// Takes a lock between hosts, waiting at most `timeout_ms`; zero is [`Self::try_lock_shared`].
    ///
    /// First come, first served among the threads of the host, and among the hosts. A holder passes
    /// the lock on within its host a bounded number of times
    /// ([`PASSES_MAX`](crate::lock::PASSES_MAX)) before others have it.
    ///
    /// # Errors
    /// [`LockError`]; nothing is held then.
    ///
    /// # Panics
    /// When the region has no such lock.
    pub fn lock_shared<'m>(
        &'m self,
        lock: LockId,
        clock: &'m impl Clock,
        timeout_ms: u64,
    ) -> Result<SharedGuard<'m, B>, LockError> {
        if timeout_ms == 0 {
            let guard = self.try_lock_shared(lock, clock)?;
            let others = || Contention::look(self, lock, false);
            return guard.ok_or_else(|| LockError::TimedOut { lock, timeout_ms, others: others() });
        }
        self.begin_shared(lock, clock).wait(timeout_ms)
    }

    /// As [`Self::lock_shared`], and gives up when `goes_on`, asked between two looks, says no:
    /// `None` then. For whom others wait, however long the time-out.
    ///
    /// # Errors
    /// [`LockError`]; nothing is held then.
    ///
    /// # Panics
    /// When the region has no such lock.
    pub fn lock_shared_while<'m>(
        &'m self,
        lock: LockId,
        clock: &'m impl Clock,
        timeout_ms: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        if timeout_ms == 0 {
            return self.lock_shared(lock, clock, 0).map(Some);
        }
        self.begin_shared(lock, clock).wait_while(timeout_ms, goes_on)
    }

    /// Takes a lock between hosts if nobody else wants or holds it: waits for no other holder. It
    /// may also say no when two try at the same moment.
    ///
    /// Under the protocol `arbitrated` even a free lock is granted by the lock manager, which is
    /// waited for, but no longer than [`TRY_MS`](crate::lock::TRY_MS).
    ///
    /// # Errors
    /// [`LockError`]; nothing is held then.
    ///
    /// # Panics
    /// When the region has no such lock.
    pub fn try_lock_shared<'m>(
        &'m self,
        lock: LockId,
        clock: &'m impl Clock,
    ) -> Result<Option<SharedGuard<'m, B>>, LockError> {
        self.begin_shared(lock, clock).try_once()
    }

    /// Begins to take a lock between hosts, for callers that wait for several things: it is polled,
    /// and withdrawn when dropped. A caller that polls it less often than every 500 ms does not
    /// learn that the lock manager is silent: a longer time between two looks counts as a pause of
    /// the caller (BEAT-G0). One that is not polled for 20 ms while it could have the lock may be
    /// overtaken by other threads of its host (LOCK-Q6 in `host/queue.rs`).
    ///
    /// # Panics
    /// When the region has no such lock, or this member waits in its host for another one already.
    pub fn begin_shared<'m>(&'m self, lock: LockId, clock: &'m impl Clock) -> PendingLock<'m, B> {
        PendingLock::begin(self, lock, clock)
    }

    /// Ends what dead processes of this host left of the region's locks, without waiting for
    /// anybody: updates are redone, locks released. Programs' locks are left to the host's agent,
    /// which moves much to the device before it releases them (LOCK-L5). False when an update of
    /// this node is still open, under way or on the way to be redone: what the dead own is not
    /// known yet, and they are not to be struck off ([`Self::forget_process`]).
    #[must_use]
    pub fn recover_locks(&self) -> bool {
        crate::lock::end_abandoned(self, None);
        !crate::intent::is_any_open(&self.handle, &self.fabric)
    }

    /// Strikes off the dead processes of this host whose places the layer above never names
    /// (HOST-N2), unless an update of this node is open. The host's agent does so now and then.
    /// Returns how many there were.
    pub fn forget_unnamed(&self) -> usize {
        let mut gone = self.gone_processes();
        gone.retain(|gone| !gone.is_named());
        // In this order: all of them were dead when the locks were recovered.
        if gone.is_empty() || !self.recover_locks() {
            return 0;
        }
        gone.into_iter().filter(|gone| self.forget_process(*gone)).count()
    }
}
