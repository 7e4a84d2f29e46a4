//! The one word of a node that a lock manager polls: which request of the node was its last.
//!
//! Requests of a node are numbered by a counter in its host's memory. A request is published before
//! its number is drawn, so whoever sees number *n* finds every request up to the *n*-th (S1).

use crate::fabric::{Fabric, HostMemory};
use crate::layout::LOCKS_MAX;
use crate::member::Seat;
use crate::units::LockId;

/// Bits of the lock.
const LOCK_BITS: u32 = 12;
const LOCK_MASK: u64 = (1 << LOCK_BITS) - 1;
const _: () = assert!(LOCKS_MAX as u64 <= LOCK_MASK + 1);

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
        let next = (before.0 >> LOCK_BITS).wrapping_add(1) & (u64::MAX >> LOCK_BITS);
        let lock = u32::try_from(self.0 & LOCK_MASK).ok()?;
        (self.0 >> LOCK_BITS == next).then_some(LockId(lock))
    }
}

/// Tells the manager that the request of this node for `lock`, which was published before, has
/// changed.
///
/// Several threads of the host may do so at once, and one number may be overwritten by a smaller one:
/// the word still changes after each request, and a manager that sees a number go back looks at
/// everything.
pub(super) fn tell_manager<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
    let Summary(word) = Summary::new(seat.tier().next_request(), lock);
    seat.summary().publish(fabric, word);
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
    }
}
