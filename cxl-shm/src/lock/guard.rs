//! Holding a lock between hosts, passing it on within the host, and ending it after a death.

use std::fmt;

use super::competitor::Competitor;
use super::handoff_flush::HandoffFlush;
use super::shared_tier::{Held, SharedTier};
use super::tally::is_for_programs;
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::host::Phase;
use crate::host::{Abandoned, Cohort};
use crate::intent::{recover_own, redo_own};
use crate::node::{Backend, Member, NodeHandle};
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
/// redoes the update in progress (LOCK-L2), so that what it protects is never seen half done. A
/// program's lock is then left to the host's agent, as after a death (LOCK-L5): later holders are
/// told.
pub struct SharedGuard<'m, B: Backend> {
    member: &'m Member<B>,
    clock: &'m dyn Clock,
    held: Held,
    cohort: Cohort,
    since_us: u64,
    /// The thread was unwinding when it took the lock: then that is no sign of anything left
    /// undone.
    unwinds: bool,
}

impl<'m, B: Backend> SharedGuard<'m, B> {
    pub(super) fn new(
        member: &'m Member<B>,
        clock: &'m dyn Clock,
        held: Held,
        cohort: Cohort,
    ) -> Self {
        let unwinds = std::thread::panicking();
        Self { member, clock, held, cohort, since_us: clock.now_us(), unwinds }
    }

    /// The member that holds it.
    #[must_use]
    pub fn member(&self) -> &'m Member<B> {
        self.member
    }

    /// Which lock it is.
    #[must_use]
    pub fn lock(&self) -> LockId {
        self.held.lock
    }

    /// Whether a holder of this lock, a program's, died or panicked with it in hand, and no later
    /// holder has said that the data is consistent ([`Self::set_consistent`]). It may have been the
    /// one before this, or an earlier one. Of a host that died nobody knows whether it held the
    /// lock or waited for it: then this says yes.
    ///
    /// Any part of what that holder stored may be there, or none of it; nothing more of it appears
    /// later. That holds for the memory that [`Member::may_write`] was told of on the dead holder's
    /// host, which all objects are.
    #[must_use]
    pub fn previous_holder_died(&self) -> bool {
        self.held.after_death
    }

    /// Says that the data is consistent again: later holders are not told of the death any more.
    /// Does nothing when there was none. What was repaired has been published.
    pub fn set_consistent(&mut self) {
        if self.held.after_death {
            let (handle, fabric) = (self.member.node_handle(), self.member.fabric());
            Competitor::make_consistent(self.held, handle, fabric);
            self.held.after_death = false;
        }
    }

    /// What the next thread of this host starts from, if it may have the lock before other hosts.
    fn next_cohort(&self) -> Option<Cohort> {
        let held_us = self.clock.now_us().saturating_sub(self.since_us);
        let Cohort { passes, elapsed_us, .. } = self.cohort;
        let next = Cohort {
            passes: passes + 1,
            elapsed_us: elapsed_us.saturating_add(held_us),
            after_death: self.held.after_death,
        };
        // LOCK-L4.
        (next.passes <= PASSES_MAX && next.elapsed_us < PASSING_US_MAX).then_some(next)
    }
}

impl<B: Backend> fmt::Debug for SharedGuard<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held, cohort, .. } = self;
        f.debug_struct("SharedGuard").field("held", held).field("cohort", cohort).finish()
    }
}

impl<B: Backend> Drop for SharedGuard<'_, B> {
    fn drop(&mut self) {
        let (handle, fabric) = (self.member.node_handle(), self.member.fabric());
        // Only after an unwind is an intent still open here.
        redo_own(handle, fabric, self.held.lock);
        let queue = handle.tier().queue(self.held.lock);
        if is_for_programs(self.held.lock) && std::thread::panicking() && !self.unwinds {
            queue.abandon(self.member.token(), 0);
            return;
        }
        if let Some(cohort) = self.next_cohort()
            && queue.pass(self.member.token(), cohort)
        {
            return;
        }
        Competitor::release(self.held, handle, fabric);
        crash::reach(CrashPoint::LockReleased);
        queue.release(self.member.token());
    }
}

