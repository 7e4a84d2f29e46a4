//! How a holder of a program's lock is told that an earlier holder died.
//!
//! The *tally* of a lock is a small number in each node's request word of that lock, beside the
//! ticket or the bakery's number. The largest tally of all nodes counts. It is odd after a holder
//! died with the lock, and even after a later holder has said that the data is consistent again.
//!
//! - LOCK-L5: Before a program's lock is released for a dead holder, everything that programs of
//!   its host may have written is on the device ([`HandoffFlush`](crate::lock)). None of it can
//!   appear later and overwrite what later holders write. Then the release carries an odd tally:
//!   one larger than all others, or the largest odd one. Every later holder is told, until one of
//!   them says that the data is consistent. The release of that one carries a larger, even tally.
//!
//! Why nobody misses it: only a holder, or a process that ends the lock of a dead holder, writes
//! its tally, and the next holder learns the tallies after that. In the bakery it reads the words
//! of all that came before it (LOCK-B3). Otherwise the manager that grants has read the words, or
//! copies of them (LOCK-S3), to know that the lock is free (LOCK-A1), and one bit of the grant says
//! so. When nobody knows whether a dead host held the lock or waited for it, the host counts as the
//! holder. Then a later holder is told in vain.

use crate::fabric::{Fabric, refresh_all};
use crate::layout::{FIRST_FREE_LOCK, Layout};
use crate::units::{LockId, NodeId};

/// Whether `lock` is for programs. What the region's own locks guard has redo records (LOCK-L2) and
/// no tallies.
pub(crate) fn is_for_programs(lock: LockId) -> bool {
    lock.0 >= FIRST_FREE_LOCK
}

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Tally(u32);

impl Tally {
    /// Bits that it takes in a word: half a million deaths of holders of one lock. The last number
    /// is odd: from then on every holder is told.
    pub(super) const BITS: u32 = 20;
    const LAST: u32 = (1 << Self::BITS) - 1;

    /// The tally in the low bits of `bits`.
    pub(super) fn from_low_bits(bits: u64) -> Self {
        Self(u32::try_from(bits & u64::from(Self::LAST)).unwrap_or(0))
    }

    pub(super) fn bits(self) -> u64 {
        u64::from(self.0)
    }

    /// Whether a holder is to be told.
    pub(super) fn tells(self) -> bool {
        self.0 % 2 == 1
    }

    /// After the death of a holder.
    pub(super) fn after_death(self) -> Self {
        Self(self.0 | 1)
    }

    /// After a holder has said that the data is consistent.
    pub(super) fn after_mending(self) -> Self {
        Self(if self.tells() && self.0 < Self::LAST { self.0 + 1 } else { self.0 })
    }
}

/// The tally of `lock` among all nodes but `own`, freshly read with one fence.
pub(super) fn of_others<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    own: NodeId,
    lock: LockId,
    of_word: fn(u64) -> Tally,
) -> Tally {
    let words = || {
        let others = layout.nodes().filter(|node| *node != own);
        others.map(|node| layout.request(node, lock))
    };
    refresh_all(fabric, words().map(|word| word.range()));
    words().map(|word| of_word(word.cached(fabric))).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_tells_after_a_death_until_it_is_mended() {
        let tally = Tally::default();
        assert!(!tally.tells() && !tally.after_mending().tells());
        let dead = tally.after_death();
        assert!(dead.tells() && dead > tally);
        assert_eq!(dead.after_death(), dead);
        let mended = dead.after_mending();
        assert!(!mended.tells() && mended > dead && mended.after_death() > mended);
        let last = Tally(Tally::LAST);
        assert_eq!((last.after_mending(), last.after_death()), (last, last), "told for ever");
        assert_eq!(Tally::from_low_bits(last.bits() | 1 << Tally::BITS), last);
    }
}
