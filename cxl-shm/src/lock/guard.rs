//! Holding a lock between hosts, passing it on within the host, and ending it after a death.

use std::fmt;

use super::queue::Cohort;
use super::shared_tier::{Competitor, Held, SharedTier};
use super::stamp::Phase;
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory};
use crate::intent::{recover_own, redo_own};
use crate::member::{Liveness, Member, Seat};
use crate::units::LockId;

/// How often a host passes a lock on among its own threads before it gives it to other hosts. Each
/// pass saves the way through the shared tier; other hosts wait for at most so many more holders.
pub const PASSES_MAX: u16 = 8;
/// How long, in microseconds, a host uses a lock before it gives it to other hosts instead of
/// passing it on. Counted is the time in which its threads held it, each by its own clock.
pub const PASSING_US_MAX: u64 = 20;

/// A lock between hosts, held until this is dropped.
///
/// While it lives no other thread of any host holds the same lock. Dropped on unwind it first
/// redoes the update in progress (L2), so that what it protects is never seen half done.
pub struct SharedGuard<'m, F: Fabric, H: HostMemory, L: Liveness> {
    member: &'m Member<F, H, L>,
    clock: &'m dyn Clock,
    held: Held,
    cohort: Cohort,
    since_us: u64,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> SharedGuard<'m, F, H, L> {
    pub(super) fn new(
        member: &'m Member<F, H, L>,
        clock: &'m dyn Clock,
        held: Held,
        cohort: Cohort,
    ) -> Self {
        Self { member, clock, held, cohort, since_us: clock.now_us() }
    }

    /// The member that holds it.
    #[must_use]
    pub fn member(&self) -> &'m Member<F, H, L> {
        self.member
    }

    /// Which lock it is.
    #[must_use]
    pub fn lock(&self) -> LockId {
        self.held.lock
    }

    /// What the next thread of this host starts from, if it may have the lock before other hosts.
    fn next_cohort(&self) -> Option<Cohort> {
        let held_us = self.clock.now_us().saturating_sub(self.since_us);
        let Cohort { passes, elapsed_us } = self.cohort;
        let next = Cohort { passes: passes + 1, elapsed_us: elapsed_us.saturating_add(held_us) };
        (next.passes <= PASSES_MAX && next.elapsed_us < PASSING_US_MAX).then_some(next)
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> fmt::Debug for SharedGuard<'_, F, H, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held, cohort, .. } = self;
        f.debug_struct("SharedGuard").field("held", held).field("cohort", cohort).finish()
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> Drop for SharedGuard<'_, F, H, L> {
    fn drop(&mut self) {
        let (seat, fabric) = (self.member.seat(), self.member.fabric());
        // Only after an unwind is an intent still open here.
        redo_own(seat, fabric, self.held.lock);
        let queue = seat.tier().queue(self.held.lock);
        if let Some(cohort) = self.next_cohort()
            && queue.pass(self.member.token(), cohort)
        {
            return;
        }
        Competitor::release(self.held, seat, fabric);
        crash::reach(CrashPoint::LockReleased);
        queue.release(self.member.token());
    }
}

/// Ends what a dead thread of this host left of `lock`: redo, close, release, in that order (L2).
/// The caller has the host's turn. Does nothing where nothing was left; a lock that was passed, and
/// that nobody takes over, is released too: its intent was closed before it was passed.
pub(crate) fn recover<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    lock: LockId,
) {
    recover_seat(member.seat(), member.fabric(), lock);
}

/// As [`recover`], for who has no more than the seat.
pub(crate) fn recover_seat<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
    if seat.tier().stamp(lock).phase == Phase::Hold {
        recover_own(seat, fabric, lock);
        crash::reach(CrashPoint::LockRecovering);
    }
    Competitor::release_after_death(seat, fabric, lock);
}

/// Ends what nobody of this host looks after: locks whose holders died, and locks that were passed
/// and not taken over. For the agent, at each beat.
pub(crate) fn end_abandoned<F: Fabric, H: HostMemory, L: Liveness>(member: &Member<F, H, L>) {
    for lock in (0..member.layout().locks()).map(LockId) {
        let queue = member.seat().tier().queue(lock);
        if queue.take_abandoned(member.token(), member) {
            recover(member, lock);
            queue.release(member.token());
        }
    }
}
