//! How the processes of a host came to locks, in words of the host tier. No protocol decides by these
//! words.

use super::Histogram;
use super::lock_kind::LockKind;
use super::tier::{ApplicationWords, LOCK_FIGURE_WORDS};
use crate::fabric::HostMemory;

/// Words of a kind: its histogram, then the counters. No two kinds share a pair of cache lines.
const KIND_WORDS: usize = 32;
const BEHIND_HOST: usize = Histogram::WORDS;
const BEHIND_RACK: usize = BEHIND_HOST + 1;
const PASSED: usize = BEHIND_HOST + 2;
const TIMED_OUT: usize = BEHIND_HOST + 3;
const _: () = assert!(TIMED_OUT < KIND_WORDS);
const _: () = assert!(LockKind::ALL.len() * KIND_WORDS <= LOCK_FIGURE_WORDS);

/// Who had a lock, or came before, when a thread began to wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Behind {
    /// Another thread of this host.
    Host,
    /// Another host. Only under the protocol `bakery`: under `arbitrated` the lock manager alone sees
    /// that.
    Rack,
}

impl Behind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Host, Self::Rack];

    /// A short name, for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Rack => "rack",
        }
    }
}

/// How the processes of a host came to locks of one kind, since the host joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockFigures {
    /// Acquisitions, by the time from the first look to the lock. A host lock that was free took
    /// none. A free lock between hosts takes its way through the rack.
    pub took: Histogram,
    /// Acquisitions of those behind another thread of this host.
    pub behind_host: u64,
    /// Acquisitions of those behind another host ([`Behind::Rack`]).
    pub behind_rack: u64,
    /// Acquisitions of those that another thread of this host passed on, without the rack.
    pub passed: u64,
    /// Waits that ended at their time-out, without the lock.
    pub timed_out: u64,
}

impl LockFigures {
    /// Acquisitions that had to wait for a thread of this host, or for another host.
    #[must_use]
    pub fn waits(&self, behind: Behind) -> u64 {
        match behind {
            Behind::Host => self.behind_host,
            Behind::Rack => self.behind_rack,
        }
    }
}

/// The words of one kind of locks.
#[derive(Debug)]
pub(crate) struct LockCounters<'t, H> {
    words: ApplicationWords<'t, H>,
    first: usize,
}

impl<'t, H: HostMemory> LockCounters<'t, H> {
    /// Those of `kind` among the `words` of all kinds.
    pub(super) fn of(words: ApplicationWords<'t, H>, kind: LockKind) -> Self {
        let index = LockKind::ALL.iter().position(|other| *other == kind).unwrap_or(0);
        Self { words, first: index * KIND_WORDS }
    }

    /// Counts an acquisition that took so many microseconds.
    pub(crate) fn acquired(&self, took_us: u64, behind: Option<Behind>) {
        Histogram::count_in(&self.words, self.first, took_us);
        match behind {
            None => {}
            Some(Behind::Host) => self.words.count(self.first + BEHIND_HOST, 1),
            Some(Behind::Rack) => self.words.count(self.first + BEHIND_RACK, 1),
        }
    }

    /// Counts an acquisition, which is counted, as passed on by another thread of this host.
    pub(crate) fn passed(&self) {
        self.words.count(self.first + PASSED, 1);
    }

    /// Counts a wait that ended at its time-out.
    pub(crate) fn timed_out(&self) {
        self.words.count(self.first + TIMED_OUT, 1);
    }

    /// What was counted.
    pub(crate) fn figures(&self) -> LockFigures {
        let counted = |word| self.words.counted(self.first + word);
        LockFigures {
            took: Histogram::counted(&self.words, self.first),
            behind_host: counted(BEHIND_HOST),
            behind_rack: counted(BEHIND_RACK),
            passed: counted(PASSED),
            timed_out: counted(TIMED_OUT),
        }
    }
}
