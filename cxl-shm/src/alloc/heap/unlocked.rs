//! Waiting for the heap, and never with a lock between hosts in hand.
//!
//! A process of this host that is stopped inside the heap keeps its host lock. Whoever waits for that
//! lock while holding one of the region's own locks makes all hosts wait. So only a thread that shows an
//! [`Unlocked`] may wait for the heap, and while it holds locks that value is borrowed.

use super::access::Access;
use super::{ReturnError, SweepError};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory};
use crate::lock::{LockError, SharedGuard};
use crate::member::{Liveness, Member};
use crate::units::LockId;

/// Looks at a heap in which another process is, before the locks between hosts are given up: an
/// operation in the heap takes less than a microsecond.
const LOOKS_UNDER_LOCK: u32 = 8;

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

/// A process of this host stands still inside the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeapBusy {
    /// How long was waited.
    pub(crate) timeout_ms: u64,
}

/// Shows that this thread holds none of the region's own locks. Made where a call of a [`Member`]
/// begins, and nowhere else.
#[derive(Debug)]
pub(crate) struct Unlocked<'m, F: Fabric, H: HostMemory, L: Liveness> {
    member: &'m Member<F, H, L>,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> Unlocked<'m, F, H, L> {
    /// For a call that begins, and whose caller holds none of the region's own locks.
    pub(crate) fn begin(member: &'m Member<F, H, L>) -> Self {
        Self { member }
    }

    pub(crate) fn member(&self) -> &'m Member<F, H, L> {
        self.member
    }

    /// Enters the heap, and waits for it until the deadline.
    pub(crate) fn enter_until(
        &self,
        clock: &impl Clock,
        deadline: Deadline,
    ) -> Result<Access<'_, F, H, L>, SweepError> {
        let mut tries = 0;
        loop {
            if let Some(access) = Access::try_enter(self.member)? {
                return Ok(access);
            }
            if deadline.left_ms(clock) == 0 {
                return Err(HeapBusy { timeout_ms: deadline.timeout_ms }.into());
            }
            clock.pause(tries);
            tries += 1;
        }
    }

    /// Takes `locks`, one after the other, enters the heap, and calls `act` there. When another process
    /// of this host is in the heap the locks are given back, that process is waited for without them, and
    /// all begins again, until the deadline.
    pub(crate) fn in_heap_under<T, E: From<LockError> + From<SweepError>>(
        &mut self,
        locks: &[LockId],
        clock: &impl Clock,
        deadline: Deadline,
        act: impl FnOnce(Access<'_, F, H, L>) -> Result<T, E>,
    ) -> Result<T, E> {
        let member = self.member;
        loop {
            {
                let _guards = self.lock(locks, clock, deadline)?;
                for tries in 0..LOOKS_UNDER_LOCK {
                    if let Some(access) = Access::try_enter(member).map_err(SweepError::from)? {
                        return act(access);
                    }
                    clock.pause(tries);
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
    ) -> Result<Vec<SharedGuard<'u, F, H, L>>, LockError> {
        let one = |lock: &LockId| {
            let member: &'u Member<F, H, L> = self.member;
            member.lock_shared(*lock, clock, deadline.left_ms(clock))
        };
        locks.iter().map(one).collect()
    }
}

impl From<HeapBusy> for SweepError {
    fn from(HeapBusy { timeout_ms }: HeapBusy) -> Self {
        Self::HeapBusy { timeout_ms }
    }
}

impl From<HeapBusy> for ReturnError {
    fn from(HeapBusy { timeout_ms }: HeapBusy) -> Self {
        Self::HeapBusy { timeout_ms }
    }
}
