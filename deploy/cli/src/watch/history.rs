//! The last minutes of figures, in bounded memory.

use std::collections::VecDeque;

use serde::Serialize;

use crate::status::NodeStatus;
use crate::summaries::Counted;

/// Samples that are kept: ten minutes of one each two seconds.
pub(crate) const SAMPLES_MAX: usize = 300;

/// What all nodes have counted at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    /// Blocks that lookups asked for.
    pub(crate) lookup_blocks: u64,
    /// Blocks of those that the caller got.
    pub(crate) lookup_hits: u64,
    /// Bytes that were fetched out of the pool.
    pub(crate) fetched_bytes: u64,
    /// Bytes that were published into the pool.
    pub(crate) published_bytes: u64,
    /// Bytes that came back from drives into the pool.
    pub(crate) restored_bytes: u64,
    /// Blocks that left the pool to make room.
    pub(crate) evicted_blocks: u64,
}

impl Counters {
    fn each(&self) -> [u64; 6] {
        [
            self.lookup_blocks,
            self.lookup_hits,
            self.fetched_bytes,
            self.published_bytes,
            self.restored_bytes,
            self.evicted_blocks,
        ]
    }
}

impl From<&Counted> for Counters {
    fn from(counted: &Counted) -> Self {
        Self {
            lookup_blocks: counted.lookup_blocks,
            lookup_hits: counted.lookup_hits,
            fetched_bytes: counted.fetched_bytes,
            published_bytes: counted.published_bytes,
            restored_bytes: counted.restored_bytes,
            evicted_blocks: counted.evicted_blocks,
        }
    }
}

/// What happened a second, between two samples.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Rates {
    /// When the time ended, by the clock of this process.
    pub(crate) at_ms: u64,
    /// Hits of the blocks that were looked up, from 0 to 1; none when nothing was looked up.
    pub(crate) hit_rate: Option<f64>,
    pub(crate) fetched_bytes: f64,
    pub(crate) published_bytes: f64,
    pub(crate) restored_bytes: f64,
    pub(crate) evicted_blocks: f64,
}

/// The life of a node whose figures are counted. Figures begin at 0 with each life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Life {
    node: u16,
    incarnation: u32,
    is_readable: bool,
}

impl From<&NodeStatus> for Life {
    fn from(status: &NodeStatus) -> Self {
        let NodeStatus { node, incarnation, ref summary, .. } = *status;
        Self { node, incarnation, is_readable: summary.state != "unreadable" }
    }
}

/// Rates of the last minutes.
#[derive(Debug, Default)]
pub(crate) struct History {
    last: Option<Sample>,
    rates: VecDeque<Rates>,
}

#[derive(Debug)]
struct Sample {
    at_ms: u64,
    lives: Vec<Life>,
    counters: Counters,
}

impl History {
    /// Takes the sums over `lives`. Sums over other lives have no rate between the two samples.
    pub(crate) fn push(&mut self, at_ms: u64, lives: Vec<Life>, counters: Counters) {
        let before = self.last.replace(Sample { at_ms, lives, counters });
        let (Some(before), Some(now)) = (before, &self.last) else { return };
        let grows =
            counters.each().iter().zip(before.counters.each()).all(|(now, then)| *now >= then);
        if at_ms <= before.at_ms || now.lives != before.lives || !grows {
            return;
        }
        if self.rates.len() == SAMPLES_MAX {
            self.rates.pop_front();
        }
        self.rates.push_back(between(&before.counters, &counters, before.at_ms, at_ms));
    }

    pub(crate) fn rates(&self) -> impl Iterator<Item = &Rates> {
        self.rates.iter()
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown to a few digits")]
fn between(before: &Counters, now: &Counters, before_ms: u64, at_ms: u64) -> Rates {
    let seconds = (at_ms - before_ms) as f64 / 1e3;
    let per_second = |now: u64, before: u64| (now - before) as f64 / seconds;
    let asked = now.lookup_blocks - before.lookup_blocks;
    let hits = now.lookup_hits - before.lookup_hits;
    Rates {
        at_ms,
        hit_rate: (asked > 0).then(|| hits as f64 / asked as f64),
        fetched_bytes: per_second(now.fetched_bytes, before.fetched_bytes),
        published_bytes: per_second(now.published_bytes, before.published_bytes),
        restored_bytes: per_second(now.restored_bytes, before.restored_bytes),
        evicted_blocks: per_second(now.evicted_blocks, before.evicted_blocks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_samples() {
        let mut history = History::default();
        let counters = |blocks| Counters {
            lookup_blocks: blocks,
            lookup_hits: blocks / 4,
            fetched_bytes: blocks * 1000,
            ..Default::default()
        };
        let life = |incarnation| vec![Life { node: 1, incarnation, is_readable: true }];
        history.push(1000, life(1), counters(100));
        assert_eq!(history.rates().last(), None);
        history.push(3000, life(1), counters(500));
        let rates = *history.rates().last().unwrap();
        assert_eq!((rates.hit_rate, rates.fetched_bytes), (Some(0.25), 200_000.0));
        history.push(5000, life(1), counters(500));
        assert_eq!(history.rates().last().unwrap().hit_rate, None);
        // All processes of the host ended and it joined again. Others may have counted more meanwhile.
        history.push(7000, life(2), counters(8));
        history.push(9000, life(3), counters(800));
        assert_eq!(history.rates().count(), 2);
        for at in 5..1000 {
            history.push(at * 2000, life(3), counters(at * 1000));
        }
        assert_eq!(history.rates().count(), SAMPLES_MAX);
    }
}
