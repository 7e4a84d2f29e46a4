//! The one-word state of an arbitrated lock: term, phase and ticket.

/// Bits of a ticket. A ticket only grows (rule LOCK-A2): 2^37 acquisitions of one lock by one node.
pub(crate) const TICKET_BITS: u32 = 38;
const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;
/// No ticket reaches this.
pub(crate) const TICKET_END: u64 = TICKET_MASK;
const PHASE_BITS: u32 = 2;
/// Largest term.
pub(crate) const TERM_MAX: u64 = (1 << (64 - TICKET_BITS - PHASE_BITS)) - 1;

/// Where a node stands with a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Phase {
    /// Neither wants nor holds it: the ticket is even.
    Idle,
    /// Wants it: the ticket is odd.
    Wait,
    /// Holds it: the ticket is odd.
    Hold,
}

/// {term, phase, ticket} in one word, so that it changes as a whole (rules LOCK-T1 to LOCK-T3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LockState {
    pub(crate) term: u64,
    pub(crate) phase: Phase,
    pub(crate) ticket: u64,
}

impl LockState {
    pub(crate) fn from_word(word: u64) -> Self {
        let phase = match word >> TICKET_BITS & 3 {
            1 => Phase::Wait,
            2 => Phase::Hold,
            // 3 is in grants only (LOCK-L5), which are compared as words.
            _ => Phase::Idle,
        };
        let term = word >> (TICKET_BITS + PHASE_BITS);
        Self { term, phase, ticket: word & TICKET_MASK }
    }

    pub(crate) fn word(self) -> u64 {
        let phase = match self.phase {
            Phase::Idle => 0,
            Phase::Wait => 1,
            Phase::Hold => 2,
        };
        self.term << (TICKET_BITS + PHASE_BITS) | phase << TICKET_BITS | self.ticket & TICKET_MASK
    }
}

/// What a manager of `term` writes to grant `ticket`: with a bit more when the holder is to be told
/// that one before it died (LOCK-L5).
pub(crate) fn grant_word(term: u64, ticket: u64, tells: bool) -> u64 {
    LockState { term, phase: Phase::Hold, ticket }.word() | u64::from(tells) << TICKET_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_lock_state_survives_its_word(
            term in 0..=TERM_MAX, ticket in 0..=TICKET_MASK, phase in 0..3u8,
        ) {
            let phase = [Phase::Idle, Phase::Wait, Phase::Hold][usize::from(phase)];
            let state = LockState { term, phase, ticket };
            prop_assert_eq!(LockState::from_word(state.word()), state);
            let grants = [false, true].map(|tells| grant_word(term, ticket, tells));
            prop_assert_ne!(grants[0], grants[1]);
            let held = LockState { term, phase: Phase::Hold, ticket };
            prop_assert_eq!(LockState::from_word(grants[0]), held);
            prop_assert_eq!(LockState::from_word(grants[1]), LockState { phase: Phase::Idle, ..held });
        }
    }
}
