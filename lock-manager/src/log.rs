//! The log of a program on standard error. A log that cannot be written ends nothing and delays
//! nothing: its lines are lost. A thread of its own writes ([`cxl_shm::log_thread`]).

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use cxl_shm::log_thread::{LogLines, LogThread};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How a program logs.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogOptions {
    /// The form of the log's lines on standard error. RUST_LOG says which lines there are.
    #[arg(long, value_enum, value_name = "FORM", default_value_t, env = "RACKLINE_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// The form of a line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, with "timestamp", "level", "target" and "fields". The error that
    /// ends the program is a line, too.
    Json,
}

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
    pub fn to_stderr(format: LogFormat) -> io::Result<Self> {
        let thread = match format {
            LogFormat::Text => LogThread::start(io::stderr()),
            LogFormat::Json => LogThread::start_telling(io::stderr(), lost_as_json),
        }?;
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        // Logs go to journals and files: whether another crate asks for colours changes nothing.
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
        // A program has one log. Errors of the log have no place where they could be told.
        let writer = Writer(thread.lines().clone());
        let lines = lines.with_writer(writer).log_internal_errors(false);
        let _ = match format {
            LogFormat::Text => lines.try_init(),
            LogFormat::Json => lines.json().try_init(),
        };
        Ok(Self { _thread: thread })
    }
}

/// The line for lines that were lost. The thread of the log has no time of its own.
fn lost_as_json(lines: u64) -> String {
    format!(
        "{{\"level\":\"WARN\",\"target\":\"log\",\"fields\":{{\"message\":\"lines of this log were \
         lost: it was read too slowly\",\"lines\":{lines}}}}}"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_lines_are_told_as_json() {
        let line: serde_json::Value = serde_json::from_str(&lost_as_json(7)).unwrap();
        assert_eq!((&line["level"], &line["fields"]["lines"]), (&"WARN".into(), &7.into()));
    }
}
