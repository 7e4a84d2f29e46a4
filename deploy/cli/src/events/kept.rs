//! The batches that are kept: for replays, and for subscribers that are behind.

use std::collections::VecDeque;
use std::sync::Arc;

/// Batches that are kept, and their bytes in all.
const KEPT_BATCHES: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;

/// A batch with its number. Clones share the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) payload: Arc<[u8]>,
}

/// The newest batches.
#[derive(Debug)]
pub(super) struct Kept {
    batches: VecDeque<Numbered>,
    bytes: usize,
    next: u64,
}

impl Kept {
    /// Numbers batches from `first` on.
    pub(super) fn new(first: u64) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, next: first }
    }

    /// The number of the next batch.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Gives a batch its number, and keeps it for a while.
    pub(super) fn add(&mut self, payload: Vec<u8>) {
        let batch = Numbered { number: self.next, payload: payload.into() };
        self.next += 1;
        self.bytes += batch.payload.len();
        self.batches.push_back(batch);
        while self.batches.len() > KEPT_BATCHES
            || (self.bytes > KEPT_BYTES && self.batches.len() > 1)
        {
            let dropped = self.batches.pop_front().map_or(0, |batch| batch.payload.len());
            self.bytes -= dropped;
        }
    }

    /// The batches from number `first` on; `None` when some of them are not kept any more.
    pub(super) fn from(&self, first: u64) -> Option<Vec<Numbered>> {
        let oldest = self.batches.front().map_or(self.next, |batch| batch.number);
        (first >= oldest).then(|| self.since(first).cloned().collect())
    }

    /// The first of the kept batches that has number `first` or a later one.
    pub(super) fn first_since(&self, first: u64) -> Option<Numbered> {
        self.since(first).next().cloned()
    }

    fn since(&self, first: u64) -> impl Iterator<Item = &Numbered> {
        let behind = self.batches.partition_point(|batch| batch.number < first);
        self.batches.range(behind..)
    }

    /// Batches that stand for all that there were: the last has the number of the last.
    pub(super) fn numbered_to_the_last(&self, payloads: Vec<Vec<u8>>) -> Vec<Numbered> {
        let first = self.next.saturating_sub(payloads.len() as u64);
        let numbered = (first..).zip(payloads);
        numbered.map(|(number, payload)| Numbered { number, payload: payload.into() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_begins_where_it_was_asked_for() {
        let mut kept = Kept::new(0);
        for number in 0..5u8 {
            assert_eq!(kept.next(), u64::from(number));
            kept.add(vec![number]);
        }
        let numbers = |batches: Vec<Numbered>| {
            batches.into_iter().map(|batch| batch.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(kept.from(3).unwrap()), [3, 4]);
        assert_eq!(numbers(kept.from(5).unwrap()), [0; 0]);
        assert_eq!(numbers(kept.from(u64::MAX).unwrap()), [0; 0]);
        assert_eq!(numbers(kept.numbered_to_the_last(vec![vec![], vec![]])), [3, 4]);
    }

    #[test]
    fn what_is_not_kept_is_not_replayed_in_part() {
        let mut kept = Kept::new(0);
        for _ in 0..=KEPT_BATCHES {
            kept.add(vec![]);
        }
        assert_eq!(kept.from(0), None);
        assert_eq!(kept.from(1).unwrap().len(), KEPT_BATCHES);
        assert_eq!(kept.first_since(0).unwrap().number, 1, "a subscriber that is behind lacks one");
        kept.add(vec![0; KEPT_BYTES + 1]);
        assert_eq!((kept.batches.len(), kept.bytes), (1, KEPT_BYTES + 1));
        kept.add(vec![1]);
        assert_eq!((kept.batches.len(), kept.bytes), (1, 1));
        assert_eq!(kept.first_since(kept.next()), None);
    }
}
