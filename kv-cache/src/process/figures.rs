//! What the processes of a host have done together, in words of the host tier. It outlives each of
//! them, and is zero again when the host joins anew.
//!
//! A process adds to these words once for each call, and not once for each block. Words that one call
//! adds to share a pair of cache lines, and calls of two kinds do not.

use cxl_shm::fabric::HostMemory;
use cxl_shm::host::{FIGURE_WORDS, Histogram};
use cxl_shm::node::{Backend, Member};

use super::metrics::{Metrics, SUMMED};
use crate::heap::{LockedHeap, Moved};

/// Words of two cache lines of 64 bytes: processors fetch these in pairs.
const APART: usize = 16;
/// The first of the figures of each kind of call, in the order of [`Metrics`]: lookup, fetch, publish,
/// eviction and all else, prefetches, streams, misses.
const FIRST: [usize; 8] = [0, 5, 9, 22, 33, 42, 50, 55];
const HISTOGRAMS_AT: usize = FIRST.len() * APART;
/// Words between the histograms of two kinds of calls.
const HISTOGRAM_WORDS: usize = 2 * APART;

const _: () = assert!(Histogram::WORDS <= HISTOGRAM_WORDS);
const _: () = assert!(HISTOGRAMS_AT + Latency::ALL.len() * HISTOGRAM_WORDS <= FIGURE_WORDS);

/// Calls whose latency is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Latency {
    /// A lookup of a prefix, with what it holds.
    Lookup,
    /// A publish of blocks.
    Publish,
    /// A fetch of blocks.
    Fetch,
    /// A hold of blocks, alone or in a lookup.
    Hold,
    /// A lookup that waited for blocks on drives, to the end of the wait.
    Restore,
}

impl Latency {
    /// All, in the order of their words.
    pub const ALL: [Self; 5] =
        [Self::Lookup, Self::Publish, Self::Fetch, Self::Hold, Self::Restore];

    /// A short name, for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Publish => "publish",
            Self::Fetch => "fetch",
            Self::Hold => "hold",
            Self::Restore => "restore",
        }
    }

    fn first_word(self) -> usize {
        let index = Self::ALL.iter().position(|other| *other == self).unwrap_or(0);
        HISTOGRAMS_AT + index * HISTOGRAM_WORDS
    }
}

/// What the processes of this host have done together, since the host joined.
#[derive(Debug)]
pub struct HostFigures<'m, B: Backend> {
    member: &'m Member<B>,
}

impl<'m, B: Backend> HostFigures<'m, B> {
    /// Those of the host of `member`.
    #[must_use]
    pub fn of(member: &'m Member<B>) -> Self {
        Self { member }
    }

    /// The counters of all processes of the host, those among them that are gone. What only a process
    /// has is 0: the sizes of its replica, and whether it is a member.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let words = self.member.figures();
        let mut metrics = Metrics::default();
        for (index, sum) in metrics.summed_mut().enumerate() {
            *sum = words.counted(word_of(index));
        }
        metrics
    }

    /// How long the calls of this kind took.
    #[must_use]
    pub fn latencies(&self, latency: Latency) -> Histogram {
        Histogram::counted(&self.member.figures(), latency.first_word())
    }

    /// Counts a call that took so many microseconds.
    pub fn took(&self, latency: Latency, us: u64) {
        Histogram::count_in(&self.member.figures(), latency.first_word(), us);
    }

    pub(super) fn add(&self, counted: &mut Metrics) {
        // Most calls under the heap lock count nothing, and the sums are many.
        if *counted == Metrics::default() {
            return;
        }
        let words = self.member.figures();
        for (index, sum) in counted.summed_mut().enumerate() {
            if *sum > 0 {
                words.count(word_of(index), *sum);
            }
        }
    }
}

/// The word of a figure, by its place in [`Metrics::summed_mut`].
fn word_of(index: usize) -> usize {
    let group = FIRST.iter().rposition(|first| *first <= index).unwrap_or(0);
    group * APART + (index - FIRST[group])
}

/// Counts the complete blocks that left the pool under this hold of the heap lock. What a directory
/// that was built anew has beyond the blocks that were counted is counted as found, and what it lacks
/// as removed: a process died before it could count.
pub(crate) fn count_moved<B: Backend>(heap: &mut LockedHeap<'_, B>) -> Metrics {
    let figures = HostFigures::of(heap.member);
    let mut counted = Metrics::default();
    let (swept, left) = (heap.take_swept(), heap.take_left());
    if swept.is_none() && left == Moved::default() {
        return counted;
    }
    if let Some(there) = swept {
        let sums = figures.metrics();
        let missing = |there: u64, came: [u64; 3], left: u64| {
            let known = came.iter().sum::<u64>().wrapping_sub(left);
            (there.saturating_sub(known), known.saturating_sub(there))
        };
        let came = [sums.published_blocks, sums.promoted_blocks, sums.found_blocks];
        (counted.found_blocks, counted.removed_blocks) =
            missing(there.blocks, came, sums.removed_blocks);
        let came = [sums.published_bytes, sums.promoted_bytes, sums.found_bytes];
        (counted.found_bytes, counted.removed_bytes) =
            missing(there.bytes, came, sums.removed_bytes);
    }
    counted.removed_blocks += left.blocks;
    counted.removed_bytes += left.bytes;
    figures.add(&mut counted);
    counted
}

/// Counts processes of this host that ended without leaving.
pub(crate) fn count_ended<B: Backend>(member: &Member<B>, processes: u64) {
    let mut counted = Metrics::default();
    counted.ended_processes += processes;
    HostFigures::of(member).add(&mut counted);
}

const _: () = assert!(SUMMED - FIRST[FIRST.len() - 1] <= APART);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::Miss;

    #[test]
    fn no_two_figures_have_one_word_and_no_two_kinds_of_calls_one_line() {
        let mut words: Vec<_> = (0..SUMMED).map(word_of).collect();
        assert!(words.iter().all(|word| *word < HISTOGRAMS_AT), "{words:?}");
        words.dedup();
        assert_eq!(words.len(), SUMMED);
        let mut metrics = Metrics::default();
        (metrics.lookups, metrics.fetched_blocks) = (1, 1);
        (metrics.published_blocks, metrics.retired_blocks) = (1, 1);
        (metrics.prefetch_asked_blocks, metrics.streamed_blocks) = (1, 1);
        metrics.count_miss(Miss::Absent);
        let set = metrics.summed_mut().enumerate().filter(|(_, value)| **value > 0);
        let set: Vec<_> = set.map(|(index, _)| index).collect();
        assert_eq!(set, [0, 5, 9, 22, 42, 50, 55]);
        assert!(set.into_iter().all(|first| word_of(first).is_multiple_of(APART)));
    }
}
