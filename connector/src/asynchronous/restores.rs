//! Lookups that wait for blocks on drives: one thread polls all of them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::desk::Desk;
use super::request::{Request, Taken};
use crate::options::SessionOptions;
use crate::session::{RestoreReport, Restoring, Session, SessionError};

/// How often a lookup is polled.
const POLL: Duration = Duration::from_millis(1);

/// Looks up, and asks for nothing yet.
pub(super) type Begin = Box<dyn FnOnce(&Session<'_>) -> Result<Restoring, SessionError> + Send>;
/// Takes the result.
pub(super) type Tell = oneshot::Sender<Result<RestoreReport, SessionError>>;

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

/// Until nothing more comes. Lookups that wait then end with what they have.
pub(super) fn serve(desk: &Desk<'_>, queue: &Receiver<NewRestore>) {
    let mut under_way: Vec<UnderWay> = Vec::new();
    loop {
        let new = if under_way.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(POLL)
        };
        let closing = matches!(new, Err(RecvTimeoutError::Disconnected));
        let new = new.ok().into_iter().chain(queue.try_iter());
        under_way.extend(new.filter_map(|new| guarded(|| begin(desk, new)).flatten()));
        under_way.retain_mut(|it| guarded(|| it.poll(desk, closing)).unwrap_or(false));
        if closing {
            return;
        }
    }
}