/// Ends what a dead thread of this host left of `lock`: redo, close, release, in that order
/// (LOCK-L2). The caller has the host's turn. Does nothing where nothing was left. Where
/// [`needs_flush`] says so, what programs may have written is on the device (LOCK-L5).
pub(crate) fn recover_dead_holder<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    lock: LockId,
) {
    if handle.tier().lock_state(lock).phase == Phase::Hold {
        recover_own(handle, fabric, lock);
        crash::reach(CrashPoint::LockRecovering);
    }
    Competitor::release_after_death(handle, fabric, lock);
}

/// Releases a lock that was passed, and that nobody takes over: the one who passed it was done.
pub(super) fn release_passed<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, lock: LockId) {
    // A thread that passes the lock says in the queue's word whether a holder had died; here the
    // tally says so.
    if let Some(held) = Held::passed(handle, lock, false) {
        Competitor::release(held, handle, fabric);
    }
}

/// Whether a thread that died with `lock` may have left stores of a program in this host's caches
/// (LOCK-L5).
pub(super) fn needs_flush<B: Backend>(handle: &NodeHandle<B>, lock: LockId) -> bool {
    is_for_programs(lock) && handle.tier().lock_state(lock).phase == Phase::Hold
}

/// Ends what nobody of this host looks after: locks whose holders died, and locks that were passed
/// and not taken over. For the agent, at each beat, which continues to beat while much is moved to
/// the device. `beat` says whether the slot is its own still (BEAT-G3): when it is not, nothing
/// more is written. Without a `beat` only what is done at once: programs' locks with dead holders
/// are left to the agent.
pub(crate) fn end_abandoned<B: Backend>(member: &Member<B>, beat: Option<&dyn Fn() -> bool>) {
    let (handle, fabric, me) = (member.node_handle(), member.fabric(), member.token());
    let mut unflushed = Vec::new();
    for lock in (0..member.layout().locks()).map(LockId) {
        if beat.is_none() && needs_flush(handle, lock) {
            continue;
        }
        let queue = handle.tier().queue(lock);
        match queue.take_abandoned(me, member) {
            Some(Abandoned::ByDead) if needs_flush(handle, lock) => unflushed.push(lock),
            Some(Abandoned::ByDead) => {
                recover_dead_holder(handle, fabric, lock);
                queue.release(me);
            }
            Some(Abandoned::Passed) => {
                release_passed(handle, fabric, lock);
                queue.release(me);
            }
            None => {}
        }
    }
    if unflushed.is_empty() {
        return;
    }
    // Once for all of them: nobody knows which of them guards what.
    let flushed = flush_for_handoff(handle, fabric, &unflushed, || beat.is_none_or(|beat| beat()));
    for lock in unflushed {
        if flushed {
            recover_dead_holder(handle, fabric, lock);
            handle.tier().queue(lock).release(me);
        } else {
            handle.tier().queue(lock).abandon(me, 0);
        }
    }
}

/// Ends what dead processes left of all locks. For the last process of a host, which is alone. When
/// `beat` says that the slot is not its own any more (BEAT-G4), the rest is left.
pub(crate) fn recover_all<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    beat: impl Fn() -> bool,
) {
    let locks = || (0..handle.layout().locks()).map(LockId);
    let unflushed: Vec<LockId> = locks().filter(|lock| needs_flush(handle, *lock)).collect();
    if !unflushed.is_empty() && !flush_for_handoff(handle, fabric, &unflushed, beat) {
        return;
    }
    locks().for_each(|lock| recover_dead_holder(handle, fabric, lock));
}

/// Returns whether all of it is on the device: `beat` ends it by false.
fn flush_for_handoff<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    locks: &[LockId],
    beat: impl Fn() -> bool,
) -> bool {
    let mut flush = HandoffFlush::begin(handle);
    tracing::warn!(
        node = %handle.node(), ?locks, bytes = flush.bytes(),
        "a process died while holding locks: its host moves to the device what its programs may \
         have written, then releases the locks"
    );
    while !flush.step(fabric) {
        if !beat() {
            return false;
        }
    }
    true
}
