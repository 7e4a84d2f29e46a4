//! Which tasks ever touch what.
//!
//! Learnt on the way: random walks first, then the search itself, which begins again when it sees
//! an access that nobody had made before. What a search that came to its end relied on is
//! therefore true of all its states.

use super::quick_hash::QuickMap;
use crate::units::{LINE_WORDS, LineOffset};

/// Bit per task.
pub(super) type Tasks = u32;

/// Who touches a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LineUse {
    pub(super) loads: Tasks,
    pub(super) stores: Tasks,
    pub(super) flushes: Tasks,
    pub(super) word_stores: [Tasks; LINE_WORDS],
}

impl LineUse {
    pub(super) fn all(&self) -> Tasks {
        self.loads | self.stores | self.flushes
    }
}

/// Who touches a word of a host's own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct WordUse {
    pub(super) loads: Tasks,
    pub(super) stores: Tasks,
}

/// An access of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Load(usize),
    Store(usize),
    Flush,
}

/// Who touches what, as far as is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Footprint {
    lines: QuickMap<LineOffset, LineUse>,
    words: QuickMap<(usize, usize), WordUse>,
    /// Something was added.
    pub(super) grown: bool,
}

impl Footprint {
    pub(super) fn line(&self, at: LineOffset) -> LineUse {
        self.lines.get(&at).copied().unwrap_or_default()
    }

    pub(super) fn word(&self, host: usize, index: usize) -> WordUse {
        self.words.get(&(host, index)).copied().unwrap_or_default()
    }

    pub(super) fn note_line(&mut self, at: LineOffset, task: usize, access: Access) {
        let line = self.lines.entry(at).or_default();
        let before = *line;
        match access {
            Access::Load(_) => line.loads |= 1 << task,
            Access::Store(word) => {
                line.stores |= 1 << task;
                line.word_stores[word] |= 1 << task;
            }
            Access::Flush => line.flushes |= 1 << task,
        }
        self.grown |= before != *line;
    }

    pub(super) fn note_word(&mut self, host: usize, index: usize, task: usize, stores: bool) {
        let word = self.words.entry((host, index)).or_default();
        let before = *word;
        word.loads |= 1 << task;
        if stores {
            word.stores |= 1 << task;
        }
        self.grown |= before != *word;
    }
}
