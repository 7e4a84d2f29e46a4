//! Waiting for the heap, and never for long while holding a lock between hosts.
//!
//! A process of this host that is stopped inside the heap keeps its host lock. A thread that waits
//! for that lock while holding one of the region's own locks makes all hosts wait. So only a thread
//! that shows an [`Unlocked`] may wait for the heap until its deadline, and that value is borrowed
//! while the thread holds locks. With locks it waits for at most [`WAIT_UNDER_LOCK_MS`]. Every wait
//! is in the queue of the heap's host lock (LOCK-Q5), so no waiter is overtaken forever.

use super::access::Access;
use super::error::{HeapBusy, SweepError};
use cxl_shm::clock::Clock;
use cxl_shm::host::Living;
use cxl_shm::host::{HostLockName, ProcessIdentity};
use cxl_shm::lock::{LockError, SharedGuard};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::LockId;

/// For how long a thread that holds locks between hosts queues for the heap before it gives the
/// locks up, in milliseconds. An operation in the heap takes about a microsecond: in this time all
/// threads of a host have their turns, unless one is stopped inside.
const WAIT_UNDER_LOCK_MS: u64 = 2;

/// By when the caller wants an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    timeout_ms: u64,
    until_ms: u64,
}

impl Deadline {
    /// In `timeout_ms` milliseconds.
    pub(crate) fn after(clock: &impl Clock, timeout_ms: u64) -> Self {
        Self { timeout_ms, until_ms: clock.now_ms().saturating_add(timeout_ms) }
    }

    /// What is left of the time.
    pub(crate) fn left_ms(&self, clock: &impl Clock) -> u64 {
        self.until_ms.saturating_sub(clock.now_ms())
    }
}

/// Shows that this thread holds none of the region's own locks. Made where a call of a [`Member`]
/// begins, and nowhere else.
#[derive(Debug)]
pub(crate) struct Unlocked<'m, B: Backend> {
    member: &'m Member<B>,
}

impl<'m, B: Backend> Unlocked<'m, B> {
    /// For a call that begins, and whose caller holds none of the region's own locks.
    pub(crate) fn begin(member: &'m Member<B>) -> Self {
        Self { member }
    }

    pub(crate) fn member(&self) -> &'m Member<B> {
        self.member
    }

    /// Enters the heap: queues for it, first come, first served (rule LOCK-Q5), until the deadline.
    pub(crate) fn enter_until(
        &self,
        clock: &impl Clock,
        deadline: Deadline,
    ) -> Result<Access<'_, B>, SweepError> {
        let access = Access::enter_until(self.member, clock, deadline.until_ms)?;
        access.ok_or_else(|| busy(self.member, deadline.timeout_ms).into())
    }

    /// Takes `locks`, one after the other, enters the heap, and calls `act` there. When the heap is
    /// not had at once, or within a short wait in its queue, the locks are given back. Then the
    /// heap is waited for without them, and all begins again, until the deadline.
    pub(crate) fn in_heap_under<T, E: From<LockError> + From<SweepError>>(
        &mut self,
        locks: &[LockId],
        clock: &impl Clock,
        deadline: Deadline,
        act: impl FnOnce(Access<'_, B>) -> Result<T, E>,
    ) -> Result<T, E> {
        let member = self.member;
        loop {
            {
                let _guards = self.lock(locks, clock, deadline)?;
                let until_ms = clock.now_ms().saturating_add(WAIT_UNDER_LOCK_MS);
                let access = Access::enter_until(member, clock, until_ms);
                if let Some(access) = access.map_err(SweepError::from)? {
                    return act(access);
                }
            }
            drop(self.enter_until(clock, deadline)?);
        }
    }

    /// While the guards live, nobody can wait for the heap with `self`.
    fn lock<'u>(
        &'u mut self,
        locks: &[LockId],
        clock: &'u impl Clock,
        deadline: Deadline,
    ) -> Result<Vec<SharedGuard<'u, B>>, LockError> {
        let one = |lock: &LockId| {
            let member: &'u Member<B> = self.member;
            member.lock_shared(*lock, clock, deadline.left_ms(clock))
        };
        locks.iter().map(one).collect()
    }
}

