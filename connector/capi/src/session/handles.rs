//! Handles: numbers by which C names what it has open (CAPI-I5).
//!
//! A table a process says what each number stands for. Numbers are not used again, so one that was
//! closed is found out, however often and by whichever thread it is closed or used; and what a call
//! works with stays alive until the call returns, also when another thread closes it meanwhile.
//!
//! A child made by `fork` has a table of its own, made when it attaches: the parent's is never
//! touched (CAPI-I10), except for the last number that it had given, behind which those of the
//! child begin.
#![expect(clippy::disallowed_types, reason = "a number in private memory")]

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackline::memory::Lending;

use super::error::{Failure, RacklineError, code};
use crate::per_process::PerProcess;

/// Something that C has open.
pub(super) trait Opened: Any + Send + Sync {
    /// What it is called in messages, with its article.
    const KIND: &'static str;
}

struct Entry {
    kind: &'static str,
    opened: Arc<dyn Any + Send + Sync>,
}

/// What a process has open, and what memory it has lent.
struct Table {
    open: Mutex<HashMap<u64, Entry>>,
    /// The last number that was given.
    last: AtomicU64,
    lending: Arc<Lending>,
}

static TABLE: PerProcess<Table> = PerProcess::new();

impl Table {
    fn new() -> Self {
        // A child does not give the numbers of its parent to something else.
        let of_ancestors = TABLE.of_ancestors().map(|table| table.last.load(Ordering::Relaxed));
        let last = of_ancestors.max().unwrap_or_else(|| u64::from(std::process::id()) << 40);
        Self { open: Mutex::default(), last: last.into(), lending: Arc::default() }
    }

    /// That of this process, if it has one.
    fn of_this_process() -> Result<&'static Self, Failure> {
        TABLE.get().ok_or_else(|| match TABLE.of_ancestors().next() {
            None => Failure::new(
                RacklineError::BadHandle,
                "nothing is open: call rackline_pool_attach first",
            ),
            // CAPI-I8.
            Some(_) => Failure::new(
                RacklineError::Forked,
                "this process is a forked child of the process that attached: attach again in the \
                 child",
            ),
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory that this process has lent.
pub(super) fn lending() -> Result<&'static Arc<Lending>, Failure> {
    Table::of_this_process().map(|table| &table.lending)
}

/// Opens something. Its number is never 0.
pub(super) fn open<T: Opened>(opened: T) -> u64 {
    let table = TABLE.made(Table::new);
    let number = table.last.fetch_add(1, Ordering::Relaxed) + 1;
    table.open().insert(number, Entry { kind: T::KIND, opened: Arc::new(opened) });
    number
}

/// What `number` stands for: kept until the caller drops it, also when others close it (CAPI-I6).
pub(super) fn get<T: Opened>(number: u64) -> Result<Arc<T>, Failure> {
    let open = Table::of_this_process()?.open();
    let entry = open.get(&number).ok_or_else(|| not_open::<T>(number))?;
    let (kind, opened) = (entry.kind, Arc::clone(&entry.opened));
    drop(open);
    opened.downcast().map_err(|_| other_kind::<T>(number, kind))
}

/// Closes `number`, and says what it stood for. One number is closed once.
pub(super) fn close<T: Opened>(number: u64) -> Result<Arc<T>, Failure> {
    let mut open = Table::of_this_process()?.open();
    let kind = open.get(&number).ok_or_else(|| not_open::<T>(number))?.kind;
    if kind != T::KIND {
        return Err(other_kind::<T>(number, kind));
    }
    let entry = open.remove(&number).ok_or_else(|| not_open::<T>(number))?;
    drop(open);
    entry.opened.downcast().map_err(|_| other_kind::<T>(number, kind))
}

/// Closes `number`, unless it is 0, and has `end` end what it stood for.
pub(super) fn free<T: Opened>(number: u64, end: impl FnOnce(&T)) -> RacklineError {
    code(|| {
        if number != 0 {
            end(&*close::<T>(number)?);
        }
        Ok(())
    })
}

fn not_open<T: Opened>(number: u64) -> Failure {
    let message = if number == 0 {
        format!("the handle of {} is zero: the call that was to make it failed", T::KIND)
    } else {
        format!("{number:#x} is not open: it was freed or closed, or is no handle of {}", T::KIND)
    };
    Failure::new(RacklineError::BadHandle, message)
}

fn other_kind<T: Opened>(number: u64, kind: &str) -> Failure {
    let message = format!("{number:#x} is the handle of {kind}, not of {}", T::KIND);
    Failure::new(RacklineError::BadHandle, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Spoon(u32);
    #[derive(Debug, PartialEq)]
    struct Fork;

    impl Opened for Spoon {
        const KIND: &'static str = "a spoon";
    }
    impl Opened for Fork {
        const KIND: &'static str = "a fork";
    }

    #[test]
    fn what_is_open_is_found_by_its_kind_until_it_is_closed() {
        let (one, two) = (open(Spoon(1)), open(Spoon(2)));
        assert_ne!(one, two);
        assert_eq!(*get::<Spoon>(two).unwrap(), Spoon(2));
        for failure in [get::<Fork>(one).unwrap_err(), close::<Fork>(one).unwrap_err()] {
            assert_eq!(failure.code, RacklineError::BadHandle);
            assert!(failure.message.to_str().unwrap().ends_with("a spoon, not of a fork"));
        }
        let in_use = get::<Spoon>(one).unwrap();
        assert_eq!(*close::<Spoon>(one).unwrap(), Spoon(1));
        assert_eq!(close::<Spoon>(one).unwrap_err().code, RacklineError::BadHandle);
        assert_eq!(get::<Spoon>(one).unwrap_err().code, RacklineError::BadHandle);
        assert_eq!(*in_use, Spoon(1), "what a call works with stays");
        assert_eq!(get::<Spoon>(0).unwrap_err().code, RacklineError::BadHandle);
        assert_eq!(*get::<Spoon>(two).unwrap(), Spoon(2));
        close::<Spoon>(two).unwrap();
    }

    #[test]
    fn of_threads_that_close_one_number_one_does() {
        let number = open(Fork);
        let closed = std::thread::scope(|scope| {
            let closers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| close::<Fork>(number).is_ok())).collect();
            closers.into_iter().map(|closer| closer.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(closed.iter().filter(|closed| **closed).count(), 1);
    }
}
