//! What the library has to say, on standard error.
//!
//! Warnings and errors, unless `RACKLINE_LOG` says otherwise: `off`, `error`, `warn`, `info`,
//! `debug` or `trace`. It is read when the process first attaches to a pool or a region.
//!
//! A thread of its own writes ([`cxl_shm::log_thread`]), one a process. So a standard error that is
//! full, or that nobody reads any more, neither delays nor ends the program. A child made by `fork`
//! has neither that thread nor the right to its parent's queue (CAPI-I10): its lines are lost until
//! it attaches by itself.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use cxl_shm::log_thread::{LogThread, at_exit};
use rackline::log::{LogLine, log_level, send_log};
use tracing::level_filters::LevelFilter;

use crate::per_process::PerProcess;

/// The log of each process; `None` where its thread could not be started.
static LOG: PerProcess<Option<LogThread>> = PerProcess::new();

/// Has the library's lines written, from the first call of this process on.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    LOG.made(|| LogThread::start(Stderr).ok());
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let asked = std::env::var("RACKLINE_LOG").ok();
    // A Rust program that uses this library, its tests above all, may have a log of its own.
    send_log(log_level(asked.as_deref(), LevelFilter::WARN), |line| {
        let LogLine { level, target, text } = line;
        if let Some(Some(log)) = LOG.get() {
            log.lines().put(format!("rackline: {level} {target}: {text}\n").into_bytes());
        }
    });
    // Where it is refused for want of memory, the last lines of the program may be lost.
    at_exit(end);
}

/// Called when the program ends, in a child of `fork`, too.
extern "C" fn end() {
    if let Some(Some(log)) = LOG.get() {
        log.end();
    }
}

/// Standard error without the lock of `std`, which a child of `fork` may find held.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(io::stderr(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
