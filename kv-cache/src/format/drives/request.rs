//! Requests to restore a block from a drive, and their answers.
//!
//! ```text
//! request:  word 0    number, from 1
//!           word 1-3  key
//!           word 4    how long the asking process waits, in milliseconds
//!           word 5    how long computing the block again takes, in milliseconds; 0 when not said
//!           word 6    flags: 1 cancelled, 2 ahead
//!           word 7    seal
//! answer:   number u56 | outcome u8
//! ```

use bytemuck::{Pod, Zeroable};
use cxl_shm::fabric::Record;

use crate::identity::BlockKey;

const CANCELLED: u64 = 1;
const AHEAD: u64 = 2;
const OUTCOME_BITS: u32 = 8;
/// Largest number of a request.
pub(crate) const NUMBER_MAX: u64 = u64::MAX >> OUTCOME_BITS;

/// A block that a process asks the owner of a drive to restore.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RestoreRequest {
    /// The block.
    pub key: BlockKey,
    /// How long the asking process waits, in milliseconds from when the owner sees the request.
    pub wait_ms: u32,
    /// How long the asking engine would take to compute the block again, in milliseconds, where it
    /// says so: a restore that takes longer is refused.
    pub recompute_ms: Option<u32>,
    /// Whether it is a prefetch: nothing waits for the block yet. No request that something waits for
    /// is refused for its sake.
    pub ahead: bool,
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RestoreOutcome {
    /// The block is in the pool.
    Restored,
    /// No drive of the owner has the block.
    Unknown,
    /// The block, or the request, is damaged.
    Damaged,
    /// The block would come later than the asking process waits, or than computing it again takes.
    TooLate,
    /// The queue of the owner is full.
    Busy,
    /// The pool has no room for the block.
    NoRoom,
    /// The owner stopped before it restored the block.
    Stopped,
    /// The asking process took the request back.
    Cancelled,
}

impl RestoreOutcome {
    /// All outcomes.
    pub const ALL: [Self; 8] = [
        Self::Restored,
        Self::Unknown,
        Self::Damaged,
        Self::TooLate,
        Self::Busy,
        Self::NoRoom,
        Self::Stopped,
        Self::Cancelled,
    ];

    /// The outcome in a word, for metrics and JSON.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::Unknown => "unknown",
            Self::Damaged => "damaged",
            Self::TooLate => "too_late",
            Self::Busy => "busy",
            Self::NoRoom => "no_room",
            Self::Stopped => "stopped",
            Self::Cancelled => "cancelled",
        }
    }

    fn code(self) -> u64 {
        let at = Self::ALL.iter().position(|other| *other == self).unwrap_or(0);
        at as u64 + 1
    }
}

/// A request as it lies in its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RequestLine {
    number: u64,
    key: BlockKey,
    wait_ms: u64,
    recompute_ms: u64,
    flags: u64,
}

impl Record for RequestLine {
    const KIND: u32 = u32::from_le_bytes(*b"rest");
}

impl RequestLine {
    /// Request number `number` of a node to another.
    pub(crate) fn new(number: u64, request: &RestoreRequest) -> Self {
        let RestoreRequest { key, wait_ms, recompute_ms, ahead } = *request;
        let recompute_ms = recompute_ms.unwrap_or(0).into();
        let flags = if ahead { AHEAD } else { 0 };
        Self { number, key, wait_ms: wait_ms.into(), recompute_ms, flags }
    }

    /// What it asks for, if it is number `number`.
    pub(crate) fn request(&self, number: u64) -> Option<RestoreRequest> {
        let wait_ms = u32::try_from(self.wait_ms).ok()?;
        let recompute_ms = u32::try_from(self.recompute_ms).ok()?;
        let recompute_ms = (recompute_ms != 0).then_some(recompute_ms);
        let is_known = self.number == number && self.flags & !(CANCELLED | AHEAD) == 0;
        let ahead = self.flags & AHEAD != 0;
        is_known.then_some(RestoreRequest { key: self.key, wait_ms, recompute_ms, ahead })
    }

    /// Whether it is number `number`, and taken back.
    pub(crate) fn is_cancelled(&self, number: u64) -> bool {
        self.number == number && self.flags & CANCELLED != 0
    }

    /// The same request, taken back; `None` when it is another, or is taken back already.
    pub(crate) fn cancelled(self, number: u64) -> Option<Self> {
        let is_open = self.number == number && self.flags & CANCELLED == 0;
        is_open.then_some(Self { flags: self.flags | CANCELLED, ..self })
    }
}

/// The word that answers request `number`.
pub(crate) fn answer_word(number: u64, outcome: RestoreOutcome) -> u64 {
    number << OUTCOME_BITS | outcome.code()
}

/// The number of the request that `word` answers; 0 when it answers none yet.
pub(crate) fn answered_number(word: u64) -> u64 {
    word >> OUTCOME_BITS
}

/// The outcome in an answer; `None` when no version of the format has it.
pub(crate) fn answered_outcome(word: u64) -> Option<RestoreOutcome> {
    let code = word & ((1 << OUTCOME_BITS) - 1);
    RestoreOutcome::ALL.into_iter().find(|outcome| outcome.code() == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IndexKey;

    #[test]
    fn requests_survive_their_lines() {
        let key = BlockKey::new(IndexKey::from_words([1, 2]), 3);
        for (recompute_ms, ahead) in [(None, false), (Some(40), false), (None, true)] {
            let request = RestoreRequest { key, wait_ms: 250, recompute_ms, ahead };
            let line = RequestLine::new(7, &request);
            assert_eq!(line.request(7), Some(request));
            assert_eq!(line.request(15), None, "a line of another round");
            assert_eq!(RequestLine { flags: 4, ..line }.request(7), None);
            assert!(!line.is_cancelled(7));
            assert_eq!(line.cancelled(15), None);
            let cancelled = line.cancelled(7).unwrap();
            assert!(cancelled.is_cancelled(7) && !cancelled.is_cancelled(15));
            assert_eq!(cancelled.request(7), Some(request));
            assert_eq!(cancelled.cancelled(7), None);
        }
    }

    #[test]
    fn answers_have_their_number_and_outcome() {
        for outcome in RestoreOutcome::ALL {
            let word = answer_word(NUMBER_MAX, outcome);
            assert_eq!(answered_number(word), NUMBER_MAX);
            assert_eq!(answered_outcome(word), Some(outcome));
        }
        assert_eq!((answered_number(0), answered_outcome(0)), (0, None));
        assert_eq!(answered_outcome(answer_word(1, RestoreOutcome::Cancelled) + 1), None);
    }
}
