//! What the ring is made of. Its model has words of its own (`model`), and breaks one rule at a time.

pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic::Ordering;

/// A word between a GPU and its host, of one process: no other process maps it.
#[expect(clippy::disallowed_types, reason = "no word of a region or of a host's tier")]
pub(super) type Word = std::sync::atomic::AtomicU64;

/// A rule that is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mutant {
    /// RING-R1: two askers may have one ticket.
    SharesTickets,
    /// RING-R1: the ticket is written before the request.
    AsksFirst,
    /// RING-R1: the ticket is written without release.
    AsksRelaxed,
    /// RING-R2: a slot is used again before its asker has read the answer.
    IsNeverFull,
    /// RING-R3: any answer in the slot is believed.
    BelievesAnyLap,
    /// RING-R4: the answer is written without release.
    AnswersRelaxed,
    /// RING-R4: a request that is dropped has no answer.
    DropsInSilence,
    /// RING-R5: the ring is closed while a request that was taken has no answer.
    ClosesEarly,
    /// RING-R5: the answer is not looked at again after the ring was found closed.
    LooksOnce,
}

/// Whether the rule is broken: never but in the model.
pub(super) const fn breaks(_: Mutant) -> bool {
    false
}
