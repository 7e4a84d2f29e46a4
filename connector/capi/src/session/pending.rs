//! A transfer under way, for any number of threads that wait for it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use cxl_shm::clock::{Clock as _, SystemClock};
use rackline::Completion;

use super::error::{Failure, RacklineError};

/// A wait without a limit, in milliseconds.
pub const RACKLINE_FOREVER_MS: u64 = u64::MAX;

/// A result that is taken once, by whichever thread; any number may wait, and none of them keeps
/// another that only looks.
pub(super) struct Pending<T> {
    /// `None` when there is no result to come: it was taken, or the transfer was cancelled.
    completion: Mutex<Option<Completion<T>>>,
    bell: Arc<Bell>,
}

/// Rings when there is something new about a transfer. Apart from the completion, whose lock is
/// held while it is polled, and which may ring there and then.
#[derive(Default)]
struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    fn rings(&self) -> u64 {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.rung.notify_all();
    }

    /// Until it has rung more often than `heard`, or that time is over.
    fn wait(&self, heard: u64, timeout: Option<Duration>) {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = |rings: &mut u64| *rings == heard;
        // Poisoned or not, the waiting thread looks again.
        match timeout {
            None => drop(self.rung.wait_while(rings, silent)),
            Some(timeout) => drop(self.rung.wait_timeout_while(rings, timeout, silent)),
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

impl<T> From<Completion<T>> for Pending<T> {
    fn from(completion: Completion<T>) -> Self {
        Self { completion: Mutex::new(Some(completion)), bell: Arc::default() }
    }
}

impl<T> Pending<T> {
    /// The result, when it comes within `timeout_ms`; [`RACKLINE_FOREVER_MS`] has no end, 0 only
    /// looks.
    pub(super) fn wait(&self, timeout_ms: u64) -> Result<T, Failure> {
        const UNDER_WAY: Failure =
            Failure::usual(RacklineError::UnderWay, c"the transfer is still under way");
        let clock = SystemClock::start();
        loop {
            let heard = self.bell.rings();
            if let Some(result) = self.advance() {
                return result;
            }
            if timeout_ms == RACKLINE_FOREVER_MS {
                self.bell.wait(heard, None);
                continue;
            }
            let left_ms = timeout_ms.saturating_sub(clock.now_ms());
            if left_ms == 0 {
                return Err(UNDER_WAY);
            }
            self.bell.wait(heard, Some(Duration::from_millis(left_ms)));
        }
    }

    /// Revokes the transfer if nothing of it was begun. After `true` what was lent to it is not
    /// touched any more, and it has no result.
    pub(super) fn cancel(&self) -> bool {
        let mut place = self.completion.lock().unwrap_or_else(PoisonError::into_inner);
        let cancelled = place.take_if(|completion| completion.cancel());
        drop(place);
        if cancelled.is_some() {
            self.bell.ring();
        }
        cancelled.is_some()
    }

    /// Cancels the transfer, or waits until it is done; drops its result. After return what was
    /// lent to it is not touched any more.
    pub(super) fn finish(&self) {
        if !self.cancel() {
            // Without a result it is over, too.
            let _ = self.wait(RACKLINE_FOREVER_MS);
        }
    }

    /// The result, if the transfer is over, or why there is none. Else the bell rings when it is.
    fn advance(&self) -> Option<Result<T, Failure>> {
        const NO_RESULT: Failure = Failure::usual(
            RacklineError::NoResult,
            c"the transfer has no result: the result was already taken, the transfer was \
              cancelled, or its thread panicked",
        );
        let mut place = self.completion.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(completion) = place.as_mut() else { return Some(Err(NO_RESULT)) };
        let waker = Waker::from(Arc::clone(&self.bell));
        let polled = Future::poll(std::pin::Pin::new(completion), &mut Context::from_waker(&waker));
        let Poll::Ready(result) = polled else { return None };
        *place = None;
        drop(place);
        // Others may wait for what is taken here, and one that is done in the moment in which a
        // waker takes the place of another wakes nobody.
        self.bell.ring();
        Some(result.map_err(|_| NO_RESULT))
    }
}
