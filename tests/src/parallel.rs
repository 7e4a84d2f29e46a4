//! Independent pieces of work on several threads.

use std::sync::{Mutex, PoisonError};

/// Calls `act` for each of `items` on `threads` threads, in order as far as several at a time can
/// be. The answers are in the order of the items.
///
/// # Panics
/// As `act` does.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    act: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = Mutex::new(0..items.len());
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        let mut done = Vec::new();
        while let Some(index) = take() {
            done.push((index, act(&items[index])));
        }
        done
    };
    let mut answers: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().flat_map(join).collect()
    });
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..1000).collect();
        assert_eq!(
            in_parallel(&items, 4, |item| item * 2),
            (0..2000).step_by(2).collect::<Vec<_>>()
        );
    }
}
