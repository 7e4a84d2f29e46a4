//! The one word of a node that a lock manager polls: which request of the node was its last.
//!
//! - **S1** Requests of a node are numbered by a counter in its host's memory. A request is published
//!   before its number is drawn, so whoever sees number *n* finds every request up to the *n*-th.
//! - **S2** A thread that waits for a grant compares the word with the number that it wrote. A smaller
//!   number in the word means that another thread of the host drew its number earlier and stored it
//!   later. A manager may take that number for the only new one. The thread that waits then draws a new
//!   number and writes it. So a request is read within two looks of the manager after the last such
//!   store, also when the other thread has stopped or died.
//!
//! Why S2 ends: a number is stored at most once, and only a number that was drawn before can hide a
//! later one. The thread with the smallest number that is not yet stored is never hidden again after its
//! store. So the threads of a host settle one after another.

use crate::fabric::{Fabric, HostMemory};
use crate::layout::LOCKS_MAX;
use crate::member::Seat;
use crate::units::LockId;

/// Bits of the lock.
const LOCK_BITS: u32 = 12;
const LOCK_MASK: u64 = (1 << LOCK_BITS) - 1;
const _: () = assert!(LOCKS_MAX as u64 <= LOCK_MASK + 1);
/// So many numbers there are before they begin again.
const NUMBERS: u64 = 1 << (64 - LOCK_BITS);

/// {number of the request, its lock} in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Summary(u64);

impl Summary {
    fn new(number: u64, lock: LockId) -> Self {
        Self(number << LOCK_BITS | u64::from(lock.0) & LOCK_MASK)
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The lock of the only request since `before`; `None` when there may be more of them.
    pub(super) fn only_lock_since(self, before: Self) -> Option<LockId> {
        let lock = u32::try_from(self.0 & LOCK_MASK).ok()?;
        (self.distance_from(before) == 1).then_some(LockId(lock))
    }

    /// Whether `other` has a later number than this word. Numbers go round: of two numbers the later
    /// one is less than half of all numbers ahead.
    fn is_before(self, other: Self) -> bool {
        let distance = other.distance_from(self);
        distance != 0 && distance < NUMBERS / 2
    }

    /// How many numbers were drawn from `before` to this word.
    fn distance_from(self, before: Self) -> u64 {
        (self.0 >> LOCK_BITS).wrapping_sub(before.0 >> LOCK_BITS) % NUMBERS
    }
}

/// Tells the manager that the request of this node for `lock`, which was published before, has
/// changed. Returns the word that was written, for [`is_hidden`].
///
/// Several threads of the host may do so at once. A number may then be overwritten by a smaller one. A
/// manager that saw the larger one sees the number go back, and looks at everything. A manager that did
/// not see it may miss a request until S2 is applied.
pub(super) fn tell_manager<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    lock: LockId,
) -> Summary {
    let told = Summary::new(seat.tier().next_request(), lock);
    seat.summary().publish(fabric, told.0);
    told
}

/// Whether another thread of this host has overwritten `told` with a number that it drew before (S2).
pub(super) fn is_hidden<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    told: Summary,
) -> bool {
    Summary(seat.summary().own(fabric)).is_before(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_request_tells_its_lock_and_more_do_not(
            number in any::<u64>(), step in 2..1_000_000u64,
            lock in 0..LOCKS_MAX, other in 0..LOCKS_MAX,
        ) {
            let before = Summary::new(number, LockId(other));
            let next = Summary::new(number.wrapping_add(1), LockId(lock));
            prop_assert_eq!(next.only_lock_since(before), Some(LockId(lock)));
            prop_assert_eq!(before.only_lock_since(next), None, "a number that goes back");
            let later = Summary::new(number.wrapping_add(step), LockId(lock));
            prop_assert_eq!(later.only_lock_since(before), None);
        }

        #[test]
        fn a_smaller_number_is_before_a_larger_one_and_nothing_else_is(
            number in any::<u64>(), step in 1..1_000_000u64,
            lock in 0..LOCKS_MAX, other in 0..LOCKS_MAX,
        ) {
            let earlier = Summary::new(number, LockId(other));
            let later = Summary::new(number.wrapping_add(step), LockId(lock));
            prop_assert!(earlier.is_before(later), "also where the numbers begin again");
            prop_assert!(!later.is_before(earlier));
            prop_assert!(!later.is_before(later));
        }
    }
}
