//! What the library has to say, on standard error.
//!
//! Warnings and errors, unless `RACKLINE_LOG` says otherwise: `off`, `error`, `warn`, `info`, `debug` or
//! `trace`. It is read when the process first attaches to a pool or a region. Each line is written by one
//! system call and takes no lock, so that a child made by `fork` cannot find one held (I10).

use std::sync::atomic::{AtomicBool, Ordering};

use connector::log::{LogLine, log_level, send_log};
use tracing::level_filters::LevelFilter;

/// Has the library's lines written, from the first call on.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let asked = std::env::var("RACKLINE_LOG").ok();
    // A Rust program that uses this library, its tests above all, may have a log of its own.
    send_log(log_level(asked.as_deref(), LevelFilter::WARN), |line| {
        let LogLine { level, target, text } = line;
        let line = format!("rackline: {level} {target}: {text}\n");
        // Where it cannot be written, there is nobody to tell.
        let _ = rustix::io::write(std::io::stderr(), line.as_bytes());
    });
}
