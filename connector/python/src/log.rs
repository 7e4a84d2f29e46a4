//! The lines of the Rust libraries, on their way to Python's `logging`.
//!
//! - **PYTHON-Z1** A thread that logs puts a line into a bounded queue and continues. It never
//!   takes Python's lock, so it may be any thread, with or without that lock. When the queue is
//!   full, lines are lost, and counted.
//! - **PYTHON-Z2** A daemon thread of Python takes lines out (`rackline/log.py`). It waits without
//!   Python's lock. A program that ends waits for it no longer than a moment.
//! - **PYTHON-Z3** A child made by `fork` has neither that thread nor the right to its parent's
//!   queue. Its lines are dropped until it attaches to a pool itself, which gives it a queue and a
//!   thread of its own.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pyo3::prelude::*;
use rackline::ProcessMark;
use rackline::log::{LogLine, log_level, send_log};
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// Lines that wait for Python at most.
const QUEUED_MAX: usize = 1024;

/// The queue of this process, or of the one that it was forked from.
static QUEUE: RwLock<Option<Arc<Queue>>> = RwLock::new(None);

struct Queue {
    process: ProcessMark,
    /// `None` is the end.
    lines: SyncSender<Option<LogLine>>,
    waiting: Mutex<Receiver<Option<LogLine>>>,
    lost: Mutex<u64>,
}

impl Queue {
    fn put(&self, line: Option<LogLine>) {
        // PYTHON-Z1.
        if self.lines.try_send(line).is_err() {
            *self.lost.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }
}

/// The queue of this process. Never waits: another thread that is just giving this process its
/// queue may have been left behind by a fork.
fn own_queue() -> Option<Arc<Queue>> {
    let queue = QUEUE.try_read().ok()?.as_ref().map(Arc::clone)?;
    // PYTHON-Z3.
    queue.process.is_of_this().then_some(queue)
}

/// Gives this process a queue, unless it has one: then the answer is false. For `rackline/log.py`,
/// which starts the thread that empties it.
#[pyfunction]
pub(crate) fn begin_log() -> bool {
    if own_queue().is_some() {
        return false;
    }
    let (lines, waiting) = sync_channel(QUEUED_MAX);
    let process = ProcessMark::of_this();
    let queue = Queue { process, lines, waiting: Mutex::new(waiting), lost: Mutex::default() };
    // A fork in the middle of another thread's look leaves it locked for good: then this process
    // has no log of ours.
    let Ok(mut place) = QUEUE.try_write() else { return false };
    // What the parent queued is the parent's: its channel is left as the fork found it.
    std::mem::forget(place.replace(Arc::new(queue)));
    drop(place);
    let level = log_level(std::env::var("RACKLINE_LOG").ok().as_deref(), LevelFilter::INFO);
    let take = |line| {
        if let Some(queue) = own_queue() {
            queue.put(Some(line));
        }
    };
    // False in a child: the parent's is in force there, too.
    send_log(level, take);
    true
}

/// The next line, waited for: level as `logging` counts, part, text; `None` at the end.
#[pyfunction]
pub(crate) fn next_log_line(py: Python<'_>) -> Option<(u8, &'static str, String)> {
    let queue = own_queue()?;
    // PYTHON-Z2.
    let next = py.detach(|| {
        let waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.recv().ok().flatten()
    });
    let LogLine { level, target, mut text } = next?;
    let lost = std::mem::take(&mut *queue.lost.lock().unwrap_or_else(PoisonError::into_inner));
    if lost > 0 {
        text = format!("{text} [{lost} lines before this one were lost]");
    }
    Some((number_of(level), target, text))
}

/// Ends the log of this process: [`next_log_line`] gives what is queued, and then the end.
#[pyfunction]
pub(crate) fn end_log() {
    if let Some(queue) = own_queue() {
        queue.put(None);
    }
}

/// A level as `logging` numbers it.
fn number_of(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}
