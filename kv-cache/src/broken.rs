//! Rules of this crate that a program may break on purpose, to show that a suite notices.

/// A rule of the holds, or of requests to restore blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// EVICT-H1: the evicting host, owner or reclaimer, looks at the reader words after it
    /// published EVICTING.
    EvictorLooksAgain,
    /// EVICT-H1: the reader looks at the descriptor after it published its reader word.
    ReaderLooksAgain,
    /// EVICT-H4: what a dead process held is held no more.
    DeadLetGo,
    /// EVICT-H6: a block that its owner, or a reclaimer, died over is READY again.
    EvictingComesBack,
    /// EVICT-H7: the reader looks at the descriptor again after it saw that the owner is over.
    VacantLooksAgain,
    /// TIER-Q1: a request is published before it is counted.
    RequestBeforeCount,
    /// TIER-Q1: the line of a request is not written again before the request was answered.
    RequestStaysOpen,
    /// TIER-Q2: an agent leaves an answer alone.
    AnswersOnce,
}

/// Whether the program of this thread does not keep `rule`. Never without the feature `verify`.
#[inline]
pub(crate) fn is_broken(rule: Rule) -> bool {
    #[cfg(feature = "verify")]
    {
        use cxl_shm::verify::{Mutant, is_mutant};
        is_mutant(match rule {
            Rule::EvictorLooksAgain => Mutant::EvictsUnseen,
            Rule::ReaderLooksAgain => Mutant::HoldsUnseen,
            Rule::DeadLetGo => Mutant::KeepsDeadHolds,
            Rule::EvictingComesBack => Mutant::StaysEvicting,
            Rule::VacantLooksAgain => Mutant::HoldsOfVacantUnseen,
            Rule::RequestBeforeCount => Mutant::CountsBeforeRequest,
            Rule::RequestStaysOpen => Mutant::OverwritesRequest,
            Rule::AnswersOnce => Mutant::AnswersTwice,
        })
    }
    #[cfg(not(feature = "verify"))]
    {
        let _ = rule;
        false
    }
}
