//! The host tier of a lock between hosts: which thread of a host competes in the shared tier, first
//! come, first served.
//!
//! - **LOCK-Q1** The *owner* word of a lock has one of three kinds of value. Zero: free. The token
//!   of a thread: that thread has the host's turn. *Passed*: the host still holds the shared lock,
//!   the thread that held it has finished, and the next in the queue takes the lock over without
//!   using the shared tier.
//! - **LOCK-Q2** A waiting thread says so in a word of its own, {lock, ticket}, at its place in the
//!   registry. Tickets come from one counter of the host. Only the living waiter with the smallest
//!   ticket takes an owner word that is free, passed or of a dead thread, by one CAS. So no thread
//!   that comes later overtakes a thread that has written its word.
//! - **LOCK-Q3** The word of a dead waiter is cleared by the thread that finds it dead, or by the
//!   thread that has its place in the registry next. A dead owner is taken over like a free lock,
//!   and the taker is told: it redoes or undoes the dead owner's half-done work before anything
//!   else. An owner that cannot end its turn in order leaves a token that names nobody, together
//!   with how far it has flushed the dead holder's stores (LOCK-L5). The next taker continues from
//!   there. So waiters with short time-outs finish that work together, however much it is.
//! - **LOCK-Q4** A thread that passes the lock looks for waiters again afterwards. A thread that
//!   withdraws looks at the owner word after it has cleared its own word. Whichever of the two
//!   looks last sees that no thread is left to take the lock over, and releases it. When both die
//!   first, the host's agent finds the lock.
//! - **LOCK-Q5** The host locks that threads wait for have the same queues, with waiters' words of
//!   their own. They are never passed, because they have no shared tier. A holder that unwinds
//!   leaves a token that names nobody (LOCK-H2 in `host`). A thread takes a free host lock at once
//!   only when no thread waits for it. A thread that releases a lock and wants it again goes behind
//!   all waiters.
//! - **LOCK-Q6** A waiter that could take the lock (LOCK-Q2) and leaves it for [`STOPPED_MS`], by
//!   the clock of a waiter behind it, loses its word. Such a waiter is stopped, and a stopped
//!   process costs its host nothing. It writes the word again, with the same ticket, when it
//!   continues. This holds for the locks between hosts and for host locks.

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod shuttle_tests;

use super::lock::HolderToken;
use super::process::{PROCESSES_MAX, ProcessSlot};
use crate::crash::{self, CrashPoint};
use crate::fabric::HostMemory;
use crate::units::LockId;

/// Bits of a waiter's ticket: above them there is room for the 4097 values of a lock and none.
const TICKET_BITS: u32 = 51;
const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;
/// Low half-word of an owner word that says "passed": no token ends like this.
const PASSED: u64 = 0xffff;
const _: () = assert!((PROCESSES_MAX as u64) < PASSED);
/// Beside the number of passes.
const AFTER_DEATH: u64 = 1 << 31;
const PASSES_MASK: u64 = 0x7fff;
const ELAPSED_SHIFT: u32 = 32;
const ELAPSED_US_MAX: u64 = u32::MAX as u64;

/// How long a waiter may leave a lock free before it is taken for stopped (LOCK-Q6), in
/// milliseconds: many times what a thread waits for a processor.
pub(crate) const STOPPED_MS: u64 = 20;

/// Where in the host's memory the words of one lock's queue are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct QueueWords {
    /// The owner word.
    pub(crate) owner: usize,
    /// The host's ticket counter, of all locks.
    pub(crate) tickets: usize,
    /// How many places of the registry have ever been in use.
    pub(crate) places: usize,
    /// The first of the waiters' words, one for each place of the registry.
    pub(crate) waits: usize,
}

#[doc(hidden)]
/// Which threads live, as the queue asks it.
pub trait Living {
    /// Whether the thread that `token` names lives.
    fn holds(&self, token: HolderToken) -> bool;
    /// Whether the thread in `slot` lives.
    fn waits(&self, slot: ProcessSlot) -> bool;
}

