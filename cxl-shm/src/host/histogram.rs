//! How long events took, in buckets of powers of two.

use crate::fabric::HostMemory;

/// How many events took how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// Events that took at most [`bound_us`](Self::bound_us) of their bucket, and longer than that of
    /// the bucket before. The last bucket has all others.
    pub buckets: [u64; Self::BUCKETS],
    /// What all events took together, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = 26;
    /// Words that one takes in the memory of a host: its buckets, and the sum.
    pub const WORDS: usize = Self::BUCKETS + 1;

    /// Most microseconds of an event in this bucket: a power of two, from 1 us to 16.8 s. `None` of
    /// the last one.
    #[must_use]
    pub const fn bound_us(bucket: usize) -> Option<u64> {
        if bucket + 1 < Self::BUCKETS { Some(1 << bucket) } else { None }
    }

    /// The bucket of an event that took so long.
    #[must_use]
    pub fn bucket_of(us: u64) -> usize {
        let power = us.saturating_sub(1).checked_ilog2().map_or(0, |log| log as usize + 1);
        power.min(Self::BUCKETS - 1)
    }

    /// Counts an event that took so many microseconds.
    pub fn add(&mut self, us: u64) {
        self.buckets[Self::bucket_of(us)] += 1;
        self.sum_us += us;
    }

    /// Events that were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Counts an event that took so many microseconds in the histogram at word `first`.
    pub fn count_in(words: &impl HostMemory, first: usize, us: u64) {
        words.count(first + Self::bucket_of(us), 1);
        if us > 0 {
            words.count(first + Self::BUCKETS, us);
        }
    }

    /// The histogram at word `first`.
    #[must_use]
    pub fn counted(words: &impl HostMemory, first: usize) -> Self {
        let sum_us = words.counted(first + Self::BUCKETS);
        let mut histogram = Self { sum_us, ..Self::default() };
        for (bucket, count) in histogram.buckets.iter_mut().enumerate() {
            *count = words.counted(first + bucket);
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_the_events_up_to_its_power_of_two() {
        for (us, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 24, 24)] {
            assert_eq!(Histogram::bucket_of(us), bucket, "{us}");
            assert!(Histogram::bound_us(bucket).is_some_and(|most| us <= most));
        }
        for us in [(1 << 24) + 1, u64::MAX] {
            assert_eq!(Histogram::bucket_of(us), Histogram::BUCKETS - 1);
        }
        assert_eq!(Histogram::bound_us(Histogram::BUCKETS - 1), None);
    }
}
