//! A node's word in the bakery.
//!
//! ```text
//! chooses 1 | zero 1 | tally 20 | number 42
//! ```

use crate::lock::tally::Tally;

/// Bits of a number.
const NUMBER_BITS: u32 = 42;
/// Above every number. A number grows by one with each acquisition while there is always somebody
/// in the bakery, and starts at one again when it was empty.
const NUMBER_END: u64 = 1 << NUMBER_BITS;
/// The word of a node that chooses.
const CHOOSING: u64 = 1 << 63;
const TALLY_MASK: u64 = (1 << Tally::BITS) - 1;
const _: () = assert!(NUMBER_BITS + Tally::BITS < 63, "a bit between them stays zero");

/// What a request word says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Request {
    /// Wants nothing.
    None,
    /// Chooses its number.
    Choosing,
    /// Waits or holds.
    Number(u64),
}

impl Request {
    /// The number of a node that finds the bakery empty.
    pub(super) const FIRST: u64 = 1;

    /// `None` for a word that no node ever writes (LOCK-B6).
    pub(super) fn from_word(word: u64) -> Option<Self> {
        match word & !(TALLY_MASK << NUMBER_BITS) {
            0 => Some(Self::None),
            CHOOSING => Some(Self::Choosing),
            number if number < NUMBER_END => Some(Self::Number(number)),
            _ => None,
        }
    }

    /// The word that says so, beside what the node knows of the lock's tally.
    pub(super) fn word(self, tally: Tally) -> u64 {
        let request = match self {
            Self::None => 0,
            Self::Choosing => CHOOSING,
            Self::Number(number) => number,
        };
        request | tally.bits() << NUMBER_BITS
    }

    /// The smallest number of any node that comes after it; `None` at the end of all numbers, which
    /// no node reaches (LOCK-B6).
    pub(super) fn next(self) -> Option<u64> {
        match self {
            Self::Number(number) => (number + 1 < NUMBER_END).then_some(number + 1),
            Self::None | Self::Choosing => Some(Self::FIRST),
        }
    }
}

/// The tally in a word.
pub(super) fn tally_of(word: u64) -> Tally {
    Tally::from_low_bits(word >> NUMBER_BITS)
}

/// The number with which a node holds or wants the lock, the largest when it chooses one still;
/// `None` when it does neither. A damaged word may hide a holder (LOCK-B6): the smallest.
pub(crate) fn number_wanted(word: u64) -> Option<u64> {
    match Request::from_word(word) {
        Some(Request::None) => None,
        Some(Request::Choosing) => Some(u64::MAX),
        Some(Request::Number(number)) => Some(number),
        None => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_is_a_request_or_damaged(word: u64) {
            if let Some(request) = Request::from_word(word) {
                prop_assert_eq!(request.word(tally_of(word)), word);
                if let Some(next) = request.next() {
                    prop_assert_eq!(Request::from_word(next), Some(Request::Number(next)));
                }
            }
        }
    }

    #[test]
    fn what_no_node_writes_is_damaged() {
        for word in [1 << 62, CHOOSING | 1, u64::MAX, 1 << 62 | CHOOSING] {
            assert_eq!(Request::from_word(word), None, "{word:#x}");
        }
        let last = Request::from_word(NUMBER_END - 1);
        assert_eq!(last, Some(Request::Number(NUMBER_END - 1)));
        assert_eq!(last.and_then(Request::next), None);
    }
}
