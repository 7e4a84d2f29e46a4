//! A node's word in the bakery.

/// Above every number. A number grows by one with each acquisition while there is always somebody
/// in the bakery, and starts at one again when it was empty.
const NUMBER_END: u64 = 1 << 62;
/// The word of a node that chooses.
const CHOOSING: u64 = 1 << 63;

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
    /// The number of who finds the bakery empty.
    pub(super) const FIRST: u64 = 1;

    /// `None` for a word that no node ever writes (B6).
    pub(super) fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => Some(Self::None),
            CHOOSING => Some(Self::Choosing),
            number if number < NUMBER_END => Some(Self::Number(number)),
            _ => None,
        }
    }

    pub(super) fn word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Choosing => CHOOSING,
            Self::Number(number) => number,
        }
    }

    /// The smallest number of whoever comes after it; `None` at the end of all numbers, which no
    /// node reaches (B6).
    pub(super) fn next(self) -> Option<u64> {
        match self {
            Self::Number(number) => (number + 1 < NUMBER_END).then_some(number + 1),
            Self::None | Self::Choosing => Some(Self::FIRST),
        }
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
                prop_assert_eq!(request.word(), word);
                if let Some(next) = request.next() {
                    prop_assert_eq!(Request::from_word(next), Some(Request::Number(next)));
                }
            }
        }
    }

    #[test]
    fn what_no_node_writes_is_damaged() {
        for word in [NUMBER_END, CHOOSING | 1, u64::MAX, NUMBER_END | CHOOSING] {
            assert_eq!(Request::from_word(word), None, "{word:#x}");
        }
        let last = Request::from_word(NUMBER_END - 1);
        assert_eq!(last, Some(Request::Number(NUMBER_END - 1)));
        assert_eq!(last.and_then(Request::next), None);
    }
}
