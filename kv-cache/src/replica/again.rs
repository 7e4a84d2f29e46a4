//! Slots of which a look said nothing: the line was torn, or its owner had not decided (INDEX-R5).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// Looks at one slot at each sync, before they become rarer: a writer that waits for a processor
/// comes to its end meanwhile.
const LOOKS_SOON: u32 = 16;
/// After so many doublings looks become no rarer: one in 1,024 syncs.
const DOUBLINGS_MAX: u32 = 10;
/// Most slots that one sync looks at again.
const LOOKS_MAX: usize = 256;

/// A slot, by its number in the replica, and how often it was looked at again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Waiting {
    pub(super) number: u32,
    looks: u32,
}

/// Slots that are looked at again: at each of the next syncs, then after twice as many syncs each
/// time.
#[derive(Debug, Default)]
pub(super) struct Again {
    syncs: u64,
    due: BinaryHeap<Reverse<(u64, Waiting)>>,
    listed: HashSet<u32>,
}

impl Again {
    /// Has a slot looked at again at the next sync.
    pub(super) fn add(&mut self, number: u32) {
        if self.listed.insert(number) {
            self.due.push(Reverse((self.syncs + 1, Waiting { number, looks: 0 })));
        }
    }

    /// The slots that this sync looks at. Each is off the list until it is [`put
    /// back`](Self::put_back).
    pub(super) fn next(&mut self) -> Vec<Waiting> {
        self.syncs += 1;
        let mut slots = Vec::new();
        while slots.len() < LOOKS_MAX
            && let Some(Reverse((at, waiting))) = self.due.peek().copied()
            && at <= self.syncs
        {
            self.due.pop();
            self.listed.remove(&waiting.number);
            slots.push(waiting);
        }
        slots
    }

    /// This look said nothing either.
    pub(super) fn put_back(&mut self, Waiting { number, looks }: Waiting) {
        if self.listed.insert(number) {
            let looks = looks.saturating_add(1);
            let wait = 1 << looks.saturating_sub(LOOKS_SOON).min(DOUBLINGS_MAX);
            self.due.push(Reverse((self.syncs + wait, Waiting { number, looks })));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_and_never_end() {
        let mut again = Again::default();
        again.add(7);
        again.add(7);
        let mut looks = Vec::new();
        for sync in 1u64..5000 {
            for waiting in again.next() {
                looks.push(sync);
                again.put_back(waiting);
            }
        }
        assert_eq!(
            looks[..20],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 23, 31]
        );
        let longest = looks.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert_eq!(longest, Some(1024));
        assert!(*looks.last().unwrap() > 5000 - 2048);
    }

    #[test]
    fn one_sync_looks_at_a_bounded_number_of_slots() {
        let mut again = Again::default();
        (0..1000).for_each(|number| again.add(number));
        assert_eq!((again.next().len(), again.next().len()), (LOOKS_MAX, LOOKS_MAX));
    }
}
