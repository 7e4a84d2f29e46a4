//! The holds of this host's processes, in the host's DRAM: a hash table of {process, block} with
//! counts, under the heap lock (EVICT-H4).
//!
//! ```text
//! word 0      records with a count
//! word 1 ..   records of two words: present 1 bit | process u8 | owner u8 | slot u32
//!                                   generation u32 | count u32
//! ```
//!
//! A record that counts nothing is free. Searches pass over it, and end only at a record that is
//! not present. Each store leaves a table that is right, or lacks one record of a process that died
//! at this moment. The sweep counts the records again.

use cxl_shm::fabric::HostMemory;
use cxl_shm::host::ProcessSlot;
use cxl_shm::units::NodeId;

use crate::format::{Handle, halves};

const RECORD_WORDS: usize = 2;
const PRESENT: u64 = 1 << 63;
/// Most records: so many blocks can be held at once by the processes of a host, each process
/// counted.
const RECORDS_MAX: u64 = 1 << 14;
/// Records that a search looks at.
const PROBES: usize = 256;

/// Records of a table for all slots of a region.
fn records(all_slots: u64) -> usize {
    usize::try_from(all_slots.clamp(64, RECORDS_MAX).next_power_of_two()).unwrap_or(1 << 14)
}

/// Words that the table needs.
pub(crate) fn words_needed(all_slots: u64) -> usize {
    1 + records(all_slots) * RECORD_WORDS
}

/// The table of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldTable<W> {
    words: W,
    first: usize,
    records: usize,
}

impl<W: HostMemory> HoldTable<W> {
    /// The table in `words` from word `first` on, for a region of `all_slots` descriptors.
    pub(crate) fn new(words: W, first: usize, all_slots: u64) -> Self {
        Self { words, first, records: records(all_slots) }
    }

    /// Most records.
    pub(crate) fn capacity(&self) -> usize {
        self.records
    }