#[doc(hidden)]
/// How often a shared lock has been passed on within the host since the host got it, and how long
/// the host has used it: what bounds the passing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cohort {
    #[doc(hidden)]
    pub passes: u16,
    #[doc(hidden)]
    pub elapsed_us: u64,
    #[doc(hidden)]
    /// A holder before died, and nobody has made the data consistent since (LOCK-L5).
    pub after_death: bool,
}

#[doc(hidden)]
/// A thread's place in the queue of one lock, until it has its turn or withdraws.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "a waiter that leaves the queue withdraws, or others wait behind it"]
pub struct Place {
    ticket: u64,
}

/// A waiter that has not taken the free lock that it waits for: its place in the registry, and its
/// word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Idle {
    slot: ProcessSlot,
    word: u64,
}

#[doc(hidden)]
/// What a taker found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    /// The lock was free: the shared tier comes next.
    Fresh,
    /// The host holds the shared lock already.
    Passed(Cohort),
    /// Its owner died: it is recovered from first (LOCK-Q3).
    Recovered,
    /// Its owner gave it up, and had flushed so much (LOCK-Q3). Else as after a death.
    GivenUp { flushed: u64 },
}

/// What nobody looked after.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Abandoned {
    /// It was passed in order, and not taken over.
    Passed,
    /// Its owner died (LOCK-Q3).
    ByDead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Free,
    Passed(Cohort),
    Thread(HolderToken),
}

impl Owner {
    fn from_word(word: u64) -> Self {
        match word & 0xffff {
            0 => Self::Free,
            PASSED => Self::Passed(Cohort {
                passes: u16::try_from(word >> 16 & PASSES_MASK).unwrap_or(u16::MAX),
                elapsed_us: word >> ELAPSED_SHIFT,
                after_death: word & AFTER_DEATH != 0,
            }),
            _ => Self::Thread(HolderToken::from_word(word)),
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Passed(Cohort { passes, elapsed_us, after_death }) => {
                let elapsed = elapsed_us.min(ELAPSED_US_MAX) << ELAPSED_SHIFT;
                let told = if after_death { AFTER_DEATH } else { 0 };
                elapsed | told | (u64::from(passes) & PASSES_MASK) << 16 | PASSED
            }
            Self::Thread(token) => token.word(),
        }
    }
}

#[doc(hidden)]
/// The queue of one lock, in one host.
#[derive(Debug)]
pub struct HostQueue<'t, H> {
    memory: &'t H,
    lock: LockId,
    words: QueueWords,
}

impl<'t, H: HostMemory> HostQueue<'t, H> {
    pub(crate) fn new(memory: &'t H, lock: LockId, words: QueueWords) -> Self {
        Self { memory, lock, words }
    }

    #[doc(hidden)]
    /// Joins the end of the queue.
    ///
    /// # Panics
    /// When the thread is in a queue already: it has one word to wait with.
    pub fn enter(&self, me: HolderToken) -> Place {
        let waits = self.memory.load(self.wait_at(me.process()));
        assert!(waits == 0, "a member waits for one lock at a time, and waits for another already");
        let mut last = self.memory.load(self.words.tickets);
        let ticket = loop {
            let next = last + 1;
            match self.memory.compare_exchange(self.words.tickets, last, next) {
                Ok(_) => break next & TICKET_MASK,
                Err(found) => last = found,
            }
        };
        self.memory.store(self.wait_at(me.process()), self.wait_word(ticket));
        Place { ticket }
    }

