//! A host lock: a word in the host's DRAM that names its holder. It guards the host's own state,
//! for example which process is the agent, or which process writes the node's area. The queues of
//! the region's locks are in `queue`.
//!
//! - **LOCK-H1** The word is zero when free, else the token of the holding process.
//! - **LOCK-H2** A process that finds the token of a dead process takes the lock over by one CAS,
//!   and is told: it redoes or undoes the dead process's half-done work before anything else. When
//!   the taker dies too, the next one finds *the taker's* token, and recovers again. A holder that
//!   unwinds leaves a token that names nobody, which is taken over in the same way.
//! - **LOCK-H3** A registry slot is reused only under a new generation. So the token of a dead
//!   process never comes to name a living one.

use super::process::ProcessSlot;
use crate::fabric::HostMemory;

/// Names a process of this host as holder of host locks: its registry slot and the slot's
/// generation, never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HolderToken(u64);

impl HolderToken {
    pub(crate) fn new(slot: ProcessSlot, generation: u64) -> Self {
        // LOCK-H3.
        Self(generation << 16 | (u64::from(slot.0) + 1))
    }

    /// The token that a word says.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The word that says so: never zero for a token of a process.
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }

    /// Low half-word of the tokens that name no process.
    const NOBODY_LOW: u64 = 0xfffe;
    /// Names no process: what a thread leaves in a lock that it gave up while unwinding.
    /// Not zero (LOCK-H1).
    pub(super) const NOBODY: Self = Self(Self::NOBODY_LOW);

    /// Names no process: what a thread leaves in a lock that it gave up, with how far it had come,
    /// in 48 bits.
    pub(super) fn nobody_at(progress: u64) -> Self {
        Self(progress << 16 | Self::NOBODY_LOW)
    }

    /// How far the thread had come that left this token, if the token names no process.
    pub(super) fn progress_of_nobody(self) -> Option<u64> {
        (self.0 & 0xffff == Self::NOBODY_LOW).then_some(self.0 >> 16)
    }

    /// The holder's registry slot.
    #[must_use]
    pub fn process(self) -> ProcessSlot {
        let slot = (self.0 & 0xffff).saturating_sub(1);
        ProcessSlot(u16::try_from(slot).unwrap_or(u16::MAX))
    }
}

/// What came of one try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostAcquire {
    /// Held now.
    Acquired,
    /// Held now, and the holder before died inside (LOCK-H2).
    Recovered,
    /// A living process holds it.
    Busy,
}

/// One host lock.
#[derive(Debug)]
pub struct HostLock<'t, H> {
    memory: &'t H,
    word: usize,
}

impl<'t, H: HostMemory> HostLock<'t, H> {
    pub(crate) fn new(memory: &'t H, word: usize) -> Self {
        Self { memory, word }
    }

    /// One step of an acquisition: never waits. Threads of one process exclude each other too.
    pub fn try_acquire(
        &self,
        me: HolderToken,
        is_alive: impl FnOnce(HolderToken) -> bool,
    ) -> HostAcquire {
        // SYNC POINT: pairs with the store in `release`.
        match self.memory.compare_exchange(self.word, 0, me.0) {
            Ok(_) => HostAcquire::Acquired,
            Err(found) if is_alive(HolderToken(found)) => HostAcquire::Busy,
            Err(found) => match self.memory.compare_exchange(self.word, found, me.0) {
                Ok(_) => HostAcquire::Recovered,
                // Somebody else was first, or it was released in between.
                Err(_) => HostAcquire::Busy,
            },
        }
    }

    /// Gives the lock back. Does nothing when `me` does not hold it: then it was taken over,
    /// which happens only to the dead.
    pub fn release(&self, me: HolderToken) {
        // A CAS, not a store: a holder that was wrongly believed dead must not free another's.
        let _ = self.memory.compare_exchange(self.word, me.0, 0);
    }

    /// Gives the lock up without having finished what it guards: the next holder is told, as after
    /// a death (LOCK-H2).
    pub(crate) fn abandon(&self, me: HolderToken) {
        let _ = self.memory.compare_exchange(self.word, me.0, HolderToken::NOBODY.0);
    }

    /// The present holder.
    #[must_use]
    pub fn holder(&self) -> Option<HolderToken> {
        let word = self.memory.load(self.word);
        (word != 0).then_some(HolderToken(word))
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use loom::thread;

    use super::*;

    /// One word of a host's DRAM, under loom.
    #[derive(Debug)]
    struct LoomMemory(AtomicU64);

    impl HostMemory for LoomMemory {
        fn words(&self) -> usize {
            1
        }

        fn load(&self, _: usize) -> u64 {
            self.0.load(Ordering::SeqCst)
        }

        fn store(&self, _: usize, value: u64) {
            self.0.store(value, Ordering::SeqCst);
        }

        fn compare_exchange(&self, _: usize, current: u64, new: u64) -> Result<u64, u64> {
            self.0.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
        }
    }

    fn token(slot: u16) -> HolderToken {
        HolderToken::new(ProcessSlot(slot), 1)
    }

    /// Two living processes try `tries` times each for a lock that holds `first` at the start;
    /// processes from slot 9 on are dead. Returns how often it was had, and how often recovered.
    fn contend(first: u64, tries: usize) -> (usize, usize) {
        let memory = Arc::new(LoomMemory(AtomicU64::new(first)));
        let inside = Arc::new(AtomicBool::new(false));
        let contenders: Vec<_> = (0..2)
            .map(|slot| {
                let (memory, inside) = (Arc::clone(&memory), Arc::clone(&inside));
                thread::spawn(move || {
                    let lock = HostLock::new(&*memory, 0);
                    let (mut had, mut recovered) = (0, 0);
                    for _ in 0..tries {
                        match lock.try_acquire(token(slot), |holder| holder.process().0 < 9) {
                            HostAcquire::Busy => continue,
                            HostAcquire::Acquired => {}
                            HostAcquire::Recovered => recovered += 1,
                        }
                        had += 1;
                        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                        inside.store(false, Ordering::SeqCst);
                        lock.release(token(slot));
                    }
                    (had, recovered)
                })
            })
            .collect();
        let outcomes = contenders.into_iter().map(|contender| contender.join().unwrap());
        let sum = outcomes.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        assert_eq!(HostLock::new(&*memory, 0).holder(), None, "released by everybody");
        sum
    }

    #[test]
    fn one_is_inside_and_nobody_is_locked_out() {
        loom::model(|| {
            let (had, recovered) = contend(0, 2);
            assert!(had >= 2, "somebody had it each time that nobody else did");
            assert_eq!(recovered, 0);
        });
    }

    #[test]
    fn a_dead_holder_is_recovered_from_once() {
        loom::model(|| {
            let (had, recovered) = contend(token(9).0, 2);
            assert!(had >= 1);
            assert_eq!(recovered, 1, "exactly one is told");
        });
    }

    #[test]
    fn nobody_has_the_place_that_an_unwinding_holder_names() {
        for progress in [0, 1, (1 << 48) - 1] {
            let nobody = HolderToken::nobody_at(progress);
            assert!(nobody.process().0 >= crate::host::process::PROCESSES_MAX);
            assert_eq!(nobody.progress_of_nobody(), Some(progress));
        }
        assert_eq!(HolderToken::NOBODY, HolderToken::nobody_at(0));
        assert_eq!(token(255).progress_of_nobody(), None);
    }

    #[test]
    fn a_token_names_its_slot_and_is_never_free() {
        for slot in [0, 1, 255] {
            assert_eq!(token(slot).process(), ProcessSlot(slot));
            assert_ne!(token(slot).0, 0);
        }
    }
}
