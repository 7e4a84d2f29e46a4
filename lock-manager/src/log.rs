//! The log of a program on standard error. A log that cannot be written ends nothing and delays
//! nothing: its lines are lost. A thread of its own writes ([`cxl_shm::log_thread`]).

use std::io::{self, Write};

use cxl_shm::log_thread::{LogLines, LogThread};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The log of this program, until it is dropped: then what was logged is written, as far as
/// standard error takes it within half a second.
#[derive(Debug)]
#[must_use = "dropped, nothing is logged any more"]
pub struct Log {
    _thread: LogThread,
}

impl Log {
    /// Logs to standard error what `RUST_LOG` asks for, or lines of INFO and above.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn to_stderr() -> io::Result<Self> {
        let thread = LogThread::start(io::stderr())?;
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        let lines = tracing_subscriber::fmt().with_env_filter(filter);
        // A program has one log. Errors of the log have no place where they could be told.
        let writer = Writer(thread.lines().clone());
        let lines = lines.with_writer(writer).log_internal_errors(false);
        let _ = lines.try_init();
        Ok(Self { _thread: thread })
    }
}

/// Takes the lines of `tracing`.
#[derive(Clone, Debug)]
struct Writer(LogLines);

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Writer;

    fn make_writer(&'a self) -> Writer {
        self.clone()
    }
}

impl Write for Writer {
    /// A whole line: `tracing` writes each in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
