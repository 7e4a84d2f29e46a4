//! Who holds which lock in a simulated run, and how long a lock stays free although somebody waits
//! for it.
//!
//! Workers wait without a time-out. A worker that waited with one, and tried again, would hide a
//! lost request: its withdrawal and its next request mend what the first one lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::lock::{LockError, SharedGuard};
use cxl_shm::units::LockId;
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::simulated::SimulatedClock;

use crate::rack::{Processes, RackMember};

/// What a worker of a run accepts while it waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits {
    /// For how long a lock may be free although the worker waits for it, on the worker's own clock.
    pub(crate) free_ms: u64,
    /// Whether the lock manager may be silent: in a run in which it pauses, or dies.
    pub(crate) silence: bool,
}

impl WaitLimits {
    /// In a run without faults: about ten times what any worker was seen to wait.
    pub(crate) const SHORT: Self = Self { free_ms: 300, silence: false };
    /// In a run with pauses of some seconds, of any process, one after the other.
    pub(crate) const LONG: Self = Self { free_ms: 60_000, silence: true };
}

/// Whether the lock manager is silent: an error that a worker of a run with faults waits through.
pub(crate) fn is_silence(error: &LockError) -> bool {
    matches!(error, LockError::NoManager | LockError::ManagerSilent { .. })
}

/// One lock, as the workers of a run see it from outside.
#[derive(Debug, Default)]
struct LockSeen {
    inside: Option<String>,
    /// How often somebody came in or went out.
    turns: u64,
}

/// The locks of a run.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    locks: Arc<Mutex<BTreeMap<LockId, LockSeen>>>,
    limits: WaitLimits,
}

type Guard<'m> = SharedGuard<'m, SimulatedBackend<Processes>>;

impl Gate {
    pub(crate) fn new(limits: WaitLimits) -> Self {
        Self { locks: Arc::default(), limits }
    }

    fn locks(&self) -> MutexGuard<'_, BTreeMap<LockId, LockSeen>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `lock` for the worker `name`, however long others hold it.
    ///
    /// # Panics
    /// When another worker is inside, when the lock is refused, and when it stays free for longer
    /// than the worker accepts.
    pub(crate) fn enter<'m>(
        &self,
        member: &'m RackMember,
        clock: &'m SimulatedClock,
        lock: LockId,
        name: &str,
    ) -> Guard<'m> {
        let mut pending = member.begin_shared(lock, clock);
        let mut free = None;
        let mut tries = 0;
        loop {
            match pending.poll() {
                Ok(Some(guard)) => {
                    let mut locks = self.locks();
                    let seen = locks.entry(lock).or_default();
                    let found = seen.inside.replace(name.to_owned());
                    assert_eq!(found, None, "{name} is inside lock {lock} together with another");
                    seen.turns += 1;
                    return guard;
                }
                Ok(None) => {}
                // The same request continues: the manager's next life has to find it.
                Err(error) => {
                    let expected = self.limits.silence && is_silence(&error);
                    assert!(expected, "{name} is refused lock {lock}: {error}");
                }
            }
            let now_ms = clock.now_ms();
            let turns = self.turns_if_free(lock);
            free = match (turns, free) {
                (None, _) => None,
                (Some(turns), Some((then, since_ms))) if turns == then => {
                    let free_ms = now_ms - since_ms;
                    let lost = free_ms > self.limits.free_ms;
                    assert!(!lost, "{name} waits for lock {lock}, which is free for {free_ms} ms");
                    Some((then, since_ms))
                }
                (Some(turns), _) => Some((turns, now_ms)),
            };
            clock.pause(tries);
            tries += 1;
        }
    }

    /// The worker `name` is about to give `lock` back.
    ///
    /// # Panics
    /// When another is inside.
    pub(crate) fn leave(&self, lock: LockId, name: &str) {
        let mut locks = self.locks();
        let seen = locks.entry(lock).or_default();
        seen.turns += 1;
        let inside = seen.inside.take();
        assert_eq!(inside.as_deref(), Some(name), "two workers inside lock {lock}");
    }

    fn turns_if_free(&self, lock: LockId) -> Option<u64> {
        let mut locks = self.locks();
        let seen = locks.entry(lock).or_default();
        seen.inside.is_none().then_some(seen.turns)
    }
}
