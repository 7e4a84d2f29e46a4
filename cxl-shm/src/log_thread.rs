//! A thread that writes the log of a program, so that the threads that log never wait.
//!
//! A thread that logs puts its line into a bounded queue and continues. A full disk, a closed pipe,
//! or a pipe that nobody empties costs lines, never a grant or a heartbeat. Lines that do not fit
//! into the queue are counted, and the log tells their number.
#![expect(unsafe_code, reason = "functions of the C library: signals, and the end of a program")]

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Lines that wait to be written at most.
pub const QUEUED_LINES_MAX: usize = 1024;
/// How long [`LogThread::end`] waits for lines that are not written yet.
const LAST_LINES_MS: u64 = 500;

/// The thread that writes a log, until it is ended or dropped.
#[derive(Debug)]
#[must_use = "dropped, nothing is logged any more"]
pub struct LogThread {
    lines: LogLines,
    ended: Mutex<Receiver<()>>,
}

impl LogThread {
    /// Starts the thread, which writes to `output`. No signal is delivered to it: a write to a pipe
    /// without a reader is an error there, and does not end the program.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let told = |lost| format!("{lost} lines of this log were lost: it was read too slowly");
        Self::start_telling(output, told)
    }

    /// As [`start`](Self::start). `told` is the line, without its end, for so many lines that were
    /// lost.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start_telling(
        output: impl Write + Send + 'static,
        told: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, queued) = sync_channel(QUEUED_LINES_MAX);
        let (last, ended) = sync_channel(1);
        let lost = Arc::new(Mutex::new(0));
        let lines = LogLines { queue: sender, lost: Arc::clone(&lost) };
        let write = move || {
            // Without that, SIGPIPE could end the program: then nothing is written.
            if block_signals() {
                write_all(&queued, &lost, output, told);
            }
            let _ = last.send(());
        };
        std::thread::Builder::new().name("rackline-log".to_owned()).spawn(write)?;
        Ok(Self { lines, ended: Mutex::new(ended) })
    }

    /// The way into the queue of this thread.
    #[must_use]
    pub fn lines(&self) -> &LogLines {
        &self.lines
    }

    /// Ends the log. Lines that were put before are written, as far as the output takes them within
    /// half a second. Later lines are lost.
    pub fn end(&self) {
        self.lines.queue(None);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // Not for ever: the output may be a pipe that nobody empties.
        let _ = ended.recv_timeout(Duration::from_millis(LAST_LINES_MS));
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.end();
    }
}

/// The way into the queue of a [`LogThread`].
#[derive(Clone, Debug)]
pub struct LogLines {
    queue: SyncSender<Option<Vec<u8>>>,
    lost: Arc<Mutex<u64>>,
}

impl LogLines {
    /// Puts a whole line, with the line feed at its end. Never waits for the output.
    pub fn put(&self, line: Vec<u8>) {
        self.queue(Some(line));
    }

    fn queue(&self, line: Option<Vec<u8>>) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(line) {
            *self.lost.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }
}

/// Until the end is in the queue.
fn write_all(
    lines: &Receiver<Option<Vec<u8>>>,
    lost: &Mutex<u64>,
    mut output: impl Write,
    told: impl Fn(u64) -> String,
) {
    while let Ok(Some(line)) = lines.recv() {
        // Not written is lost: there is nobody to tell.
        let _ = output.write_all(&line);
        let missing = std::mem::take(&mut *lost.lock().unwrap_or_else(PoisonError::into_inner));
        if missing > 0 {
            let _ = writeln!(output, "{}", told(missing));
        }
    }
}

/// Has no signal delivered to this thread from now on. Returns whether that worked.
fn block_signals() -> bool {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` makes the set before `pthread_sigmask` reads it, and both places are
    // ours. The mask of signals is of this thread alone, which the library started.
    let filled = unsafe { libc::sigfillset(all.as_mut_ptr()) } == 0;
    // SAFETY: `all` was filled by the call before, else this one is not made; no old mask is asked
    // for.
    filled
        && unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut()) }
            == 0
}

/// Has `act` called when the program ends by `exit`, or returns from `main`. Returns whether it
/// will be.
pub fn at_exit(act: extern "C" fn()) -> bool {
    // SAFETY: a function of this program, which cannot unwind into the C library.
    unsafe { libc::atexit(act) == 0 }
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
        let log = LogThread::start(Slow(gate, Arc::clone(&written))).unwrap();
        let lines = QUEUED_LINES_MAX + 10;
        for number in 0..lines {
            log.lines().put(format!("{number}\n").into_bytes());
        }
        drop(go_on);
        while written.lock().unwrap().len() < QUEUED_LINES_MAX {
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
        let log = LogThread::start(Slow(gate, Arc::clone(&written))).unwrap();
        log.lines().put(b"last\n".to_vec());
        drop(log);
        assert_eq!(*written.lock().unwrap(), ["last\n"]);
    }
}
