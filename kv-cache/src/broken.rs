//! Rules of this crate that a program may break on purpose, to show that a suite notices.

/// A rule of the holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// H1: the owner looks at the stamps after it said EVICTING.
    OwnerLooksAgain,
    /// H1: the reader looks at the descriptor after it published its stamp.
    ReaderLooksAgain,
    /// H4: what a dead process held is held no more.
    DeadLetGo,
    /// H6: a block that its owner died over is READY again.
    EvictingComesBack,
    /// H7: the reader looks at the descriptor again after it saw that the owner is over.
    VacantLooksAgain,
}

/// Whether the program of this thread does not keep `rule`. Never without the feature `proof`.
#[inline]
pub(crate) fn is_broken(rule: Rule) -> bool {
    #[cfg(any(test, feature = "proof"))]
    {
        use cxl_shm::proof::{Mutant, is_mutant};
        is_mutant(match rule {
            Rule::OwnerLooksAgain => Mutant::EvictsUnseen,
            Rule::ReaderLooksAgain => Mutant::HoldsUnseen,
            Rule::DeadLetGo => Mutant::KeepsDeadHolds,
            Rule::EvictingComesBack => Mutant::StaysEvicting,
            Rule::VacantLooksAgain => Mutant::HoldsOfVacantUnseen,
        })
    }
    #[cfg(not(any(test, feature = "proof")))]
    {
        let _ = rule;
        false
    }
}
