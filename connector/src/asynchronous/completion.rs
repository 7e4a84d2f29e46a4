//! The result of a transfer, some time later.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use cxl_shm::clock::{Clock as _, SystemClock};

use super::desk::Guest;
use super::request::Request;

/// There is no result: it was taken before, the transfer was cancelled, or the thread that worked
/// on it panicked (which was printed) and what the transfer owned is gone with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the transfer has no result: the result was already taken, the transfer was cancelled, or its \
     thread panicked"
)]
pub struct Lost;

/// A transfer under way: polled, waited for, or awaited as a [`Future`] of any executor.
///
/// Dropping it does not stop the transfer; its result, and the buffers with it, are dropped when it
/// is done.
///
/// # Example
/// ```
/// # fn example(lookup: rackline::Completion<u32>) -> Result<(), rackline::Lost> {
/// let found = match lookup.poll()? {
///     Some(found) => found,
///     None => lookup.wait()?, // or do something else first, and poll again
/// };
/// # Ok(())
/// # }
/// ```
#[must_use = "the result, and the buffers with it, come from here"]
pub struct Completion<T> {
    receiver: oneshot::Receiver<T>,
    share: Share,
}

/// What a waiting thread may do itself of a transfer. Clones are of the same transfer.
#[derive(Clone)]
pub struct Share {
    request: Arc<dyn Request>,
    /// None for work that only a thread of the pool does.
    guest: Option<Arc<Guest>>,
}

impl Share {
    /// Does a piece of the transfer on this thread, if there is one that no thread has begun: `false`
    /// when there is none, when another thread works at the desk for waiting threads, for transfers of
    /// GPUs, and for publishes by layers. It may take as long as a publish waits for memory.
    #[must_use]
    pub fn work(&self) -> bool {
        self.guest.as_ref().is_some_and(|guest| guest.work_on(&self.request))
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").finish_non_exhaustive()
    }
}

impl<T> Completion<T> {
    /// The completion of `request`, which tells its result to `receiver`; with the desk at which a
    /// waiting thread may work on it.
    pub(super) fn new(
        receiver: oneshot::Receiver<T>,
        request: Arc<dyn Request>,
        guest: Option<Arc<Guest>>,
    ) -> Self {
        Self { receiver, share: Share { request, guest } }
    }

    /// A transfer that was begun, and what completes it.
    #[cfg(test)]
    pub(super) fn begun() -> (oneshot::Sender<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self::new(receiver, Arc::new(Begun), None))
    }

    /// What this thread may do of it, while another polls it.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share.clone()
    }

    /// Revokes the transfer if nothing of it was begun: `true` means that it never will be, and
    /// that what was given to it is dropped. Else it continues as if nothing had happened.
    #[must_use]
    pub fn cancel(&self) -> bool {
        self.share.request.revoke()
    }

    /// The result, or `None` while the transfer is under way. Never waits.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn poll(&self) -> Result<Option<T>, Lost> {
        match self.receiver.try_recv() {
            Ok(result) => Ok(Some(result)),
            Err(oneshot::TryRecvError::Empty) => Ok(None),
            Err(oneshot::TryRecvError::Disconnected) => Err(Lost),
        }
    }

    /// The result, or `None` when it does not come within `timeout`. Leaves the work to the threads of
    /// the pool: a piece of it may take longer.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<T>, Lost> {
        self.park(Some(timeout))
    }

    /// Waits for the result. What no thread has begun this thread does itself, where it can
    /// ([`Share::work`]).
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait(mut self) -> Result<T, Lost> {
        while self.share.work() {}
        self.park(None)?.ok_or(Lost)
    }

    /// Waits as a task of an executor does: the receiver's own waits panic once it was awaited.
    fn park(&mut self, timeout: Option<Duration>) -> Result<Option<T>, Lost> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let clock = SystemClock::start();
        loop {
            if let Poll::Ready(result) = Future::poll(Pin::new(&mut *self), &mut context) {
                return result.map(Some);
            }
            let Some(timeout) = timeout else {
                thread::park();
                continue;
            };
            let left = timeout.saturating_sub(Duration::from_millis(clock.now_ms()));
            if left.is_zero() {
                return Ok(None);
            }
            thread::park_timeout(left);
        }
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<T> Future for Completion<T> {
    type Output = Result<T, Lost>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.get_mut().receiver).poll(context).map_err(|_| Lost)
    }
}

/// Work that was taken up.
#[cfg(test)]
struct Begun;

#[cfg(test)]
impl Request for Begun {
    fn take(self: Arc<Self>) -> Option<super::request::Taken> {
        None
    }

    fn is_taken_up(&self) -> bool {
        true
    }

    fn revoke(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_had_once() {
        let (sender, mut completion) = Completion::begun();
        assert_eq!(completion.poll(), Ok(None));
        assert_eq!(completion.wait_timeout(Duration::ZERO), Ok(None));
        sender.send(7).unwrap();
        assert_eq!(completion.wait_timeout(Duration::ZERO), Ok(Some(7)));
        assert_eq!(completion.poll(), Err(Lost));
    }

    #[test]
    fn what_was_awaited_may_be_waited_for() {
        let (sender, mut completion) = Completion::begun();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Future::poll(Pin::new(&mut completion), &mut context).is_pending());
        assert_eq!(completion.wait_timeout(Duration::ZERO), Ok(None));
        assert_eq!(completion.wait_timeout(Duration::from_millis(20)), Ok(None));
        let sends = std::thread::spawn(move || sender.send(7).unwrap());
        assert_eq!(completion.wait(), Ok(7));
        sends.join().unwrap();
    }

    #[test]
    fn what_was_awaited_to_its_end_is_not_there_again() {
        let (sender, mut completion) = Completion::begun();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Future::poll(Pin::new(&mut completion), &mut context).is_pending());
        sender.send(7).unwrap();
        let awaited = Future::poll(Pin::new(&mut completion), &mut context);
        assert_eq!(awaited, Poll::Ready(Ok(7)));
        assert_eq!(completion.wait_timeout(Duration::MAX), Err(Lost));
        assert_eq!(completion.wait(), Err(Lost));
    }

    #[test]
    fn a_transfer_whose_thread_is_gone_says_so() {
        let (sender, completion) = Completion::<()>::begun();
        drop(sender);
        assert_eq!(completion.poll(), Err(Lost));
        assert_eq!(completion.wait(), Err(Lost));
    }

    #[test]
    fn a_completion_is_a_future() {
        let (sender, mut completion) = Completion::begun();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut completion).as_mut().poll(&mut context).is_pending());
        sender.send("done").unwrap();
        let done = Future::poll(Pin::new(&mut completion), &mut context);
        assert_eq!(done, Poll::Ready(Ok("done")));
    }
}
