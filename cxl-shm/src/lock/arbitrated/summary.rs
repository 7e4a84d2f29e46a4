//! Two words of a node that a lock manager polls: a number that changes with requests, and a copy
//! of the last new request. Both are in one line, and each says all by itself: the line may be
//! torn.
//!
//! - **LOCK-S1** Requests and withdrawals of a node that are told by a number have one from a
//!   counter in its host's memory. The request's word is published before its number is drawn. So a
//!   manager that sees number *n* finds all requests that were told by the numbers up to *n*.
//! - **LOCK-S2** A thread that has told a number and waits for a grant compares the word with that
//!   number. A smaller number in the word means that another thread of the host drew its number
//!   earlier and stored it later. A manager may take that number for the only new one. The thread
//!   that waits then draws a new number and writes it. So a request is read within two looks of the
//!   manager after the last such store, also when the other thread has stopped or died.
//! - **LOCK-S3** A new request is not told by a number at first. Its word and a copy of it, with
//!   the lock, are published together, with one fence. Either of them may arrive first. A manager
//!   that sees a new copy takes its ticket for the request's, if it is one or two beyond the ticket
//!   that the manager knows. Otherwise the manager reads the request's word, and takes the copy's
//!   ticket if it is one beyond that. A thread that waits for a grant looks whether the copy is
//!   still its own. A copy of another thread may have hidden it from the manager. The thread that
//!   waits then tells its request by a number.
//! - **LOCK-S4** A request's word that is one behind the ticket of a copy has not arrived yet. It
//!   is never a release.
//!
//! Why LOCK-S2 ends: a number is stored at most once, and only a number that was drawn before can
//! hide a later one. The thread with the smallest number that is not yet stored is never hidden
//! again after its store. So the threads of a host finish one after another.
//!
//! Why LOCK-S3 loses no request: a copy that is still there when its writer looks was published
//! before that look. Every later look of a manager finds it, until another thread stores its copy.
//! The writer sees that at its next look. Its request's word has arrived by then, as LOCK-S1 asks.
//!
//! Why a copy is as good as the word: the word that was there before the request had arrived before
//! the copy was stored. A release or withdrawal in between has the ticket between the two, and its
//! tally is the one in the copy. So the word is never more than one behind a copy. Also when the
//! host dies with the copy arrived and the word lost: what ends the requests of the dead goes
//! beyond that ticket (LOCK-A2).

use crate::layout::LOCKS_MAX;
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
    pub(super) fn new(number: u64, lock: LockId) -> Self {
        Self(number << LOCK_BITS | u64::from(lock.0) & LOCK_MASK)
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// The lock of the only request since `before`; `None` when there may be more of them.
    pub(super) fn only_lock_since(self, before: Self) -> Option<LockId> {
        let lock = u32::try_from(self.0 & LOCK_MASK).ok()?;
        (self.distance_from(before) == 1).then_some(LockId(lock))
    }

    /// Whether `other` has a later number than this word. Numbers go round: of two numbers the
    /// later one is less than half of all numbers ahead.
    pub(super) fn is_before(self, other: Self) -> bool {
        let distance = other.distance_from(self);
        distance != 0 && distance < NUMBERS / 2
    }

    /// How many numbers were drawn from `before` to this word.
    fn distance_from(self, before: Self) -> u64 {
        (self.0 >> LOCK_BITS).wrapping_sub(before.0 >> LOCK_BITS) % NUMBERS
    }
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
