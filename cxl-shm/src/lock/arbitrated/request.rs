//! A node's request word of a lock: its ticket, and the lock's tally as the node knows it
//! (LOCK-L5).

use crate::host::{TICKET_BITS, TICKET_END, grant_word};
use crate::lock::tally::Tally;
use crate::mutant::{self, Mutant};

/// What a request word says.
///
/// ```text
/// zeros 6 | tally 20 | ticket 38
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) ticket: u64,
    pub(super) tally: Tally,
}

impl Request {
    pub(super) fn from_word(word: u64) -> Self {
        Self { ticket: word & TICKET_END, tally: Tally::from_low_bits(word >> TICKET_BITS) }
    }

    pub(super) fn word(self) -> u64 {
        self.tally.bits() << TICKET_BITS | self.ticket & TICKET_END
    }

    /// Whether a node can have written `word`: its ticket can be counted further (MEM-M5).
    pub(super) fn is_sound(word: u64) -> bool {
        let request = Self::from_word(word);
        request.word() == word && request.ticket < TICKET_END
    }

    /// It wants or holds the lock.
    pub(super) fn wants(self) -> bool {
        !self.ticket.is_multiple_of(2)
    }
}

/// The tally in a request word.
pub(super) fn tally_of(word: u64) -> Tally {
    Request::from_word(word).tally
}

/// Whether the node of this request word wants or holds the lock, for tools that are no members.
#[must_use]
pub fn is_wanted(word: u64) -> bool {
    Request::from_word(word).wants()
}

/// The ticket with which a node holds or wants the lock; `None` when it does neither.
pub(crate) fn ticket_wanted(word: u64) -> Option<u64> {
    let request = Request::from_word(word);
    request.wants().then_some(request.ticket)
}

/// The words with which the manager of `term` grants `ticket`.
pub(crate) fn grants_of(term: u64, ticket: u64) -> [u64; 2] {
    [false, true].map(|tells| grant_word(term, ticket, tells))
}

/// How many tickets a node has used, by its request word: all of them when no node can have written
/// it.
pub(crate) fn tickets_used(word: u64) -> u64 {
    if Request::is_sound(word) { Request::from_word(word).ticket } else { TICKET_END }
}

/// `word`, with which the requests of a dead life of a node ended, with an even ticket that no
/// request of that life had, and `tally`. The ticket is one or two beyond, as the next one after an
/// even one may have been told without its word (LOCK-A2). What else may be in a damaged word
/// stays, so that it stays refused.
pub(super) fn beyond(word: u64, tally: Tally) -> u64 {
    let Request { ticket, .. } = Request::from_word(word);
    let step = if mutant::is(Mutant::ResumesTooEarly) { 1 } else { 2 };
    // No request begins with the last even ticket. The largest number there is is odd, and no
    // ticket.
    let ticket = ((ticket + step) & !1).min(TICKET_END - 1);
    let rest = word & !(u64::MAX >> (64 - TICKET_BITS - Tally::BITS));
    rest | Request { ticket, tally }.word()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_survives_its_word_and_ends_beyond_what_it_told(word: u64) {
            let request = Request::from_word(word);
            prop_assert_eq!(Request::from_word(request.word()), request);
            let end = beyond(word, request.tally.after_death());
            prop_assert!(!Request::from_word(end).wants());
            let may_be_told = if request.wants() { request.ticket } else { request.ticket + 1 };
            prop_assert!(Request::from_word(end).ticket > may_be_told
                || request.ticket >= TICKET_END - 1);
            prop_assert!(Request::from_word(end).tally.tells());
            prop_assert!(Request::is_sound(word) || !Request::is_sound(end)
                || request.ticket == TICKET_END);
        }
    }
}
