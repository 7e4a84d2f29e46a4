//! The file of the slack table. It is beside the files of a folder, so its device may not answer: a thread
//! of its own reads and writes it, and the thread that backs up waits for neither (AGENT-B6).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use crate::schedule::SlackTable;

/// Name of the file.
const FILE: &str = "slack";
/// How often the table is written, when it has learned something, in microseconds.
const KEEP_US: u64 = 60_000_000;
/// How long an agent that stops waits for the file.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// The table in the file, as it was and as it becomes.
#[derive(Debug)]
pub(super) struct KeptSlack {
    path: PathBuf,
    /// What the file has at the start; `None` when that was taken, or there is no thread.
    read: Option<Receiver<SlackTable>>,
    /// Gets what the file is to have, one text at a time.
    write: Sender<String>,
    /// Says whether it was written.
    written: Receiver<bool>,
    /// Forwards in the text that is being written.
    writing: Option<u64>,
    /// Forwards in the file.
    forwards: u64,
    /// `None` before the first look: the file is read meanwhile.
    next_us: Option<u64>,
}

impl KeptSlack {
    /// Begins to read the file in `folder`.
    pub(super) fn begin(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let (tell_read, read) = bounded(1);
        let (write, texts) = bounded::<String>(1);
        let (tell_written, written) = bounded(1);
        let its = path.clone();
        let body = move || {
            // The agent may have ended meanwhile.
            let _ = tell_read.send(load(&its));
            for text in texts {
                let _ = tell_written.send(store(&its, &text));
            }
        };
        let thread = std::thread::Builder::new().name("rackline-slack".to_owned()).spawn(body);
        if let Err(error) = &thread {
            tracing::warn!("what is learned of forwards is not kept: no thread: {error}");
        }
        let read = thread.is_ok().then_some(read);
        Self { path, read, write, written, writing: None, forwards: 0, next_us: None }
    }

    /// What the file had, once, when it is read.
    pub(super) fn take_read(&mut self) -> Option<SlackTable> {
        let table = match self.read.as_ref()?.try_recv() {
            Ok(table) => Some(table),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => None,
        };
        self.read = None;
        self.forwards = table.as_ref().map_or(0, SlackTable::forwards);
        table
    }

    /// Hands the table over to be written, now and then.
    pub(super) fn keep_when_due(&mut self, now_us: u64, table: &SlackTable) {
        let is_due = self.next_us.is_some_and(|next_us| now_us >= next_us);
        if is_due || self.next_us.is_none() {
            self.next_us = Some(now_us + KEEP_US);
        }
        if is_due {
            self.keep(table);
        }
    }

    /// Hands the table over when it has learned something. Says whether a text is being written.
    pub(super) fn keep(&mut self, table: &SlackTable) -> bool {
        self.take_written();
        // What the file has may be more than what was learned since the start.
        if self.read.is_some() || self.writing.is_some() {
            self.warn_of_silence();
            return self.writing.is_some();
        }
        if self.forwards != table.forwards() && self.write.try_send(table.to_text()).is_ok() {
            self.writing = Some(table.forwards());
        }
        self.writing.is_some()
    }

    /// The agent stops: the table is written, if its device answers.
    pub(super) fn end(&mut self, table: &SlackTable) {
        if self.keep(table) && self.written.recv_timeout(STOP_WAIT).is_err() {
            self.warn_of_silence();
        }
    }

    /// Whether a text is being written.
    #[cfg(test)]
    pub(super) const fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    fn take_written(&mut self) {
        if let Ok(is_written) = self.written.try_recv()
            && let Some(forwards) = self.writing.take()
            && is_written
        {
            self.forwards = forwards;
        }
    }

    fn warn_of_silence(&self) {
        let file = self.path.display();
        tracing::warn!(%file, "what was learned of forwards is not kept: the device does not answer");
    }
}

/// Replaces the file. Says whether that was done.
fn store(path: &Path, text: &str) -> bool {
    let new = path.with_extension("new");
    let kept = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    if let Err(error) = &kept {
        let file = path.display();
        tracing::warn!(%file, "what was learned of forwards is not kept: {error}");
    }
    kept.is_ok()
}

/// The table in a file, or an empty one.
fn load(path: &Path) -> SlackTable {
    let file = path.display();
    match std::fs::read_to_string(path) {
        Ok(text) => match SlackTable::from_text(&text) {
            Some(table) => {
                let (shapes, forwards) = (table.shapes(), table.forwards());
                tracing::info!(%file, shapes, forwards, "knows how long forwards take");
                return table;
            }
            None => tracing::warn!(%file, "the slack table is damaged: it is learned again"),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(%file, "the slack table cannot be read: {error}"),
    }
    SlackTable::default()
}
