//! What the thread that fetches layers is to fetch: the layer that the engine needs soonest first
//! (PLAN-X2).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, unbounded};

/// The waiting entries, by layer, and those of one layer in the order in which they came.
type Waiting<T> = Arc<Mutex<BTreeMap<(u16, u64), T>>>;

/// The end that adds. When it is dropped, the other end takes what waits and ends.
#[derive(Debug)]
pub(super) struct Adding<T> {
    waiting: Waiting<T>,
    /// One message an entry: the other end sleeps without one.
    added: Sender<()>,
    next: u64,
}

/// The end that takes.
#[derive(Debug)]
pub(super) struct Taking<T> {
    waiting: Waiting<T>,
    added: Receiver<()>,
}

/// An empty queue.
pub(super) fn by_layer<T>() -> (Adding<T>, Taking<T>) {
    let waiting = Waiting::default();
    let (added, told) = unbounded();
    (Adding { waiting: Arc::clone(&waiting), added, next: 0 }, Taking { waiting, added: told })
}

impl<T> Adding<T> {
    /// Adds an entry for `layer`. Gives it back when the other end is gone.
    pub(super) fn add(&mut self, layer: u16, entry: T) -> Result<(), T> {
        let key = (layer, self.next);
        self.next += 1;
        lock(&self.waiting).insert(key, entry);
        if self.added.send(()).is_err() {
            return lock(&self.waiting).remove(&key).map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// Takes all entries back that the other end has not taken.
    pub(super) fn take_back(&self) -> Vec<T> {
        std::mem::take(&mut *lock(&self.waiting)).into_values().collect()
    }
}

impl<T> Taking<T> {
    /// The entry of the lowest layer; waits for one. `None` when no more will come.
    pub(super) fn take(&self) -> Option<T> {
        loop {
            self.added.recv().ok()?;
            // Without one it was taken back.
            if let Some((_, entry)) = lock(&self.waiting).pop_first() {
                return Some(entry);
            }
        }
    }
}

/// A panic between two uses leaves a whole map.
fn lock<T>(waiting: &Waiting<T>) -> MutexGuard<'_, BTreeMap<(u16, u64), T>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soonest_layer_is_taken_first() {
        let (mut adding, taking) = by_layer();
        // Two requests begin: the first offloads layers 1, 2 and 3, the second 5 and 6.
        for (layer, request) in [(1, 'a'), (2, 'a'), (5, 'b'), (6, 'b')] {
            adding.add(layer, (request, layer)).unwrap();
        }
        assert_eq!(taking.take(), Some(('a', 1)));
        // Layer 1 has executed: its buffer is free for layer 3.
        adding.add(3, ('a', 3)).unwrap();
        adding.add(5, ('c', 5)).unwrap();
        drop(adding);
        let rest: Vec<_> = std::iter::from_fn(|| taking.take()).collect();
        assert_eq!(rest, [('a', 2), ('a', 3), ('b', 5), ('c', 5), ('b', 6)]);
    }

    #[test]
    fn what_is_taken_back_is_not_taken() {
        let (mut adding, taking) = by_layer();
        adding.add(4, 4).unwrap();
        adding.add(2, 2).unwrap();
        assert_eq!(adding.take_back(), [2, 4]);
        adding.add(7, 7).unwrap();
        assert_eq!(taking.take(), Some(7));
        drop(taking);
        assert_eq!(adding.add(1, 1), Err(1), "nothing takes it");
    }
}
