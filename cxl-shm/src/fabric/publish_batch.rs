//! Several lines published with one fence a phase.

use super::line::{OwnedLine, OwnedWord, Record};
use super::{Fabric, LineWords};
use crate::units::{LineOffset, LineRange};

/// Lines and words that become visible together, at the latest when the batch is published.
///
/// There is no order between the members of a batch: "A before B" is two batches (MEM-M2).
///
/// # Example
/// ```
/// # use cxl_shm::fabric::{Fabric, OwnedWord, PublishBatch};
/// fn publish_both(fabric: &impl Fabric, a: OwnedWord, b: OwnedWord) {
///     let mut batch = PublishBatch::new(fabric);
///     batch.word(a, 1);
///     batch.word(b, 2);
///     batch.publish();
/// }
/// ```
#[derive(Debug)]
#[must_use = "a batch is published by `publish`"]
pub struct PublishBatch<'f, F: Fabric> {
    fabric: &'f F,
    lines: Vec<LineOffset>,
}

impl<'f, F: Fabric> PublishBatch<'f, F> {
    /// An empty batch.
    pub fn new(fabric: &'f F) -> Self {
        Self { fabric, lines: Vec::new() }
    }

    /// Adds the next version of a line.
    pub fn line<T: Record>(&mut self, line: OwnedLine<T>, value: &T) {
        line.write(self.fabric, value);
        self.add(line.at());
    }

    /// Adds a word.
    pub fn word(&mut self, word: OwnedWord, value: u64) {
        self.fabric.store(word.at(), value);
        self.add(word.at().line());
    }

    /// Adds a line that was sealed before: an image of a redo record. Only for code that argues
    /// why this host owns it (MEM-M1).
    pub(crate) fn image(&mut self, at: LineOffset, words: &LineWords) {
        self.fabric.write_line(at, words);
        self.add(at);
    }

    /// Publishes all of it with one fence (MEM-M2).
    #[track_caller]
    pub fn publish(mut self) {
        let lines = std::mem::take(&mut self.lines);
        if lines.is_empty() {
            return;
        }
        for line in &lines {
            self.fabric.write_back(LineRange::one(*line));
        }
        self.fabric.fence();
        for line in &lines {
            self.fabric.read_back(LineRange::one(*line));
        }
    }

    fn add(&mut self, line: LineOffset) {
        // Neighbouring words of one line come one after another.
        if self.lines.last() != Some(&line) {
            self.lines.push(line);
        }
    }
}

impl<F: Fabric> Drop for PublishBatch<'_, F> {
    fn drop(&mut self) {
        // A written line is never left unpublished, also on unwind.
        for line in &self.lines {
            self.fabric.publish(LineRange::one(*line));
        }
    }
}

/// Refreshes all `lines` with one fence (MEM-M3). The next `cached` read of each sees at least what
/// was published before the call.
#[track_caller]
pub fn refresh_all<F: Fabric>(fabric: &F, lines: impl IntoIterator<Item = LineRange>) {
    let mut any = false;
    for range in lines {
        fabric.invalidate(range);
        any = true;
    }
    if any {
        fabric.fence();
    }
}

/// Publishes what this host's caches hold of all `lines`, whichever process of the host wrote it,
/// with one fence (MEM-M2). After return nothing of it can reach the device any more: it has, or
/// was published before.
#[track_caller]
pub fn publish_all<F: Fabric>(fabric: &F, lines: impl IntoIterator<Item = LineRange>) {
    let lines: Vec<LineRange> = lines.into_iter().collect();
    if lines.is_empty() {
        return;
    }
    for range in &lines {
        fabric.write_back(*range);
    }
    fabric.fence();
    for range in &lines {
        fabric.read_back(*range);
    }
}
