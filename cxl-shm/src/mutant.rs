//! Protocols with one rule broken, to show that the exploration would notice.
//!
//! Code asks [`is`] at the few places where a rule can be broken by a word. Without the feature
//! `verify` that is `false` at compile time.

#[cfg(feature = "verify")]
use std::cell::Cell;

/// A rule that is not kept.
#[cfg_attr(
    not(feature = "verify"),
    expect(dead_code, unreachable_pub, reason = "some are broken by explored tasks alone")
)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mutant {
    /// MEM-M1: the requests of two nodes are in one line.
    SharesLine,
    /// LOCK-A1: a manager that takes over takes a lock for free unless it granted it itself.
    LastGranteeOnly,
    /// LOCK-A2: every request has the same ticket.
    ReusesTicket,
    /// LOCK-A3: a holder releases, then publishes what it wrote.
    PublishesAfterRelease,
    /// LOCK-T1: a client takes a grant of its ticket by any manager, of any term.
    NoTermCheck,
    /// LOCK-T1: a client enters by a store instead of a compare-and-exchange.
    EntersByStore,
    /// LOCK-T2: an agent acknowledges a term before it has moved the lock states to it.
    AcknowledgesFirst,
    /// LOCK-T2: an agent moves a lock state by a load and a store.
    TermInTwoSteps,
    /// LOCK-T3: an acknowledgement does not say what is held.
    AcknowledgesNoHolder,
    /// LOCK-T4: a manager grants before every node has acknowledged its term.
    GrantsUnacknowledged,
    /// LOCK-S2: a thread that waits does not look whether its number was overwritten by a smaller
    /// one.
    TellsOnce,
    /// LOCK-S3: a thread that waits does not look whether its request's copy was overwritten by
    /// another.
    TellsByCopyOnly,
    /// LOCK-S4: a manager takes a request's word that has not arrived yet for a release.
    BelievesOldRequest,
    /// LOCK-A2: tickets go on from the published one, though the next may have been told.
    ResumesTooEarly,
    /// LOCK-L2: recovery releases the lock, then redoes.
    ReleasesBeforeRedo,
    /// LOCK-L2: recovery closes the intent, then redoes it.
    ClosesBeforeRedo,
    /// DEATH-C1: a proposer does not look again before it decides.
    DecidesUnseen,
    /// JOIN-J3: a host that joins a node slot does not look again whether another host joins too.
    PassesUnseen,
    /// A reader of a block does not look at the descriptor again after it read the payload.
    SkipsSecondLook,
    /// MEM-M4: a reader of a block refreshes descriptor and payload together.
    RefreshesUpFront,
    /// ORPHAN-W1: a reclaimer does not look, after it said so, whether it may be one.
    GuardsUnseen,
    /// ORPHAN-W2: the next life of an orphan does not look for a reclaimer after it said that it
    /// joins.
    ComesHomeUnseen,
    /// LOCK-T4: a host that joins obeys the newest manager before it says that it joins.
    JoinsUnannounced,
    /// LOCK-T4: a manager takes the locks of a node for freed once the node is fenced.
    TakesFencedForFreed,
    /// DEATH-C2: a proposer counts what was accepted in an earlier case.
    AcceptsAcrossCases,
    /// MEM-M8: a host that joins does not refresh what an earlier life of its slot wrote.
    JoinsUnrefreshed,
    /// DEATH-R1: a recoverer begins while the fence is under way.
    RecoversUnfenced,
    /// DEATH-R2: a recoverer ends the requests of the dead, then redoes its intents.
    FreesBeforeRedo,
    /// DEATH-R3: a host that comes back does not look for a recoverer after it said so.
    ArrivesUnseen,
    /// DEATH-R3: a recoverer does not look for an arrival after it said that it begins.
    BeginsUnseen,
    /// DEATH-R4: a recoverer does not wait for one of an earlier life.
    RecoversBeside,
    /// DEATH-R5: a recoverer says that the slot may be joined before it has redone anything.
    FinalizesFirst,
    /// EVICT-H1: the owner of a block does not look at its reader words after it said EVICTING.
    EvictsUnseen,
    /// EVICT-H1: a reader takes a block for held without a look at its descriptor.
    HoldsUnseen,
    /// EVICT-H4: what a dead process held stays held.
    KeepsDeadHolds,
    /// EVICT-H6: a block that its owner died over stays EVICTING.
    StaysEvicting,
    /// EVICT-H7: a reader takes a block of an owner that is over for held without another look at
    /// it.
    HoldsOfVacantUnseen,
    /// EVICT-H7: a reader takes a block of an owner that is over for held, whether or not a
    /// reclaimer reclaims from that owner.
    HoldsBesideReclaimer,
    /// TIER-Q1: a request to restore a block is counted before it is published.
    CountsBeforeRequest,
    /// TIER-Q1: a request overwrites one that was not answered.
    OverwritesRequest,
    /// TIER-Q2: an agent of drives answers what an agent before it has answered.
    AnswersTwice,
}

