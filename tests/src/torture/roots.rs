//! The account of named roots. Two workers write into that of one root, and what they say arrives
//! in any order: nothing here depends on it.

use std::collections::BTreeMap;

use super::event::Event;
use super::named::RootId;

#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// Its worker has named it.
    named: bool,
    /// It was not named, and will not be.
    refused: bool,
    /// Somebody has begun to destroy it.
    destroying: bool,
    destroyed: bool,
}

/// What was said of all roots.
#[derive(Debug, Default)]
pub(super) struct Roots(BTreeMap<RootId, Said>);

impl Roots {
    /// Takes note of what `worker` said.
    pub(super) fn note(&mut self, worker: u32, event: &Event) {
        let (worker, number) = match *event {
            Event::Naming(number) | Event::Named(number) | Event::NotNamed(number) => {
                (worker, number)
            }
            Event::Destroying(of, number) | Event::Destroyed(of, number) => (of, number),
            _ => return,
        };
        let said = self.0.entry(RootId { worker, number }).or_default();
        match event {
            Event::Named(_) => said.named = true,
            Event::NotNamed(_) => said.refused = true,
            Event::Destroying(..) => said.destroying = true,
            Event::Destroyed(..) => said.destroyed = true,
            _ => {}
        }
    }

    /// Whether it must be there.
    pub(super) fn is_certain(&self, root: RootId) -> bool {
        let there = |said: &Said| said.named && !said.destroying && !said.destroyed;
        self.0.get(&root).is_some_and(there)
    }

    /// Whether it may be there.
    pub(super) fn is_possible(&self, root: RootId) -> bool {
        self.0.get(&root).is_some_and(|said| !said.refused && !said.destroyed)
    }

    /// Roots that must be there.
    pub(super) fn certain(&self) -> impl Iterator<Item = RootId> {
        self.0.keys().copied().filter(|root| self.is_certain(*root))
    }

    /// Numbers of the roots of a worker that it alone destroys and that must be there, or that may.
    pub(super) fn own(&self, worker: u32, certain: bool) -> Vec<u64> {
        let of_worker = self.0.keys().filter(|root| root.worker == worker && !root.is_foreign());
        let there = |root: &&RootId| self.is_possible(**root) && self.is_certain(**root) == certain;
        of_worker.filter(there).map(|root| root.number).collect()
    }

    /// A number that no root of a worker ever had.
    pub(super) fn next_number(&self, worker: u32) -> u64 {
        let last = self.0.keys().filter(|root| root.worker == worker).map(|root| root.number).max();
        last.map_or(0, |last| last + 1)
    }

    /// How many were named, and how many destroyed.
    pub(super) fn count(&self) -> (u64, u64) {
        let count = |is: fn(&Said) -> bool| self.0.values().filter(|said| is(said)).count() as u64;
        (count(|said| said.named), count(|said| said.destroyed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_root_counts_in_any_order() {
        let (mine, theirs) = (RootId { worker: 0, number: 1 }, RootId { worker: 0, number: 2 });
        let mut events = [
            (0, Event::Naming(1)),
            (0, Event::Named(1)),
            (1, Event::Destroying(0, 1)),
            (1, Event::Destroyed(0, 1)),
            (0, Event::Naming(2)),
            (0, Event::Named(2)),
        ];
        for _ in 0..2 {
            let mut roots = Roots::default();
            events.iter().for_each(|(worker, event)| roots.note(*worker, event));
            assert!(!roots.is_possible(mine) && roots.is_certain(theirs));
            assert_eq!(roots.own(0, true), [2]);
            assert_eq!((roots.next_number(0), roots.count()), (3, (2, 1)));
            events.reverse();
        }
    }

    #[test]
    fn a_root_is_doubtful_from_the_word_that_it_is_destroyed() {
        let root = RootId { worker: 4, number: 0 };
        let mut roots = Roots::default();
        roots.note(4, &Event::Naming(0));
        assert!(roots.is_possible(root) && !roots.is_certain(root));
        roots.note(4, &Event::Named(0));
        assert!(roots.is_certain(root));
        roots.note(4, &Event::Destroying(4, 0));
        assert!(roots.is_possible(root) && !roots.is_certain(root));
        assert_eq!((roots.own(4, true), roots.own(4, false)), (vec![], vec![0]));
        roots.note(4, &Event::Naming(2));
        roots.note(4, &Event::NotNamed(2));
        assert!(!roots.is_possible(RootId { worker: 4, number: 2 }));
    }
}