    #[doc(hidden)]
    /// One look whether it is our turn: never waits. `thorough` also asks whether the thread in our
    /// way still lives, which is a system call for each dead waiter and one for the first that
    /// lives.
    ///
    /// With a turn the place in the queue is gone, and the lock is ours until [`release`] or
    /// [`pass`].
    ///
    /// [`release`]: Self::release
    /// [`pass`]: Self::pass
    pub fn look(
        &self,
        me: HolderToken,
        place: Place,
        living: &impl Living,
        thorough: bool,
    ) -> Option<Turn> {
        let found = self.memory.load(self.words.owner);
        let turn = match Owner::from_word(found) {
            Owner::Free => Turn::Fresh,
            Owner::Passed(cohort) => Turn::Passed(cohort),
            Owner::Thread(owner) => match owner.progress_of_nobody() {
                // Nobody need be asked.
                Some(flushed) => Turn::GivenUp { flushed },
                None if thorough && !living.holds(owner) => Turn::Recovered,
                None => return None,
            },
        };
        // All of the dead at once: looks that ask become rare.
        while let Some((slot, word)) = self.first_before(me, place.ticket) {
            if !thorough || living.waits(slot) {
                return None;
            }
            // A CAS: its successor in the registry may wait by now.
            let _ = self.memory.compare_exchange(self.wait_at(slot), word, 0);
        }
        // SYNC POINT: pairs with the CAS in `pass` and in `release`.
        self.memory.compare_exchange(self.words.owner, found, me.word()).ok()?;
        // After the CAS: a thread that dies in between is found as a dead owner, and its word by
        // LOCK-Q3.
        self.memory.store(self.wait_at(me.process()), 0);
        Some(turn)
    }

    /// The thread that has the host's turn. Of a lock that its owner gave up there is none.
    pub(crate) fn holder(&self) -> Option<HolderToken> {
        match Owner::from_word(self.memory.load(self.words.owner)) {
            Owner::Thread(HolderToken::NOBODY) | Owner::Free | Owner::Passed(_) => None,
            Owner::Thread(token) => Some(token),
        }
    }

    #[doc(hidden)]
    /// Takes a host lock that is free without a place in the queue: only when nobody waits for it
    /// (LOCK-Q5).
    pub fn take_unwaited(&self, me: HolderToken) -> bool {
        !self.is_waited_for(me)
            && self.memory.compare_exchange(self.words.owner, 0, me.word()).is_ok()
    }

    /// The word of the first that came before us, when it could take the lock (LOCK-Q6). `dead` is
    /// the owner that was found dead last: `thorough` asks whether the present one lives.
    pub(crate) fn idle_before(
        &self,
        me: HolderToken,
        place: Place,
        living: &impl Living,
        thorough: bool,
        dead: &mut Option<HolderToken>,
    ) -> Option<Idle> {
        let could_take = match Owner::from_word(self.memory.load(self.words.owner)) {
            Owner::Free | Owner::Passed(_) => true,
            Owner::Thread(owner) if owner.progress_of_nobody().is_some() => true,
            // A dead thread stays dead, and no other thread ever has its token.
            Owner::Thread(owner) if *dead == Some(owner) => true,
            Owner::Thread(owner) => {
                let is_dead = thorough && !living.holds(owner);
                *dead = is_dead.then_some(owner).or(*dead);
                is_dead
            }
        };
        let first = could_take.then(|| self.first_before(me, place.ticket)).flatten();
        first.map(|(slot, word)| Idle { slot, word })
    }

    /// Takes the word of a waiter away that is stopped (LOCK-Q6).
    pub(crate) fn pass_over(&self, idle: Idle) {
        let _ = self.memory.compare_exchange(self.wait_at(idle.slot), idle.word, 0);
    }

    /// Writes our word again, if it was taken away (LOCK-Q6).
    pub(crate) fn stay(&self, me: HolderToken, place: Place) {
        let at = self.wait_at(me.process());
        if self.memory.load(at) == 0 {
            self.memory.store(at, self.wait_word(place.ticket));
        }
    }

    /// Leaves the queue of a host lock.
    pub(crate) fn leave(&self, me: HolderToken) {
        self.memory.store(self.wait_at(me.process()), 0);
    }

    /// Leaves the queue. When it returns true the lock had been passed to nobody but us: it is ours
    /// now, and the shared lock is to be released.
    pub(crate) fn withdraw(&self, me: HolderToken) -> bool {
        self.memory.store(self.wait_at(me.process()), 0);
        // SYNC POINT (LOCK-Q4): our word is cleared before the look at the owner.
        let found = self.memory.load(self.words.owner);
        matches!(Owner::from_word(found), Owner::Passed(_))
            && !self.is_waited_for(me)
            && self.memory.compare_exchange(self.words.owner, found, me.word()).is_ok()
    }

