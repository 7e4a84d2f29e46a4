//! A copy of a node's last request, in one word beside the summary (LOCK-S3).

use super::request::Request;
use crate::host::{TICKET_BITS, TICKET_END};
use crate::layout::LOCKS_MAX;
use crate::lock::tally::Tally;
use crate::units::LockId;

/// Bits of the lock.
const LOCK_BITS: u32 = 12;
const _: () = assert!(LOCKS_MAX <= 1 << LOCK_BITS);
/// What is left for the tally.
const TALLY_BITS: u32 = 64 - TICKET_BITS - LOCK_BITS;
/// Stands for all tallies that are too large for their bits.
const LARGE: u64 = (1 << TALLY_BITS) - 1;

/// What a node asked for last.
///
/// ```text
/// lock 12 | tally 14 | ticket 38
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RequestCopy(u64);

impl RequestCopy {
    pub(super) fn new(lock: LockId, request: Request) -> Self {
        let tally = request.tally.bits().min(LARGE);
        let lock = u64::from(lock.0) << (TALLY_BITS + TICKET_BITS);
        Self(lock | tally << TICKET_BITS | request.ticket & TICKET_END)
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// Perhaps a lock that the region has not (MEM-M5).
    pub(super) fn lock(self) -> LockId {
        LockId(u32::try_from(self.0 >> (TALLY_BITS + TICKET_BITS)).unwrap_or(u32::MAX))
    }

    pub(super) fn ticket(self) -> u64 {
        self.0 & TICKET_END
    }

    /// The tally in the request's word; `None` when it is too large to be copied.
    pub(super) fn tally(self) -> Option<Tally> {
        let bits = self.0 >> TICKET_BITS & LARGE;
        (bits != LARGE).then(|| Tally::from_low_bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_copy_says_what_the_request_says(
            lock in 0..LOCKS_MAX, ticket in 0..=TICKET_END, tally in 0..1_u64 << Tally::BITS,
        ) {
            let request = Request { ticket, tally: Tally::from_low_bits(tally) };
            let copy = RequestCopy::from_word(RequestCopy::new(LockId(lock), request).word());
            prop_assert_eq!((copy.lock(), copy.ticket()), (LockId(lock), ticket));
            prop_assert_eq!(copy.tally(), (tally < LARGE).then_some(request.tally));
        }
    }

    #[test]
    fn a_tally_that_is_too_large_is_not_told() {
        for (tally, told) in [(LARGE - 1, true), (LARGE, false), (LARGE + 1, false)] {
            let request = Request { ticket: 1, tally: Tally::from_low_bits(tally) };
            assert_eq!(RequestCopy::new(LockId(9), request).tally().is_some(), told, "{tally}");
        }
    }
}
