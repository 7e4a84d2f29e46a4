//! A queue of slots in order of tick, and within one tick the deepest first.
//!
//! Blocks come in batches with one tick each, so the queue is a list of *runs*, one a tick, each a
//! heap by depth. A slot that is taken from the middle leaves its entry behind, which is passed
//! over later; when such entries become as many as the live ones, all are thrown out at once. So
//! every operation costs the logarithm of a run's length at most, over time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Entries left behind that are not worth being thrown out.
const STALE_MIN: usize = 64;

/// A slot in a run. The deepest is the greatest; of two equally deep ones the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    depth: u32,
    number: Reverse<u32>,
    slot: u32,
}

#[derive(Debug)]
struct Run {
    tick: u64,
    /// How many entries it ever got: their numbers.
    pushed: u32,
    entries: BinaryHeap<Entry>,
}

/// Where a slot stands: the entry of this number in the run of this tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    tick: u64,
    number: u32,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    runs: VecDeque<Run>,
    places: Vec<Option<Place>>,
    live: usize,
    /// Of slots that stand in the queue, and stale ones.
    entries: usize,
}

impl Queue {
    /// Slots that stand in it.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Puts `slot` into the run of `tick`; where it stood before, it stands no more. A tick before
    /// that of the newest run counts as that one.
    pub(super) fn push(&mut self, slot: u32, depth: u32, tick: u64) {
        self.take(slot);
        let run = match self.runs.back_mut() {
            // A run that is full of numbers gets a successor of the same tick.
            Some(run) if run.tick >= tick && run.pushed < u32::MAX => run,
            _ => {
                self.runs.push_back(Run { tick, pushed: 0, entries: BinaryHeap::new() });
                self.runs.back_mut().expect("one was pushed just now")
            }
        };
        let place = Place { tick: run.tick, number: run.pushed };
        run.pushed += 1;
        run.entries.push(Entry { depth, number: Reverse(place.number), slot });
        let index = slot as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(place);
        self.live += 1;
        self.entries += 1;
        if self.entries > 2 * self.live + STALE_MIN {
            self.drop_stale();
        }
    }

    /// Takes the first slot.
    pub(super) fn pop(&mut self) -> Option<u32> {
        loop {
            let run = self.runs.front_mut()?;
            let Some(entry) = run.entries.pop() else {
                self.runs.pop_front();
                continue;
            };
            self.entries -= 1;
            let place = Place { tick: run.tick, number: entry.number.0 };
            if self.places[entry.slot as usize] == Some(place) {
                self.places[entry.slot as usize] = None;
                self.live -= 1;
                return Some(entry.slot);
            }
        }
    }

    /// Takes `slot` from wherever it stands. Whether it stood in the queue.
    pub(super) fn take(&mut self, slot: u32) -> bool {
        let place = self.places.get_mut(slot as usize);
        let stood = place.is_some_and(|place| place.take().is_some());
        self.live -= usize::from(stood);
        stood
    }

    #[cfg(test)]
    pub(super) fn stands(&self, slot: u32) -> bool {
        self.places.get(slot as usize).is_some_and(Option::is_some)
    }

    fn drop_stale(&mut self) {
        let places = &self.places;
        for run in &mut self.runs {
            let tick = run.tick;
            run.entries.retain(|entry| {
                let place = Place { tick, number: entry.number.0 };
                places[entry.slot as usize] == Some(place)
            });
        }
        self.runs.retain(|run| !run.entries.is_empty());
        self.entries = self.live;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_go_in_order_and_the_deepest_of_a_tick_first() {
        let mut queue = Queue::default();
        for (slot, depth, tick) in [(0, 0, 1), (1, 2, 1), (2, 1, 1), (3, 9, 2), (4, 2, 1)] {
            queue.push(slot, depth, tick);
        }
        // The tick of slot 4 went back: it counts as the newest.
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), [1, 2, 0, 3, 4]);
    }

    #[test]
    fn entries_left_behind_are_thrown_out() {
        let mut queue = Queue::default();
        for tick in 0..1000 {
            queue.push(0, 0, tick);
            queue.push(1, 0, tick);
            queue.take(1);
            assert!(queue.entries <= 2 * queue.len() + STALE_MIN + 1);
        }
        assert!(queue.runs.len() <= STALE_MIN + 2);
        assert_eq!((queue.pop(), queue.pop()), (Some(0), None));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push { slot: u32, depth: u32, ticks: u64 },
        Take(u32),
        Pop,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u32..16, 0u32..4, 0u64..2)
                .prop_map(|(slot, depth, ticks)| Step::Push { slot, depth, ticks }),
            1 => (0u32..16).prop_map(Step::Take),
            1 => Just(Step::Pop),
        ]
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_sorted_list(steps in proptest::collection::vec(step(), 0..600)) {
            let mut queue = Queue::default();
            let mut list: Vec<(u64, Reverse<u32>, usize, u32)> = Vec::new();
            let mut tick = 0;
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push { slot, depth, ticks } => {
                        tick += ticks;
                        queue.push(slot, depth, tick);
                        list.retain(|entry| entry.3 != slot);
                        list.push((tick, Reverse(depth), number, slot));
                        list.sort_unstable();
                    }
                    Step::Take(slot) => {
                        let before = list.len();
                        list.retain(|entry| entry.3 != slot);
                        prop_assert_eq!(queue.take(slot), list.len() < before);
                    }
                    Step::Pop => {
                        let first = (!list.is_empty()).then(|| list.remove(0).3);
                        prop_assert_eq!(queue.pop(), first);
                    }
                }
                prop_assert_eq!(queue.len(), list.len());
                prop_assert!(queue.entries <= 2 * queue.len() + STALE_MIN + 1);
            }
        }
    }
}
