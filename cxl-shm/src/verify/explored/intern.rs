//! Numbers for values, so that a state is a short row of numbers.

use std::hash::Hash;

use super::quick_hash::QuickMap;
use crate::fabric::LineWords;
use crate::units::LINE_WORDS;

/// Gives equal values equal numbers. Number 0 is the default value.
#[derive(Clone, Debug)]
pub(super) struct Interner<V> {
    values: Vec<V>,
    numbers: QuickMap<V, u32>,
}

impl<V: Clone + Eq + Hash> Interner<V> {
    pub(super) fn starting_with(zero: V) -> Self {
        Self { values: vec![zero.clone()], numbers: std::iter::once((zero, 0)).collect() }
    }

    pub(super) fn number(&mut self, value: V) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let number = u32::try_from(self.values.len()).expect("memory ends long before 2^32 values");
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }

    pub(super) fn value(&self, number: u32) -> &V {
        &self.values[number as usize]
    }
}

/// What a line can hold, by number. Number 0 is all zeros.
pub(super) type Contents = Interner<LineWords>;

impl Contents {
    pub(super) fn new() -> Self {
        Self::starting_with([0; LINE_WORDS])
    }

    pub(super) fn word(&self, content: u32, word: usize) -> u64 {
        self.value(content)[word]
    }

    /// `content` with one word replaced.
    pub(super) fn with_word(&mut self, content: u32, word: usize, value: u64) -> u32 {
        let mut words = *self.value(content);
        words[word] = value;
        self.number(words)
    }
}
