//! Which locks are in use: a bit each.

use bytemuck::{Pod, Zeroable};
use static_assertions::assert_eq_size;

use super::LOCKS_MAX;
use crate::fabric::Record;
use crate::units::LockId;

/// A line of the lock table. One that was never written says that no lock of it is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LockSet {
    words: [u64; 7],
}

impl Record for LockSet {
    const KIND: u32 = u32::from_le_bytes(*b"LCKS");
}

impl LockSet {
    /// Locks that a line tells of.
    const LOCKS: u32 = 7 * u64::BITS;
    /// Lines for as many locks as a region can have.
    pub const LINES: u64 = LOCKS_MAX.div_ceil(Self::LOCKS) as u64;

    /// None in use.
    #[must_use]
    pub fn empty() -> Self {
        Self::zeroed()
    }

    /// The line that tells of `lock`.
    #[must_use]
    pub fn line_of(lock: LockId) -> u64 {
        u64::from(lock.0 / Self::LOCKS)
    }

    /// Whether `lock`, one of this line's, is in use.
    #[must_use]
    pub fn contains(&self, lock: LockId) -> bool {
        let (word, bit) = place(lock);
        self.words[word] & bit != 0
    }

    /// The same with `lock`, one of this line's, in use or not.
    #[must_use]
    pub fn with(mut self, lock: LockId, in_use: bool) -> Self {
        let (word, bit) = place(lock);
        if in_use {
            self.words[word] |= bit;
        } else {
            self.words[word] &= !bit;
        }
        self
    }
}

/// Word of its line, and bit of that word.
fn place(lock: LockId) -> (usize, u64) {
    let index = lock.0 % LockSet::LOCKS;
    ((index / u64::BITS) as usize, 1 << (index % u64::BITS))
}

// A record fills its line except for the seal.
assert_eq_size!(LockSet, [u8; 56]);
