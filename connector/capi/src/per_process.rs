//! Values of which every process has its own: a child of `fork` begins without them.
//!
//! - **CAPI-I10** A child never touches a lock of its parent. It has the memory as the fork found
//!   it, and a lock that another thread of the parent held at that moment stays held in the child.
//!
//! So a thread that looks for the value of its process takes no lock, and waits for no thread that
//! makes one. The values form a list that only grows, each with the mark of the process that made
//! it. They are never freed.
#![expect(unsafe_code, reason = "values that live as long as the program, by their address")]
#![expect(clippy::disallowed_types, reason = "an address in private memory")]

use std::sync::atomic::{AtomicPtr, Ordering};

use cxl_shm::fork::ProcessMark;

/// A place for a value of each process.
#[derive(Debug)]
pub(crate) struct PerProcess<T: Send + Sync + 'static> {
    newest: AtomicPtr<Node<T>>,
}

#[derive(Debug)]
struct Node<T: 'static> {
    process: ProcessMark,
    value: T,
    older: Option<&'static Self>,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { newest: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn newest(&self) -> Option<&'static Node<T>> {
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: null, or the address of a node that `made` has put here, made before the release
        // which this acquires. It is neither changed nor freed after that.
        unsafe { newest.as_ref() }
    }

    fn nodes(&self) -> impl Iterator<Item = &'static Node<T>> {
        std::iter::successors(self.newest(), |node| node.older)
    }

    /// That of this process, if it has one.
    pub(crate) fn get(&self) -> Option<&'static T> {
        let process = ProcessMark::of_this();
        self.nodes().find(|node| node.process == process).map(|node| &node.value)
    }

    /// Those of the processes of which this one is a child, of the nearest first.
    pub(crate) fn of_ancestors(&self) -> impl Iterator<Item = &'static T> {
        let process = ProcessMark::of_this();
        self.nodes().filter(move |node| node.process != process).map(|node| &node.value)
    }

    /// That of this process. Threads that make one at the same time have the same.
    pub(crate) fn made(&self, make: impl Fn() -> T) -> &'static T {
        loop {
            let older = self.newest();
            if let Some(value) = self.get() {
                return value;
            }
            let node = Box::new(Node { process: ProcessMark::of_this(), value: make(), older });
            let current =
                older.map_or(std::ptr::null_mut(), |node| std::ptr::from_ref(node).cast_mut());
            let node = Box::into_raw(node);
            let put =
                self.newest.compare_exchange(current, node, Ordering::AcqRel, Ordering::Acquire);
            if put.is_err() {
                // SAFETY: from `into_raw` above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(node) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn threads_that_make_one_at_once_have_the_same() {
        static PLACE: PerProcess<u64> = PerProcess::new();
        assert!(PLACE.get().is_none());
        let all = Barrier::new(4);
        let made = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..4)
                .map(|number| {
                    let all = &all;
                    scope.spawn(move || {
                        // All have looked before one makes.
                        let make = || {
                            all.wait();
                            number
                        };
                        std::ptr::from_ref(PLACE.made(make)).addr()
                    })
                })
                .collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(made.windows(2).all(|pair| pair[0] == pair[1]));
        assert_eq!(PLACE.get(), Some(PLACE.made(|| unreachable!())));
        assert_eq!(PLACE.of_ancestors().count(), 0);
    }

    #[test]
    fn who_makes_one_keeps_nobody() {
        static PLACE: PerProcess<u64> = PerProcess::new();
        let (begun, go_on) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                PLACE.made(|| {
                    begun.wait();
                    go_on.wait();
                    1
                })
            });
            begun.wait();
            // As a child would that was forked now: the other thread does not continue.
            assert_eq!(PLACE.get(), None);
            assert_eq!(*PLACE.made(|| 2), 2);
            go_on.wait();
        });
        assert_eq!(PLACE.get(), Some(&2));
    }
}
