//! Lookups that wait for blocks on drives, and prefetches: one thread polls all of them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::desk::Desk;
use super::prefetch::NewPrefetch;
use super::request::{Request, Taken};
use crate::options::SessionOptions;
use crate::session::{RestoreReport, Restoring, Session, SessionError};

/// How often a lookup is polled.
const POLL: Duration = Duration::from_millis(1);

/// Looks up, and asks for nothing yet.
pub(super) type Begin = Box<dyn FnOnce(&Session<'_>) -> Result<Restoring, SessionError> + Send>;
/// Takes the result.
pub(super) type Tell = oneshot::Sender<Result<RestoreReport, SessionError>>;

/// Work on its way to the thread.
pub(super) enum NewWork {
    Lookup(NewRestore),
    Prefetch(NewPrefetch),
}

/// A lookup on its way to the thread.
pub(super) struct NewRestore {
    pub(super) begin: Begin,
    pub(super) options: SessionOptions,
    pub(super) tell: Tell,
    pub(super) cancelled: Arc<Cancelled>,
}

/// Whether nobody wants the result any more.
#[derive(Debug, Default)]
pub(super) struct Cancelled(AtomicBool);

impl Request for Cancelled {
    fn take(self: Arc<Self>) -> Option<Taken> {
        None
    }

    fn is_taken_up(&self) -> bool {
        true
    }

    fn revoke(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// A lookup that waits.
struct UnderWay {
    restoring: Restoring,
    options: SessionOptions,
    /// `None` when the result was told.
    tell: Option<Tell>,
    cancelled: Arc<Cancelled>,
}

impl UnderWay {
    /// Goes on. Says whether it still waits.
    fn poll(&mut self, desk: &Desk<'_>, closing: bool) -> bool {
        let session = desk.session(desk.dma, self.options);
        let dropped = self.tell.as_ref().is_none_or(oneshot::Sender::is_closed);
        let unwanted = dropped || self.cancelled.0.load(Ordering::Relaxed);
        let outcome = if closing || unwanted {
            Some(session.stop_restore(&mut self.restoring))
        } else {
            session.poll_restore(&mut self.restoring).transpose()
        };
        let Some(outcome) = outcome else { return true };
        let tell = self.tell.take().filter(|_| !unwanted);
        // Nobody may be waiting any more: then what is held is released.
        drop(tell.map(|tell| tell.send(outcome)));
        false
    }
}

fn begin(desk: &Desk<'_>, new: NewRestore) -> Option<UnderWay> {
    let NewRestore { begin, options, tell, cancelled } = new;
    match begin(&desk.session(desk.dma, options)) {
        Ok(restoring) => Some(UnderWay { restoring, options, tell: Some(tell), cancelled }),
        Err(error) => {
            let _ = tell.send(Err(error));
            None
        }
    }
}

/// What does not return has no result; the thread goes on with all others.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    // As in `Desk::work_on`.
    std::panic::catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Prefetches of the process, while there is anything to do for them.
#[derive(Default)]
struct Prefetching {
    /// Of the last prefetch; `None` before the first, and when the process is no member any more.
    options: Option<SessionOptions>,
}

impl Prefetching {
    fn is_busy(&self, desk: &Desk<'_>) -> bool {
        self.options.is_some() && desk.prefetches.is_busy()
    }

    fn begin(&mut self, desk: &Desk<'_>, new: NewPrefetch) {
        let NewPrefetch { begin, options, untold } = new;
        self.options = Some(options);
        untold.begin(|| begin(&desk.session(desk.dma, options)));
    }

    fn poll(&mut self, desk: &Desk<'_>, closing: bool) {
        let Some(options) = self.options else { return };
        let session = desk.session(desk.dma, options);
        let polled = match closing {
            true => session.end_prefetches(),
            false => session.poll_prefetches().map(drop),
        };
        if polled.is_err() {
            self.options = None;
        }
    }
}

/// Until nothing more comes. Lookups that wait then end with what they have, and prefetches are taken
/// back.
pub(super) fn serve(desk: &Desk<'_>, queue: &Receiver<NewWork>) {
    let (mut under_way, mut prefetching): (Vec<UnderWay>, _) = (Vec::new(), Prefetching::default());
    loop {
        let new = if under_way.is_empty() && !prefetching.is_busy(desk) {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(POLL)
        };
        let closing = matches!(new, Err(RecvTimeoutError::Disconnected));
        for new in new.ok().into_iter().chain(queue.try_iter()) {
            match new {
                NewWork::Lookup(new) => {
                    under_way.extend(guarded(|| begin(desk, new)).flatten());
                }
                NewWork::Prefetch(new) => _ = guarded(|| prefetching.begin(desk, new)),
            }
        }
        if prefetching.is_busy(desk) {
            guarded(|| prefetching.poll(desk, closing));
        }
        under_way.retain_mut(|it| guarded(|| it.poll(desk, closing)).unwrap_or(false));
        if closing {
            return;
        }
    }
}
