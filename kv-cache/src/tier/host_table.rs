//! The host's table of blocks on drives: one for all processes of a host, in its DRAM.
//!
//! ```text
//! word 0      beat of the host's agent; 0 while there is none
//! word 1      nodes whose agents live: a bit each
//! word 2      rows in use; 0 while the table is made
//! word 3      rows that were ever in use
//! word 8 ..   rows of three words: key, but its last 8 bytes; nodes that have the block: a bit each
//! ```
//!
//! Linear probing. A row of no node is blank, and ends a search. A key has one row, however many
//! drives have the block.
//!
//! - **TIER-H1** Only the agent of the host writes the table, and any process reads it, without a
//!   lock. The writer blanks a row before it changes the key, and says the nodes last. A reader
//!   loads the nodes, the key, and the nodes again: when both are equal, the key had these nodes.
//!   A row that moves meanwhile may be missed.
//! - **TIER-H2** A removal moves later rows back into its place, so that no search passes rows that
//!   were left.

use cxl_shm::fabric::HostMemory;
use cxl_shm::units::NodeId;

use crate::format::{ROW_WORDS, TABLE_HEADER_WORDS};
use crate::identity::IndexKey;

const WORD_BEAT: usize = 0;
const WORD_ALIVE: usize = 1;
const WORD_ROWS: usize = 2;
const WORD_EVER: usize = 3;
/// Longest search. In a table that is two thirds full no search comes near it.
const PROBE_ROWS: usize = 1024;
/// Rows of the first table that an agent makes.
const ROWS_FIRST: usize = 4096;

/// The table in some words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostTable<W> {
    words: W,
    first: usize,
    rows_max: usize,
}

impl<W: HostMemory> HostTable<W> {
    /// The table in `words` from `first` on, of `rows_max` rows at most.
    pub(crate) fn new(words: W, first: usize, rows_max: usize) -> Self {
        Self { words, first, rows_max }
    }

    pub(crate) fn beat(&self) -> u64 {
        self.load(WORD_BEAT)
    }

    pub(super) fn set_beat(&self, beat: u64) {
        self.store(WORD_BEAT, beat);
    }

    /// Nodes whose agents live, as the agent of this host sees them.
    pub(crate) fn alive(&self) -> u64 {
        self.load(WORD_ALIVE)
    }

    pub(super) fn set_alive(&self, alive: u64) {
        if self.alive() != alive {
            self.store(WORD_ALIVE, alive);
        }
    }

    /// Rows in use.
    pub(super) fn rows(&self) -> usize {
        usize::try_from(self.load(WORD_ROWS)).unwrap_or(usize::MAX).min(self.rows_max)
    }

    /// Rows of the table that comes after this one, which has become too full.
    pub(super) fn next_rows(&self) -> usize {
        (self.rows() * 2).max(ROWS_FIRST).min(self.rows_max)
    }

    /// Makes an empty table of `rows` rows.
    pub(super) fn make(&self, rows: usize) {
        self.store(WORD_ROWS, 0);
        let ever = usize::try_from(self.load(WORD_EVER)).unwrap_or(usize::MAX).min(self.rows_max);
        for row in 0..ever {
            self.store(nodes_at(row), 0);
        }
        self.store(WORD_EVER, ever.max(rows) as u64);
        self.store(WORD_ROWS, rows as u64);
    }

    /// The nodes whose drives have the block: a bit each (TIER-H1).
    pub(crate) fn find(&self, key: IndexKey) -> u64 {
        let rows = self.rows();
        let (mut row, words) = (home(key, rows), key.words());
        for _ in 0..rows.min(PROBE_ROWS) {
            let nodes = self.load(nodes_at(row));
            if nodes == 0 {
                return 0;
            }
            if self.key(row) == words && self.load(nodes_at(row)) == nodes {
                return nodes;
            }
            row = next(row, rows);
        }
        0
    }

