//! One row per slot of a segment: 21 bytes, in arrays that the operating system hands out zeroed
//! and backs with memory only where they are used.

use crate::format::{halves, is_newer};
use crate::identity::IndexKey;

/// What the replica believes of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// Nothing.
    Absent,
    /// That it holds a block.
    Present,
    /// That the block of this generation is no good.
    Quarantined,
    /// That the line of a block of this generation was torn (INDEX-R5).
    Torn,
    /// That the owner of the block of this generation has not decided whether it stays (INDEX-R5).
    Undecided,
}

/// What the replica knows of the slots of one segment.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Key in four words, generation.
    rows: Vec<[u32; 5]>,
    marks: Vec<u8>,
}

impl Rows {
    /// Makes so many rows, before one of them is set.
    pub(super) fn ensure(&mut self, slots: u32) {
        let slots = slots as usize;
        if self.rows.is_empty() {
            self.rows = vec![[0; 5]; slots];
            self.marks = vec![0; slots];
        } else if self.rows.len() < slots {
            self.rows.resize(slots, [0; 5]);
            self.marks.resize(slots, 0);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.rows.as_slice()) + self.marks.len()
    }

    pub(super) fn mark(&self, slot: u32) -> Mark {
        match self.marks.get(slot as usize) {
            None | Some(0) => Mark::Absent,
            Some(1) => Mark::Present,
            Some(3) => Mark::Torn,
            Some(4) => Mark::Undecided,
            Some(_) => Mark::Quarantined,
        }
    }

    pub(super) fn set_mark(&mut self, slot: u32, mark: Mark) {
        self.marks[slot as usize] = match mark {
            Mark::Absent => 0,
            Mark::Present => 1,
            Mark::Quarantined => 2,
            Mark::Torn => 3,
            Mark::Undecided => 4,
        };
    }

    /// Newest generation heard of; 0 before the first.
    pub(super) fn generation(&self, slot: u32) -> u32 {
        self.rows.get(slot as usize).map_or(0, |row| row[4])
    }

    /// Whether something newer than `generation` was heard of.
    pub(super) fn knows_newer(&self, slot: u32, generation: u32) -> bool {
        let known = self.generation(slot);
        known != 0 && is_newer(known, generation)
    }

    pub(super) fn set_generation(&mut self, slot: u32, generation: u32) {
        self.rows[slot as usize][4] = generation;
    }

    pub(super) fn key(&self, slot: u32) -> IndexKey {
        let [a, b, c, d, _] = self.rows[slot as usize];
        let word = |low, high| u64::from(low) | u64::from(high) << 32;
        IndexKey::from_words([word(a, b), word(c, d)])
    }

    /// Makes the entry of `slot` this one (INDEX-R2).
    pub(super) fn set(&mut self, slot: u32, key: IndexKey, generation: u32) {
        let [first, second] = key.words();
        let ((a, b), (c, d)) = (halves(first), halves(second));
        self.rows[slot as usize] = [a, b, c, d, generation];
        self.set_mark(slot, Mark::Present);
    }
}
