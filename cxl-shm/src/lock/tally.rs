//! How a holder of a program's lock is told that one before it died.
//!
//! The *tally* of a lock is a small number beside the ticket, or the bakery's number, in each node's
//! request word of that lock. Of several nodes the largest tally counts. It is odd after a holder died
//! with the lock in hand, and even after a later holder has said that the data is consistent again.
//!
//! - **L5** Before a program's lock is released for a holder that died, all that programs of its host may
//!   have written is on the device ([`Settling`](crate::member)): none of it can appear later, over what
//!   later holders write. Then the release carries an odd tally, larger than all others or the largest
//!   odd one. Every later holder is told, until one says that the data is consistent: its
//!   release carries a larger, even tally.
//!
//! Why nobody misses it: only who holds a lock, or ends what a dead holder has, writes its tally, and the
//! next holder learns the tallies after that. In the bakery it reads the words of all who were before it
//! (B3). Otherwise the manager that grants has read them, or copies of them (S3), to know that the lock is
//! free (A1), and the grant says so in a bit. Where nobody knows whether a dead host held the lock or waited for it, it counts as
//! holder: then somebody is told in vain.

use crate::fabric::{Fabric, refresh_all};
use crate::layout::{FIRST_FREE_LOCK, Layout};
use crate::units::{LockId, NodeId};

/// Whether `lock` is for programs. What the region's own locks guard has redo records (L2) and no tallies.
pub(crate) fn is_for_programs(lock: LockId) -> bool {
    lock.0 >= FIRST_FREE_LOCK
}

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Tally(u32);

impl Tally {
    /// Bits that it takes in a word: half a million deaths of holders of one lock. The last number is odd:
    /// from then on everybody is told.
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