#[cfg(feature = "verify")]
impl Mutant {
    /// All of them.
    pub const ALL: [Self; 41] = [
        Self::SharesLine,
        Self::LastGranteeOnly,
        Self::ReusesTicket,
        Self::PublishesAfterRelease,
        Self::NoTermCheck,
        Self::EntersByStore,
        Self::AcknowledgesFirst,
        Self::TermInTwoSteps,
        Self::AcknowledgesNoHolder,
        Self::GrantsUnacknowledged,
        Self::TellsOnce,
        Self::TellsByCopyOnly,
        Self::BelievesOldRequest,
        Self::ResumesTooEarly,
        Self::ReleasesBeforeRedo,
        Self::ClosesBeforeRedo,
        Self::DecidesUnseen,
        Self::PassesUnseen,
        Self::SkipsSecondLook,
        Self::RefreshesUpFront,
        Self::GuardsUnseen,
        Self::ComesHomeUnseen,
        Self::JoinsUnannounced,
        Self::TakesFencedForFreed,
        Self::AcceptsAcrossCases,
        Self::JoinsUnrefreshed,
        Self::RecoversUnfenced,
        Self::FreesBeforeRedo,
        Self::ArrivesUnseen,
        Self::BeginsUnseen,
        Self::RecoversBeside,
        Self::FinalizesFirst,
        Self::EvictsUnseen,
        Self::HoldsUnseen,
        Self::KeepsDeadHolds,
        Self::StaysEvicting,
        Self::HoldsOfVacantUnseen,
        Self::HoldsBesideReclaimer,
        Self::CountsBeforeRequest,
        Self::OverwritesRequest,
        Self::AnswersTwice,
    ];

    /// Rules that are kept by what uses this crate: the cache.
    pub const OF_CACHE: [Self; 9] = [
        Self::EvictsUnseen,
        Self::HoldsUnseen,
        Self::KeepsDeadHolds,
        Self::StaysEvicting,
        Self::HoldsOfVacantUnseen,
        Self::HoldsBesideReclaimer,
        Self::CountsBeforeRequest,
        Self::OverwritesRequest,
        Self::AnswersTwice,
    ];

    /// The mutant of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name)
    }
}

#[cfg(feature = "verify")]
thread_local! {
    static PRESENT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether the program is `mutant`.
#[inline]
pub(crate) fn is(mutant: Mutant) -> bool {
    #[cfg(feature = "verify")]
    return PRESENT.get() == Some(mutant);
    #[cfg(not(feature = "verify"))]
    {
        let _ = mutant;
        false
    }
}

/// `act` for another thread, whose program is to be that of this one.
pub(crate) fn carried<T>(act: impl FnOnce() -> T) -> impl FnOnce() -> T {
    #[cfg(feature = "verify")]
    {
        let mutant = present();
        move || with(mutant, act)
    }
    #[cfg(not(feature = "verify"))]
    {
        act
    }
}

/// What the program of this thread is, to make another thread's the same.
#[cfg(feature = "verify")]
pub(crate) fn present() -> Option<Mutant> {
    PRESENT.get()
}

/// Runs `act` with this thread's program being `mutant`, and what it was before again after that,
/// also when `act` panics.
#[cfg(feature = "verify")]
pub(crate) fn with<T>(mutant: Option<Mutant>, act: impl FnOnce() -> T) -> T {
    struct Restore(Option<Mutant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PRESENT.set(self.0);
        }
    }
    let _restore = Restore(PRESENT.replace(mutant));
    act()
}
