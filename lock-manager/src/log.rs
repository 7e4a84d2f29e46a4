//! The log of a program on standard error. A log that cannot be written ends nothing and delays
//! nothing: its lines are lost.
//!
//! A thread of its own writes. Who logs puts lines into a bounded queue and goes on: a full disk, a
//! closed pipe, or a pipe that nobody empties costs lines, never a grant or a heartbeat.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written at most.
const QUEUED_MAX: usize = 1024;
/// How long the end of the program waits for lines that are not written yet.
const LAST_LINES_MS: u64 = 500;

/// The log of this program, until it is dropped: then what was logged is written, as far as
/// standard error takes it within half a second.
#[derive(Debug)]
#[must_use = "dropped, nothing is logged any more"]
pub struct Log {
    queue: Queue,
    ended: Receiver<()>,
}

impl Log {
    /// Logs to standard error what `RUST_LOG` asks for, or lines of INFO and above.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn to_stderr() -> io::Result<Self> {
        let log = Self::to(io::stderr())?;
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        let lines = tracing_subscriber::fmt().with_env_filter(filter);
        // A program has one log. Errors of the log have no place where they could be told.
        let lines = lines.with_writer(log.queue.clone()).log_internal_errors(false);
        let _ = lines.try_init();
        Ok(log)
    }

    fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, lines) = sync_channel(QUEUED_MAX);
        let (last, ended) = sync_channel(1);
        let lost = Arc::new(Mutex::new(0));
        let queue = Queue { lines: sender, lost: Arc::clone(&lost) };
        let write = move || {
            write_all(&lines, &lost, output);
            let _ = last.send(());
        };
        std::thread::Builder::new().name("rackline-log".to_owned()).spawn(write)?;
        Ok(Self { queue, ended })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.put(None);
        // Not for ever: standard error may be a pipe that nobody empties.
        let _ = self.ended.recv_timeout(Duration::from_millis(LAST_LINES_MS));
    }
}

/// Until the end is in the queue.
fn write_all(lines: &Receiver<Option<Vec<u8>>>, lost: &Mutex<u64>, mut output: impl Write) {
    while let Ok(Some(line)) = lines.recv() {
        // Not written is lost: there is nobody to tell.
        let _ = output.write_all(&line);
        let missing = std::mem::take(&mut *lost.lock().unwrap_or_else(PoisonError::into_inner));
        if missing > 0 {
            let _ =
                writeln!(output, "{missing} lines of this log were lost: it was read too slowly");
        }
    }
}

/// The way into the queue of lines.
#[derive(Clone, Debug)]
struct Queue {
    lines: SyncSender<Option<Vec<u8>>>,
    lost: Arc<Mutex<u64>>,
}

impl Queue {
    fn put(&self, line: Option<Vec<u8>>) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            *self.lost.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Queue;

    fn make_writer(&'a self) -> Queue {
        self.clone()
    }
}

impl Write for Queue {
    /// A whole line: `tracing` writes each in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(Some(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// An output that waits for a word before each line.
    struct Slow(Receiver<()>, Arc<Mutex<Vec<String>>>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_log_that_is_not_read_and_what_is_lost_is_counted() {
        let (go_on, gate) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let log = Log::to(Slow(gate, Arc::clone(&written))).unwrap();
        let lines = QUEUED_MAX + 10;
        for number in 0..lines {
            log.queue.clone().write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        drop(go_on);
        while written.lock().unwrap().len() < QUEUED_MAX {
            std::thread::yield_now();
        }
        drop(log);
        let written = written.lock().unwrap().concat();
        let (first, told) = (written.lines().next().unwrap(), written.contains("were lost"));
        assert_eq!((first, told), ("0", true), "{written}");
    }

    #[test]
    fn what_was_logged_is_written_before_the_log_ends() {
        let (go_on, gate) = channel();
        drop(go_on);
        let written = Arc::new(Mutex::new(Vec::new()));
        let log = Log::to(Slow(gate, Arc::clone(&written))).unwrap();
        log.queue.clone().write_all(b"last\n").unwrap();
        drop(log);
        assert_eq!(*written.lock().unwrap(), ["last\n"]);
    }
}
