//! Which locks are in use: given out and taken back, for programs that do not number them
//! themselves.
//!
//! The table has a bit per lock, written under lock 3 with an intent, so that the death of a holder
//! leaves every bit either as it was or as it was to be. A lock that is given out stays so until it
//! is freed, whichever process dies: only the programs that use it know when that is.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, LineError, PeerLine};
use cxl_shm::intent::Update;
use cxl_shm::layout::{FIRST_FREE_LOCK, LOCK_TABLE_LOCK, Layout, LockSet};
use cxl_shm::lock::LockError;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::LockId;

/// Why no lock was given out. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AllocateLockError {
    /// All are in use.
    #[error(
        "all {locks} locks of the region that programs may use are in use; free some, or format \
         a region with more of them"
    )]
    Exhausted {
        /// Locks for programs.
        locks: u32,
    },
    /// The lock of the table was not acquired.
    #[error("cannot allocate a lock: {0}")]
    Lock(#[from] LockError),
}

/// Why a lock was not taken back. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreeLockError {
    /// It is none that is given out: freed already, one of the region's own, or none at all.
    #[error("lock {lock} is not in use: it was freed, or never allocated")]
    NotInUse {
        /// The lock.
        lock: LockId,
    },
    /// Its line of the table is damaged: nobody knows.
    #[error("the table of locks is damaged: {0}")]
    Damaged(LineError),
    /// The lock of the table was not acquired.
    #[error("cannot free a lock: {0}")]
    Lock(#[from] LockError),
}

/// What a member does with the table of locks.
pub trait LockTable {
    /// Gives out a lock that no program uses. After return every host sees that it is in use.
    ///
    /// # Errors
    /// [`AllocateLockError`]; nothing is changed then.
    fn allocate_lock(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
    ) -> Result<LockId, AllocateLockError>;

    /// Takes a lock back. The programs that used it do so no more: it may be given out again at
    /// once.
    ///
    /// # Errors
    /// [`FreeLockError`]; nothing is changed then.
    fn free_lock(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        lock: LockId,
    ) -> Result<(), FreeLockError>;

    /// Whether `lock` is given out, freshly read.
    #[must_use]
    fn is_lock_in_use(&self, lock: LockId) -> bool;
}

impl<B: Backend> LockTable for Member<B> {
    fn allocate_lock(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
    ) -> Result<LockId, AllocateLockError> {
        let (layout, fabric) = (*self.layout(), self.fabric());
        let _guard = self.lock_shared(LOCK_TABLE_LOCK, clock, timeout_ms)?;
        // LOCK-L1: others have written the table since we last held the lock.
        fabric.refresh(layout.lock_table().range());
        let free = (FIRST_FREE_LOCK..layout.locks()).map(LockId).find_map(|lock| {
            // Locks of a line that cannot be read stay out of use: some of them may be in it.
            let set = in_use(fabric, line_of(&layout, lock)).ok()?;
            (!set.contains(lock)).then_some((lock, set))
        });
        let exhausted = AllocateLockError::Exhausted { locks: layout.locks() - FIRST_FREE_LOCK };
        let (lock, set) = free.ok_or(exhausted)?;
        write_set(self, lock, &set.with(lock, true));
        Ok(lock)
    }

    fn free_lock(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        lock: LockId,
    ) -> Result<(), FreeLockError> {
        let (layout, fabric) = (*self.layout(), self.fabric());
        if !(FIRST_FREE_LOCK..layout.locks()).contains(&lock.0) {
            return Err(FreeLockError::NotInUse { lock });
        }
        let _guard = self.lock_shared(LOCK_TABLE_LOCK, clock, timeout_ms)?;
        // LOCK-L1.
        let line = line_of(&layout, lock);
        fabric.refresh(line.range());
        let set = in_use(fabric, line).map_err(FreeLockError::Damaged)?;
        if !set.contains(lock) {
            return Err(FreeLockError::NotInUse { lock });
        }
        write_set(self, lock, &set.with(lock, false));
        Ok(())
    }

    fn is_lock_in_use(&self, lock: LockId) -> bool {
        let layout = *self.layout();
        if !(FIRST_FREE_LOCK..layout.locks()).contains(&lock.0) {
            return false;
        }
        let line = line_of(&layout, lock);
        self.fabric().refresh(line.range());
        in_use(self.fabric(), line).is_ok_and(|set| set.contains(lock))
    }
}

/// The caller holds the lock of the table, and has refreshed the line.
fn write_set<B: Backend>(member: &Member<B>, lock: LockId, set: &LockSet) {
    let update = Update::new(member.layout(), LOCK_TABLE_LOCK);
    let update = update.line(member.fabric(), line_of(member.layout(), lock), set);
    update.commit(member.node_handle(), member.fabric());
}

fn line_of(layout: &Layout, lock: LockId) -> PeerLine<LockSet> {
    let line = layout.lock_table().line(LockSet::line_of(lock));
    line.expect("the table has a line for every lock of the region")
}

fn in_use(fabric: &impl Fabric, line: PeerLine<LockSet>) -> Result<LockSet, LineError> {
    match line.cached(fabric) {
        Ok(set) => Ok(set),
        Err(LineError::Blank { .. }) => Ok(LockSet::empty()),
        Err(damaged) => Err(damaged),
    }
}