    /// Whether any process holds any block.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.load(self.first) == 0
    }

    /// Counts one more hold of `process`. False when there is no room for it.
    pub(crate) fn add(&self, process: ProcessSlot, handle: Handle) -> bool {
        let name = name(process, handle.owner(), handle.slot());
        let mut free = None;
        for record in self.search(handle.owner(), handle.slot()) {
            let (found, generation, count) = self.read(record);
            if found == name && generation == handle.generation() && count > 0 {
                self.write_count(record, generation, count.saturating_add(1));
                return true;
            }
            if count == 0 {
                free = free.or(Some(record));
            }
            if found == 0 {
                break;
            }
        }
        let Some(record) = free else { return false };
        // It counts nothing until its last word is there.
        self.words.store(self.at(record), name);
        self.write_count(record, handle.generation(), 1);
        self.words.store(self.first, self.words.load(self.first) + 1);
        true
    }

    /// Counts one hold of `process` less. Does nothing when it has none.
    pub(crate) fn remove(&self, process: ProcessSlot, handle: Handle) {
        let name = name(process, handle.owner(), handle.slot());
        for record in self.search(handle.owner(), handle.slot()) {
            let (found, generation, count) = self.read(record);
            if found == 0 {
                return;
            }
            if found == name && generation == handle.generation() && count > 0 {
                self.write_count(record, generation, count - 1);
                if count == 1 {
                    self.forget(record);
                }
                return;
            }
        }
    }

    /// Whether any process holds a block in this slot, of whichever generation.
    pub(crate) fn is_held(&self, owner: NodeId, slot: u32) -> bool {
        for record in self.search(owner, slot) {
            let (found, _, count) = self.read(record);
            if found == 0 {
                return false;
            }
            if count > 0 && place(found) == (owner, slot) {
                return true;
            }
        }
        false
    }

    /// Drops the holds of processes that `is_gone` names. Returns the slots that they held.
    pub(crate) fn drop_of(&self, is_gone: impl Fn(ProcessSlot) -> bool) -> Vec<(NodeId, u32)> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        for record in 0..self.records {
            let (found, generation, count) = self.read(record);
            if count > 0 && is_gone(process(found)) {
                self.write_count(record, generation, 0);
                self.forget(record);
                dropped.push(place(found));
            }
        }
        dropped
    }

    /// Counts the records anew, after a process died while it changed them.
    pub(crate) fn recount(&self) {
        let live = (0..self.records).filter(|record| self.read(*record).2 > 0).count();
        self.words.store(self.first, live as u64);
    }

    /// A record counts nothing any more.
    fn forget(&self, record: usize) {
        self.words.store(self.first, self.words.load(self.first).saturating_sub(1));
        // Where the next is not present nobody searches on: this one, and free ones before it,
        // need not be present either.
        let mut record = record;
        while self.read((record + 1) % self.records).0 == 0 {
            let (found, _, count) = self.read(record);
            if found == 0 || count > 0 {
                break;
            }
            self.words.store(self.at(record), 0);
            record = (record + self.records - 1) % self.records;
        }
    }

    fn search(&self, owner: NodeId, slot: u32) -> impl Iterator<Item = usize> + use<W> {
        let records = self.records;
        let mixed = (u64::from(slot) << 5 ^ u64::from(owner.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (_, high) = halves(mixed);
        (0..PROBES.min(records)).map(move |step| (high as usize).wrapping_add(step) % records)
    }

    fn at(&self, record: usize) -> usize {
        self.first + 1 + record * RECORD_WORDS
    }

    /// Name, generation and count of a record.
    fn read(&self, record: usize) -> (u64, u32, u32) {
        let (count, generation) = halves(self.words.load(self.at(record) + 1));
        (self.words.load(self.at(record)), generation, count)
    }

    fn write_count(&self, record: usize, generation: u32, count: u32) {
        self.words.store(self.at(record) + 1, u64::from(generation) << 32 | u64::from(count));
    }
}

fn name(process: ProcessSlot, owner: NodeId, slot: u32) -> u64 {
    PRESENT | u64::from(process.0) << 40 | u64::from(owner.0) << 32 | u64::from(slot)
}

fn process(name: u64) -> ProcessSlot {
    ProcessSlot(u16::from(name.to_le_bytes()[5]))
}

fn place(name: u64) -> (NodeId, u32) {
    let (slot, _) = halves(name);
    (NodeId(u16::from(name.to_le_bytes()[4])), slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxl_shm::verify::simulated::SimulatedRack;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn table(slots: u64) -> HoldTable<impl HostMemory + Clone> {
        let rack = SimulatedRack::sticky(1, 4096);
        HoldTable::new(rack.host_memory(0, 8 + words_needed(slots)), 8, slots)
    }

    fn handle(owner: u16, slot: u32, generation: u32) -> Handle {
        Handle::new(NodeId(owner), slot, generation)
    }

    #[test]
    fn a_block_is_held_until_the_last_holder_lets_it_go() {
        let table = table(64);
        let (a, b) = (ProcessSlot(3), ProcessSlot(255));
        let block = handle(31, 9, 4);
        assert!(table.add(a, block) && table.add(a, block) && table.add(b, block));
        table.remove(b, handle(31, 9, 3));
        for process in [a, b, a] {
            assert!(table.is_held(NodeId(31), 9));
            table.remove(process, block);
        }
        assert!(!table.is_held(NodeId(31), 9) && table.is_empty());
        table.remove(a, block);
        assert!(table.is_empty());
    }

    #[test]
    fn what_the_dead_held_is_dropped() {
        let table = table(64);
        for slot in 0..40 {
            assert!(table.add(ProcessSlot(slot % 2), handle(0, u32::from(slot), 1)));
        }
        let dropped = table.drop_of(|process| process == ProcessSlot(1));
        assert_eq!(dropped.len(), 20);
        for slot in 0..40 {
            assert_eq!(table.is_held(NodeId(0), slot), slot % 2 == 0);
        }
    }

    #[test]
    fn a_full_table_says_so_and_has_room_again_later() {
        let table = table(1);
        let me = ProcessSlot(0);
        let most = u32::try_from(table.capacity()).unwrap();
        for slot in 0..most {
            assert!(table.add(me, handle(0, slot, 1)));
        }
        assert!(!table.add(me, handle(0, most, 1)));
        assert!(table.add(me, handle(0, 0, 1)), "counted where it is");
        table.remove(me, handle(0, 7, 1));
        assert!(table.add(me, handle(0, most, 1)));
        assert!(table.is_held(NodeId(0), most) && !table.is_held(NodeId(0), 7));
    }

    proptest! {
        #[test]
        fn it_counts_like_a_map(steps in prop::collection::vec((0u8..3, 0u16..3, 0u16..2, 0u32..24, 1u32..3), 0..300)) {
            let table = table(512);
            let mut model: HashMap<(u16, Handle), u32> = HashMap::new();
            for (what, process, owner, slot, generation) in steps {
                let handle = handle(owner, slot, generation);
                match what {
                    0 => {
                        prop_assert!(table.add(ProcessSlot(process), handle));
                        *model.entry((process, handle)).or_default() += 1;
                    }
                    1 => {
                        table.remove(ProcessSlot(process), handle);
                        if let Some(count) = model.get_mut(&(process, handle)) {
                            *count -= 1;
                        }
                        model.retain(|_, count| *count > 0);
                    }
                    _ => {
                        table.drop_of(|gone| gone.0 == process && slot == 0);
                        model.retain(|(name, _), _| *name != process || slot != 0);
                    }
                }
                let held = |owner, slot| {
                    model.keys().any(|(_, it)| (it.owner(), it.slot()) == (owner, slot))
                };
                for owner in [NodeId(0), NodeId(1)] {
                    for slot in 0..24 {
                        prop_assert_eq!(table.is_held(owner, slot), held(owner, slot));
                    }
                }
                prop_assert_eq!(table.is_empty(), model.is_empty());
            }
        }
    }
}
