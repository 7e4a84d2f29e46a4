//! Which exploration notices which broken rule.

use crate::verify::Mutant;
use crate::verify::explored::Memory;
use crate::verify::simulated::CacheMode;

/// A protocol with one rule broken, and where that is to be noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The rule.
    pub mutant: Mutant,
    /// Name of the scenario that is refuted.
    pub scenario: &'static str,
    /// The memory on which it is.
    pub memory: Memory,
    /// Takes minutes.
    pub long: bool,
}

const STICKY: Memory = Memory { caches: CacheMode::Sticky, posted_writes: false };
const ADVERSARIAL: Memory = Memory { caches: CacheMode::Adversarial, posted_writes: false };

/// Every mutant, with the explorations that are to refute it.
#[must_use]
pub fn broken() -> Vec<Broken> {
    let short = |mutant, scenario, memory| Broken { mutant, scenario, memory, long: false };
    let long = |mutant, scenario, memory| Broken { mutant, scenario, memory, long: true };
    vec![
        short(Mutant::SharesLine, "bakery-2x2", STICKY),
        short(Mutant::TellsOnce, "two-locks-withdraw", STICKY),
        short(Mutant::TellsByCopyOnly, "two-locks", STICKY),
        short(Mutant::BelievesOldRequest, "arbitrated-2x2", ADVERSARIAL),
        short(Mutant::ResumesTooEarly, "asker-dies", STICKY),
        short(Mutant::PublishesAfterRelease, "bakery-2x2", STICKY),
        short(Mutant::ReusesTicket, "arbitrated-2x2", STICKY),
        short(Mutant::DecidesUnseen, "consensus-2", STICKY),
        short(Mutant::PassesUnseen, "join-2", STICKY),
        long(Mutant::PassesUnseen, "join-2-torn", STICKY),
        short(Mutant::SkipsSecondLook, "block", STICKY),
        // Sticky caches do not fetch by themselves, and so hide it.
        short(Mutant::RefreshesUpFront, "block", ADVERSARIAL),
        short(Mutant::GuardsUnseen, "orphan", STICKY),
        short(Mutant::ComesHomeUnseen, "orphan", STICKY),
        short(Mutant::ReleasesBeforeRedo, "holder-dies", STICKY),
        short(Mutant::RecoversUnfenced, "recovery-living", STICKY),
        short(Mutant::FreesBeforeRedo, "recovery-waiter", STICKY),
        short(Mutant::ArrivesUnseen, "recovery-return", STICKY),
        short(Mutant::BeginsUnseen, "recovery-return", STICKY),
        short(Mutant::FinalizesFirst, "recovery-return", STICKY),
        short(Mutant::RecoversBeside, "recovery-later-life", STICKY),
        long(Mutant::ArrivesUnseen, "recovery-return-torn", STICKY),
        long(Mutant::BeginsUnseen, "recovery-return-torn", STICKY),
        long(Mutant::FinalizesFirst, "recovery-return-torn", STICKY),
        long(Mutant::RecoversBeside, "recovery-later-life-torn", STICKY),
        short(Mutant::AcceptsAcrossCases, "consensus-2-cases", STICKY),
        long(Mutant::JoinsUnannounced, "next-term-joined", STICKY),
        long(Mutant::TakesFencedForFreed, "next-term-recovered", STICKY),
        short(Mutant::JoinsUnrefreshed, "slot-moves", STICKY),
        short(Mutant::NoTermCheck, "next-term-granted", STICKY),
        short(Mutant::EntersByStore, "next-term-granted", STICKY),
        short(Mutant::AcknowledgesFirst, "next-term-granted", STICKY),
        short(Mutant::TermInTwoSteps, "next-term-granted", STICKY),
        short(Mutant::LastGranteeOnly, "next-term-held", STICKY),
        short(Mutant::AcknowledgesNoHolder, "next-term-held", STICKY),
        short(Mutant::GrantsUnacknowledged, "next-term-held", STICKY),
        long(Mutant::LastGranteeOnly, "restart-2x1", STICKY),
        long(Mutant::NoTermCheck, "restart-2x1", STICKY),
        long(Mutant::EntersByStore, "restart-2x1", STICKY),
        long(Mutant::AcknowledgesFirst, "restart-2x1", STICKY),
        long(Mutant::TermInTwoSteps, "restart-2x1", STICKY),
        long(Mutant::AcknowledgesNoHolder, "restart-2x1", STICKY),
        long(Mutant::GrantsUnacknowledged, "restart-2x1", STICKY),
        long(Mutant::LastGranteeOnly, "take-over-2x1", STICKY),
        long(Mutant::GrantsUnacknowledged, "take-over-2x1", STICKY),
        // Beside sticky caches the two lines of an update reach the device apart only when their
        // host is lost.
        long(Mutant::ClosesBeforeRedo, "holder-then-host-dies", STICKY),
    ]
}
