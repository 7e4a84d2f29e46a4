//! The hash tables of a segment: a node uses the first until it is full enough, then the next.
//!
//! ```text
//! table 0    slots 0 to F-1
//! table 1    slots F to 2F-1
//! table 2    slots 2F to 4F-1        each as large as all before it
//! ```
//!
//! A segment may be as large as one node needs that owns all of a pool. Nodes that own little use
//! the first tables only. So what a process keeps for each slot in its own DRAM, and what a scan
//! reads, follows what a node has, and not what it might have.

use super::halves;
use super::segment::PROBE_SLOTS;
use crate::identity::BlockKey;

/// Segments from so many slots on have a smaller first table.
const SPLIT_SLOTS: u32 = 1 << 16;
/// How much smaller than what a node's share needs.
const SPLIT: u32 = 16;
/// Most tables of a segment: of 2^26 slots, of which the first has 8.
pub(crate) const TABLES_MAX: usize = 24;

/// How the slots of a segment are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tables {
    first_slots: u32,
    slots: u32,
}

/// One of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    pub(crate) start: u32,
    /// A power of two.
    pub(crate) slots: u32,
}

impl Tables {
    /// The tables of a segment of `slots` slots, of which a node's share needs `share_slots`: both
    /// powers of two.
    pub(crate) fn new(slots: u32, share_slots: u32) -> Self {
        let first_slots =
            if share_slots >= SPLIT_SLOTS { share_slots / SPLIT } else { share_slots };
        Self { first_slots: first_slots.min(slots), slots }
    }

    /// How many there are.
    pub(crate) fn count(self) -> usize {
        (self.slots / self.first_slots).trailing_zeros() as usize + 1
    }

    /// Slots of all tables.
    pub(crate) fn slots(self) -> u32 {
        self.slots
    }

    /// Table `index`, below [`count`](Self::count).
    pub(crate) fn table(self, index: usize) -> Table {
        match index.checked_sub(1) {
            None => Table { start: 0, slots: self.first_slots },
            Some(before) => {
                let slots = self.first_slots << before;
                Table { start: slots, slots }
            }
        }
    }

    /// The tables, the first first.
    pub(crate) fn all(self) -> impl Iterator<Item = Table> {
        (0..self.count()).map(move |index| self.table(index))
    }

    /// The table of a slot.
    pub(crate) fn index_of(self, slot: u32) -> usize {
        let index = (slot / self.first_slots).checked_ilog2().map_or(0, |log| log as usize + 1);
        index.min(self.count() - 1)
    }

    /// The table of a slot.
    pub(crate) fn of(self, slot: u32) -> Table {
        self.table(self.index_of(slot))
    }

    /// Slots of the first `used` tables, of one at least.
    pub(crate) fn slots_of(self, used: usize) -> u32 {
        let last = self.table(used.clamp(1, self.count()) - 1);
        last.start + last.slots
    }

    /// The slots where `key` can be in the first `used` tables.
    pub(crate) fn probe(self, key: BlockKey, used: usize) -> impl Iterator<Item = u32> {
        self.all().take(used.max(1)).flat_map(move |table| table.probe(key))
    }
}

impl Table {
    /// The slots where `key` can be, in order (INDEX-S1).
    pub(crate) fn probe(self, key: BlockKey) -> impl Iterator<Item = u32> {
        // A power of two, so the low half of the word decides.
        let (home, _) = halves(key.words()[0]);
        (0..PROBE_SLOTS.min(self.slots)).map(move |step| self.at(home.wrapping_add(step)))
    }

    /// The slot at `offset`, round the table.
    pub(crate) fn at(self, offset: u32) -> u32 {
        self.start + (offset & (self.slots - 1))
    }

    /// The slot after `slot`, round the table.
    pub(crate) fn after(self, slot: u32) -> u32 {
        self.at((slot - self.start).wrapping_add(1))
    }

    /// The slot before `slot`, round the table.
    pub(crate) fn before(self, slot: u32) -> u32 {
        self.at((slot - self.start).wrapping_sub(1))
    }

    /// How many slots `slot` is after the home of `key`, round the table.
    pub(crate) fn distance(self, key: BlockKey, slot: u32) -> u32 {
        let (home, _) = halves(key.words()[0]);
        (slot - self.start).wrapping_sub(home) & (self.slots - 1)
    }

    /// Most blocks that it holds (INDEX-S3).
    pub(crate) fn blocks_max(self) -> u64 {
        u64::from(self.slots) * 3 / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IndexKey;

    #[test]
    fn a_search_visits_each_slot_of_a_table_once_and_goes_round() {
        let key = BlockKey::new(IndexKey::from_words([0xffff_ffff_ffff_fffe, 0]), 0);
        let slots: Vec<_> = Tables::new(8, 8).probe(key, 1).collect();
        assert_eq!(slots, [6, 7, 0, 1, 2, 3, 4, 5]);
        let slots: Vec<_> = Tables::new(32, 8).table(1).probe(key).collect();
        assert_eq!(slots, [14, 15, 8, 9, 10, 11, 12, 13]);
        assert_eq!(Tables::new(1 << 20, 1 << 15).table(5).probe(key).count(), 256);
    }

    #[test]
    fn the_tables_are_all_of_a_segment() {
        for (slots, share_slots) in [(8, 8), (64, 8), (1 << 16, 1 << 16), (1 << 26, 1 << 20)] {
            let tables = Tables::new(slots, share_slots);
            let mut end = 0;
            for (index, table) in tables.all().enumerate() {
                assert_eq!(table.start, end);
                end = table.start + table.slots;
                for slot in [table.start, end - 1] {
                    assert_eq!((tables.index_of(slot), tables.of(slot)), (index, table));
                }
                assert_eq!(tables.slots_of(index + 1), end);
                assert_eq!(
                    (table.after(end - 1), table.before(table.start)),
                    (table.start, end - 1)
                );
            }
            assert_eq!(end, slots);
            assert!(tables.count() <= TABLES_MAX);
            let most: u64 = tables.all().map(Table::blocks_max).sum();
            assert_eq!(most, u64::from(slots) * 3 / 4);
        }
        assert_eq!(Tables::new(1 << 26, 8).count(), TABLES_MAX);
    }
}
