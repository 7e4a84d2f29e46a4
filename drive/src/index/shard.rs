//! A small hash table of numbers of entries: linear probing, and no tombstones.

use super::{NONE, SHARDS};

#[derive(Default)]
pub(super) struct Shard {
    /// Numbers of entries, or [`NONE`].
    buckets: Vec<u32>,
    used: usize,
}

impl Shard {
    fn home(&self, hash: u64) -> usize {
        usize::try_from(hash / SHARDS as u64 % self.buckets.len() as u64).unwrap_or(0)
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut bucket = self.home(hash);
        // At least one bucket is empty.
        while self.buckets[bucket] != NONE {
            if is_it(self.buckets[bucket]) {
                return Some(self.buckets[bucket]);
            }
            bucket = self.next(bucket);
        }
        None
    }

    pub(super) fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        if self.used * 8 >= self.buckets.len() * 7 {
            let larger = (self.buckets.len() + self.buckets.len() / 8).max(8);
            let mut table = Vec::new();
            table.reserve_exact(larger);
            table.resize(larger, NONE);
            let before = std::mem::replace(&mut self.buckets, table);
            for number in before.into_iter().filter(|number| *number != NONE) {
                self.put(hash_of(number), number);
            }
        }
        self.put(hash, number);
        self.used += 1;
    }

    fn put(&mut self, hash: u64, number: u32) {
        let mut bucket = self.home(hash);
        while self.buckets[bucket] != NONE {
            bucket = self.next(bucket);
        }
        self.buckets[bucket] = number;
    }

    /// Takes a number out, and closes the gap so that later searches do not end there.
    pub(super) fn remove(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        let mut gap = self.home(hash);
        while self.buckets[gap] != number {
            gap = self.next(gap);
        }
        let len = self.buckets.len();
        let distance = |from: usize, to: usize| (to + len - from) % len;
        let mut bucket = self.next(gap);
        while self.buckets[bucket] != NONE {
            let home = self.home(hash_of(self.buckets[bucket]));
            if distance(home, bucket) >= distance(gap, bucket) {
                self.buckets[gap] = self.buckets[bucket];
                gap = bucket;
            }
            bucket = self.next(bucket);
        }
        self.buckets[gap] = NONE;
        self.used -= 1;
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * 4
    }
}