/// The error of a failed wait for the heap: what is known about the process in the heap.
fn busy<B: Backend>(member: &Member<B>, timeout_ms: u64) -> HeapBusy {
    let tier = member.node_handle().tier();
    let holder = tier.host_lock(HostLockName::Objects).holder();
    let living = holder.filter(|token| member.holds(*token));
    let identity = living.and_then(|token| tier.process(token.process()));
    HeapBusy { timeout_ms, holder: identity.map(ProcessIdentity::pid) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use cxl_shm::host::HostQueue;
    use cxl_shm::verify::fixture::HandClock;
    use cxl_shm::verify::simulated::SimulatedHostMemory;
    use cxl_shm::verify::small_rack::{Rig, RigMember};

    fn queue(member: &RigMember) -> HostQueue<'_, SimulatedHostMemory> {
        member.node_handle().tier().host_queue(HostLockName::Objects)
    }

    /// Calls `act` in the heap, without locks between hosts.
    fn in_heap(member: &RigMember, clock: &impl Clock, act: impl FnOnce()) {
        let deadline = Deadline::after(clock, 1000);
        let done = Unlocked::begin(member).in_heap_under(&[], clock, deadline, |_| {
            act();
            Ok::<_, SweepError>(())
        });
        done.unwrap();
    }

    #[test]
    fn who_waits_for_the_heap_is_not_overtaken() {
        let rig = Rig::new(8);
        let (one, two, three) = (rig.join(0), rig.join(0), rig.join(0));
        assert!(queue(&one).take_unwaited(one.token()));
        let clock = HandClock::with(1, |pause| {
            if pause == 3 {
                queue(&one).release(one.token());
                assert!(!queue(&three).take_unwaited(three.token()), "another process waits");
            }
        });
        let unlocked = Unlocked::begin(&two);
        drop(unlocked.enter_until(&clock, Deadline::after(&clock, 1000)).unwrap());
        assert!(queue(&three).take_unwaited(three.token()), "nobody waits any more");
    }

    #[test]
    fn who_holds_locks_between_hosts_overtakes_nobody_who_waits_for_the_heap() {
        let rig = Rig::new(8);
        let (one, two) = (rig.join(0), rig.join(0));
        let place = queue(&one).enter(one.token());
        let turns = Cell::new(0);
        let clock = HandClock::with(1, |pause| {
            if pause == 1 {
                assert!(queue(&one).look(one.token(), place, &one, false).is_some());
                turns.set(1);
            } else if pause == 2 {
                queue(&one).release(one.token());
            }
        });
        in_heap(&two, &clock, || assert_eq!(turns.get(), 1, "the other came first"));
    }

    #[test]
    fn a_heap_that_is_busy_says_who_is_in_it() {
        let rig = Rig::new(8);
        let (one, two, three) = (rig.join(0), rig.join(0), rig.join(0));
        let clock = HandClock::new(1);
        let enter = || {
            let unlocked = Unlocked::begin(&two);
            unlocked.enter_until(&clock, Deadline::after(&clock, 5)).map(drop).unwrap_err()
        };
        assert!(queue(&one).take_unwaited(one.token()));
        let error = enter().to_string();
        let holder = format!("process {} of this host", std::process::id());
        assert!(error.contains(&holder) && error.contains("5 ms"), "{error}");
        queue(&one).release(one.token());
        // It does not wait any more, and leaves nobody behind it waiting.
        assert!(queue(&three).take_unwaited(three.token()));
        queue(&three).release(three.token());
        // A thread that came first, and has not had its turn: nothing is known about the process in
        // the heap.
        let _ = queue(&one).enter(one.token());
        let error = enter().to_string();
        assert!(!error.contains("process"), "{error}");
    }
}