    /// Says that a drive of `node` has the block. `None` when there is no row for it; else how many
    /// rows more are taken.
    pub(super) fn add(&self, key: IndexKey, node: NodeId) -> Option<usize> {
        let rows = self.rows();
        let (mut row, words) = (home(key, rows), key.words());
        for _ in 0..rows.min(PROBE_ROWS) {
            let nodes = self.load(nodes_at(row));
            if nodes == 0 {
                self.put(row, words, bit(node));
                return Some(1);
            }
            if self.key(row) == words {
                self.store(nodes_at(row), nodes | bit(node));
                return Some(0);
            }
            row = next(row, rows);
        }
        None
    }

    /// Says that no drive of `node` has the block. Returns how many rows fewer are taken.
    pub(super) fn remove(&self, key: IndexKey, node: NodeId) -> usize {
        let rows = self.rows();
        let (mut row, words) = (home(key, rows), key.words());
        for _ in 0..rows.min(PROBE_ROWS) {
            let nodes = self.load(nodes_at(row));
            if nodes == 0 {
                return 0;
            }
            if self.key(row) == words {
                return self.take_from(row, node);
            }
            row = next(row, rows);
        }
        0
    }

    /// Says that no drive of `node` has any block. Returns how many rows fewer are taken.
    pub(super) fn remove_all_of(&self, node: NodeId) -> usize {
        let (mut row, mut taken) = (0, 0);
        while row < self.rows() {
            let before = self.load(nodes_at(row));
            // Where a row was taken away another may have come.
            match before & bit(node) {
                0 => row += 1,
                _ => taken += self.take_from(row, node),
            }
        }
        taken
    }

    /// Takes `node` from a row, and the row away when it was the last.
    fn take_from(&self, row: usize, node: NodeId) -> usize {
        let nodes = self.load(nodes_at(row)) & !bit(node);
        if nodes != 0 {
            self.store(nodes_at(row), nodes);
            return 0;
        }
        self.close(row);
        1
    }

    /// Takes a row away (TIER-H2).
    fn close(&self, row: usize) {
        let rows = self.rows();
        let (mut hole, mut at) = (row, row);
        for _ in 0..rows {
            at = next(at, rows);
            let nodes = self.load(nodes_at(at));
            if nodes == 0 {
                break;
            }
            let key = self.key(at);
            let from_home = distance(home(IndexKey::from_words(key), rows), at, rows);
            if from_home >= distance(hole, at, rows) {
                self.put(hole, key, nodes);
                hole = at;
            }
        }
        self.store(nodes_at(hole), 0);
    }

    /// Writes a row (TIER-H1).
    fn put(&self, row: usize, key: [u64; 2], nodes: u64) {
        self.store(nodes_at(row), 0);
        self.store(key_at(row), key[0]);
        self.store(key_at(row) + 1, key[1]);
        self.store(nodes_at(row), nodes);
    }

    fn key(&self, row: usize) -> [u64; 2] {
        [self.load(key_at(row)), self.load(key_at(row) + 1)]
    }

    fn load(&self, index: usize) -> u64 {
        self.words.load(self.first + index)
    }

    fn store(&self, index: usize, value: u64) {
        self.words.store(self.first + index, value);
    }
}

fn bit(node: NodeId) -> u64 {
    1 << node.index()
}

fn key_at(row: usize) -> usize {
    TABLE_HEADER_WORDS + row * ROW_WORDS
}

fn nodes_at(row: usize) -> usize {
    key_at(row) + 2
}

/// The row where the search for a key begins: keys are uniform.
fn home(key: IndexKey, rows: usize) -> usize {
    let scaled = (u128::from(key.words()[0]) * rows as u128) >> u64::BITS;
    usize::try_from(scaled).unwrap_or(0)
}

fn next(row: usize, rows: usize) -> usize {
    if row + 1 == rows { 0 } else { row + 1 }
}

/// How far `to` lies behind `from`, round the table.
fn distance(from: usize, to: usize, rows: usize) -> usize {
    if to >= from { to - from } else { to + rows - from }
}

#[cfg(test)]
mod tests;
