//! A hasher for the many small keys of the search: two multiplications a word.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes words by multiplication. Its keys are the explorer's own: nobody chooses them to collide.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn finish(&self) -> u64 {
        // The tables look at the upper bits too.
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0x9fb2_1c65_1e98_df25);
        mixed ^ mixed >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        for eight in bytes.chunks(8) {
            let word = eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.write_u64(word);
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// A map with such a hasher.
pub(super) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;
