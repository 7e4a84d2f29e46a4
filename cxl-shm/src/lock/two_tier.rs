//! Both tiers together: what a caller takes and holds.

use super::arbitrated::{Acquire, Held, manager_of, release_after_death};
use super::host::HostAcquire;
use super::stamp::Phase;
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory};
use crate::intent::redo_own;
use crate::member::{HostLockName, Liveness, Member, SUSPECT_MS};
use crate::units::{LockId, NodeId};

/// Why a lock between hosts was not had. Nothing is held or left behind then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// No lock manager ever ran on this region.
    #[error(
        "no lock manager has run on this region yet; start one with `rackline lock-manager` on \
         one of its hosts"
    )]
    NoManager,
    /// The lock manager does not move any more.
    #[error(
        "the lock manager on node {node} (term {term}) has not moved for {silent_ms} ms; start \
         one with `rackline lock-manager` on this or another host, it takes over"
    )]
    ManagerSilent {
        /// Where it ran.
        node: NodeId,
        /// Its term.
        term: u64,
        /// How long it has been silent.
        silent_ms: u64,
    },
    /// Another holder kept it too long.
    #[error("lock {lock} was not to be had within {timeout_ms} ms; others hold it")]
    TimedOut {
        /// The lock.
        lock: LockId,
        /// How long was waited.
        timeout_ms: u64,
    },
}

/// A lock between hosts, held until this is dropped.
///
/// While it lives no other thread of any host holds the same lock. Dropped on unwind it first
/// redoes the update in progress (L2), so that what it protects is never seen half done.
#[derive(Debug)]
pub struct SharedGuard<'m, F: Fabric, H: HostMemory, L: Liveness> {
    member: &'m Member<F, H, L>,
    lock: LockId,
    held: Option<Held>,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> SharedGuard<'m, F, H, L> {
    /// Takes `lock`, waiting at most `timeout_ms`.
    pub(crate) fn acquire(
        member: &'m Member<F, H, L>,
        lock: LockId,
        clock: &impl Clock,
        timeout_ms: u64,
    ) -> Result<Self, LockError> {
        let (seat, fabric) = (member.seat(), member.fabric());
        let host_lock = seat.tier().host_lock(HostLockName::Region(lock));
        let deadline_ms = clock.now_ms().saturating_add(timeout_ms);
        let mut tries = 0;
        while member.try_host_lock(&host_lock) == HostAcquire::Busy {
            if clock.now_ms() >= deadline_ms {
                return Err(LockError::TimedOut { lock, timeout_ms });
            }
            clock.pause(tries);
            tries += 1;
        }
        // Whoever held the host lock before us and died may have left its request standing.
        recover(member, lock);

        let mut watch = ManagerWatch::default();
        let mut waiting = Acquire::begin(seat, fabric, lock);
        let mut tries = 0;
        let held = loop {
            match waiting.poll(seat, fabric) {
                Ok(held) => break held,
                Err(still) => waiting = still,
            }
            let now_ms = clock.now_ms();
            let silent = watch.look(member, now_ms);
            if silent.is_some() || now_ms >= deadline_ms {
                waiting.withdraw(seat, fabric);
                host_lock.release(member.token());
                return Err(silent.unwrap_or(LockError::TimedOut { lock, timeout_ms }));
            }
            clock.pause(tries);
            tries += 1;
        };
        Ok(Self { member, lock, held: Some(held) })
    }

    /// The member that holds it.
    #[must_use]
    pub fn member(&self) -> &'m Member<F, H, L> {
        self.member
    }

    /// Which lock it is.
    #[must_use]
    pub fn lock(&self) -> LockId {
        self.lock
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> Drop for SharedGuard<'_, F, H, L> {
    fn drop(&mut self) {
        let (seat, fabric) = (self.member.seat(), self.member.fabric());
        // Only after an unwind is an intent still open here.
        redo_own(seat, fabric, self.lock);
        if let Some(held) = self.held.take() {
            held.release(seat, fabric);
        }
        crash::reach(CrashPoint::LockReleased);
        seat.tier().host_lock(HostLockName::Region(self.lock)).release(self.member.token());
    }
}

/// Ends what a dead process of this host left of `lock`: redo, close, release, in that order (L2).
/// The caller holds the host lock.
pub(crate) fn recover<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    lock: LockId,
) {
    let (seat, fabric) = (member.seat(), member.fabric());
    if seat.tier().stamp(lock).phase == Phase::Hold {
        redo_own(seat, fabric, lock);
        crash::reach(CrashPoint::LockRecovering);
    }
    release_after_death(seat, fabric, lock);
}

/// Notices that the manager we wait for does not move.
#[derive(Debug, Default)]
struct ManagerWatch {
    /// Term, heartbeat, and since when it has been so.
    seen: Option<(u64, u64, u64)>,
}

impl ManagerWatch {
    fn look<F: Fabric, H: HostMemory, L: Liveness>(
        &mut self,
        member: &Member<F, H, L>,
        now_ms: u64,
    ) -> Option<LockError> {
        let seat = member.seat();
        let term = seat.tier().term();
        let manager = manager_of(seat.layout(), term);
        let beat =
            manager.map_or(0, |node| seat.layout().manager_heartbeat(node).fresh(member.fabric()));
        match self.seen {
            Some((seen_term, seen_beat, since_ms)) if (seen_term, seen_beat) == (term, beat) => {
                let silent_ms = now_ms.saturating_sub(since_ms);
                (silent_ms >= SUSPECT_MS).then_some(match manager {
                    None => LockError::NoManager,
                    Some(node) => LockError::ManagerSilent { node, term, silent_ms },
                })
            }
            _ => {
                self.seen = Some((term, beat, now_ms));
                None
            }
        }
    }
}