    /// Passes the lock, and with it the shared lock, to the next thread of the host. False when
    /// nobody waits: then it is still ours, and the shared lock is to be released.
    pub(crate) fn pass(&self, me: HolderToken, cohort: Cohort) -> bool {
        if !self.is_waited_for(me) {
            return false;
        }
        let passed = Owner::Passed(cohort).word();
        if self.memory.compare_exchange(self.words.owner, me.word(), passed).is_err() {
            // Taken over from us, which happens only to the dead.
            return true;
        }
        crash::reach(CrashPoint::LockPassed);
        // SYNC POINT (LOCK-Q4): passed before the second look. A failed CAS: another thread has
        // taken it.
        self.is_waited_for(me)
            || self.memory.compare_exchange(self.words.owner, passed, me.word()).is_err()
    }

    #[doc(hidden)]
    /// Gives the lock back. The shared lock was released before.
    pub fn release(&self, me: HolderToken) {
        // A CAS, not a store: a holder that was wrongly believed dead must not free another's.
        let _ = self.memory.compare_exchange(self.words.owner, me.word(), 0);
    }

    /// Gives the lock up as a dead owner does: the shared lock is held, and what its holder left is
    /// not ended, but `flushed` so far. The next thread that looks continues from there, or the
    /// agent begins anew.
    pub(crate) fn abandon(&self, me: HolderToken, flushed: u64) {
        let nobody = HolderToken::nobody_at(flushed).word();
        let _ = self.memory.compare_exchange(self.words.owner, me.word(), nobody);
    }

    /// Takes what nobody looks after: a lock whose owner is dead, or that was passed and not taken
    /// over. For the host's agent, which then ends it; a waiter that is only slow goes to the
    /// shared tier by itself.
    pub(crate) fn take_abandoned(
        &self,
        me: HolderToken,
        living: &impl Living,
    ) -> Option<Abandoned> {
        let found = self.memory.load(self.words.owner);
        let abandoned = match Owner::from_word(found) {
            Owner::Free => None,
            Owner::Passed(_) => {
                self.forget_dead(me, living);
                Some(Abandoned::Passed)
            }
            Owner::Thread(owner) => (!living.holds(owner)).then_some(Abandoned::ByDead),
        }?;
        self.memory.compare_exchange(self.words.owner, found, me.word()).ok()?;
        Some(abandoned)
    }

    /// Clears the words of dead waiters, so that nothing is passed to them again.
    fn forget_dead(&self, me: HolderToken, living: &impl Living) {
        for (slot, word, _) in self.waiters(me) {
            if !living.waits(slot) {
                let _ = self.memory.compare_exchange(self.wait_at(slot), word, 0);
            }
        }
    }

    /// The first in the queue, if it came before `ticket`, and its word.
    fn first_before(&self, me: HolderToken, ticket: u64) -> Option<(ProcessSlot, u64)> {
        let before = self.waiters(me).filter(|(_, _, theirs)| *theirs < ticket);
        before.min_by_key(|(_, _, theirs)| *theirs).map(|(slot, word, _)| (slot, word))
    }

    fn is_waited_for(&self, me: HolderToken) -> bool {
        self.waiters(me).next().is_some()
    }

    /// The other waiters for this lock: place, word and ticket.
    fn waiters(&self, me: HolderToken) -> impl Iterator<Item = (ProcessSlot, u64, u64)> + '_ {
        // A thread with a smaller ticket than ours has been in the registry since before we drew
        // ours.
        let places = self.memory.load(self.words.places);
        let places = u16::try_from(places).unwrap_or(PROCESSES_MAX).min(PROCESSES_MAX);
        let others = (0..places).map(ProcessSlot).filter(move |slot| *slot != me.process());
        others.filter_map(|slot| {
            let word = self.memory.load(self.wait_at(slot));
            let ticket = word & TICKET_MASK;
            (word == self.wait_word(ticket)).then_some((slot, word, ticket))
        })
    }

    fn wait_at(&self, slot: ProcessSlot) -> usize {
        self.words.waits + usize::from(slot.0)
    }

    fn wait_word(&self, ticket: u64) -> u64 {
        (u64::from(self.lock.0) + 1) << TICKET_BITS | ticket
    }
}
