//! The holds of this host's processes, in the host's DRAM: records of {process, block} with counts,
//! under the heap lock (EVICT-H4).
//!
//! ```text
//! word 0       records with a count
//! word 1       records that were ever taken u32 | 1 + first free record u32
//! word 2 ..    a word per process of the host: 1 + first record of its chain
//! ..           a word per bucket: 1 + first record of its chain
//! ..           records of three words:
//!              count u24 | process u8 | owner u6 | slot u26
//!              generation u32 | 1 + previous record of the process u32
//!              1 + next record of the bucket, or next free one u32 | 1 + next of the process u32
//! ```
//!
//! A record is in two chains: that of its bucket, by which a hold is found, and that of its
//! process, by which all holds of a process that died are found. So a release costs what it
//! releases, and a death costs what the process held, however large the table is.
//!
//! The first word of a record is the only truth. A record that counts nothing is free. Each store
//! leaves records that are right, or lack one record of a process that died at this moment. The
//! chains may be wrong then: the sweep [builds them anew](HoldTable::rebuild) from the records. An
//! index that is not of a record in use ends a chain, so a wrong chain never leads out of the
//! table.

use cxl_shm::fabric::HostMemory;
use cxl_shm::host::{PROCESSES_MAX, ProcessSlot};
use cxl_shm::units::NodeId;

use crate::format::{Handle, halves};

const RECORD_WORDS: usize = 3;
const WORD_COUNTED: usize = 0;
const WORD_TAKEN: usize = 1;
const WORD_PROCESSES: usize = 2;
const WORD_BUCKETS: usize = WORD_PROCESSES + PROCESSES_MAX as usize;
/// Fewest records of a table.
const RECORDS_MIN: u64 = 64;
/// Most records: an index and one fits a half of a word.
const RECORDS_MAX: u64 = 1 << 31;
/// Most buckets: so many heads stay in a processor's cache, and chains are short as long as a
/// million blocks are held.
const BUCKETS_MAX: usize = 1 << 20;
const COUNT_MAX: u32 = (1 << 24) - 1;

/// Records and buckets of a table for `holds` holds.
fn sizes(holds: u64) -> (usize, usize) {
    let records = usize::try_from(holds.clamp(RECORDS_MIN, RECORDS_MAX)).unwrap_or(1 << 31);
    (records, records.next_power_of_two().min(BUCKETS_MAX))
}

/// Words that a table for `holds` holds needs.
pub(crate) fn words_needed(holds: u64) -> usize {
    let (records, buckets) = sizes(holds);
    WORD_BUCKETS + buckets + records * RECORD_WORDS
}

/// The table of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldTable<W> {
    words: W,
    first: usize,
    records: usize,
    buckets: usize,
    /// Slots that differ in other bits have one reader word.
    place_mask: u32,
}

/// What a record counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    process: ProcessSlot,
    owner: NodeId,
    slot: u32,
}

impl Name {
    fn word(self, count: u32) -> u64 {
        let place = u64::from(self.owner.0 & 63) << 26 | u64::from(self.slot & SLOT_MASK);
        u64::from(count) << 40 | u64::from(self.process.0 & 255) << 32 | place
    }

    /// Name and count.
    fn from_word(word: u64) -> (Self, u32) {
        let (place, high) = halves(word);
        let [process, ..] = high.to_le_bytes();
        let owner = u16::try_from(place >> 26).unwrap_or(u16::MAX);
        let process = ProcessSlot(u16::from(process));
        (Self { process, owner: NodeId(owner), slot: place & SLOT_MASK }, high >> 8)
    }
}

const SLOT_MASK: u32 = (1 << 26) - 1;

impl<W: HostMemory> HoldTable<W> {
    /// The table in `words` from word `first` on, for `holds` holds. Of each node there are reader
    /// words for `share_slots` slots, a power of two.
    pub(crate) fn new(words: W, first: usize, holds: u64, share_slots: u32) -> Self {
        let (records, buckets) = sizes(holds);
        Self { words, first, records, buckets, place_mask: share_slots - 1 }
    }

    /// Most records.
    pub(crate) fn capacity(&self) -> usize {
        self.records
    }

    /// Records that count something: one for each process and block.
    pub(crate) fn counted(&self) -> u64 {
        self.load(WORD_COUNTED)
    }

    /// Whether any process holds any block.
    pub(crate) fn is_empty(&self) -> bool {
        self.counted() == 0
    }

    /// Counts one more hold of `process`. False when there is no room for it.
    pub(crate) fn add(&self, process: ProcessSlot, handle: Handle) -> bool {
        let name = Name { process, owner: handle.owner(), slot: handle.slot() };
        if let Some((record, count)) = self.find(name, handle.generation()) {
            self.store(self.at(record), name.word((count + 1).min(COUNT_MAX)));
            return true;
        }
        let Some(record) = self.take() else { return false };
        let bucket = self.bucket(name.owner, name.slot);
        let chain = self.chain_of(process);
        let (next, of_process) = (self.load(bucket), self.load(chain));
        self.store(self.at(record) + 1, u64::from(handle.generation()));
        self.store(self.at(record) + 2, next | of_process << 32);
        // From here on it counts.
        self.store(self.at(record), name.word(1));
        self.store(bucket, index_word(record));
        self.store(chain, index_word(record));
        if let Some(other) = self.record_of(of_process) {
            self.set_previous(other, index_word(record));
        }
        self.store(WORD_COUNTED, self.load(WORD_COUNTED) + 1);
        true
    }

    /// Counts one hold of `process` less. Does nothing when it has none.
    pub(crate) fn remove(&self, process: ProcessSlot, handle: Handle) {
        let name = Name { process, owner: handle.owner(), slot: handle.slot() };
        match self.find(name, handle.generation()) {
            None => {}
            Some((record, 1)) => self.forget(record, name),
            Some((record, count)) => self.store(self.at(record), name.word(count - 1)),
        }
    }

    /// Whether any process holds a block in this slot, of whichever generation, or in one that has
    /// the same reader word.
    pub(crate) fn is_held(&self, owner: NodeId, slot: u32) -> bool {
        self.chain(self.bucket(owner, slot)).any(|record| {
            let (name, count) = self.read(record);
            let differs = (name.slot ^ slot) & self.place_mask != 0;
            count > 0 && name.owner == owner && !differs
        })
    }

    /// Drops holds of processes that `is_gone` names, at most `most`. Returns the slots that they
    /// held. Costs what is dropped, and a look at one word for each place of a process. A chain that
    /// leads to what is not its process's is wrong: then all are built anew, once.
    pub(crate) fn drop_of(
        &self,
        is_gone: impl Fn(ProcessSlot) -> bool,
        most: usize,
    ) -> Vec<(NodeId, u32)> {
        let (mut dropped, mut is_anew) = (Vec::new(), false);
        if self.is_empty() {
            return dropped;
        }
        for process in (0..PROCESSES_MAX).map(ProcessSlot) {
            let first = || self.record_of(self.load(self.chain_of(process)));
            if first().is_none() || !is_gone(process) {
                continue;
            }
            while let Some(record) = first() {
                if dropped.len() >= most {
                    return dropped;
                }
                let (name, count) = self.read(record);
                if name.process != process || count == 0 {
                    if std::mem::replace(&mut is_anew, true) {
                        break;
                    }
                    self.rebuild();
                    continue;
                }
                self.forget(record, name);
                dropped.push((name.owner, name.slot));
            }
        }
        dropped
    }

    /// Makes chains, free records and their number anew from what the records count, after a
    /// process died while it changed them. Costs what was ever held at one time.
    pub(crate) fn rebuild(&self) {
        let (taken, _) = halves(self.load(WORD_TAKEN));
        let taken = self.in_table(taken);
        let clear = |at: usize| {
            if self.load(at) != 0 {
                self.store(at, 0);
            }
        };
        (WORD_PROCESSES..WORD_BUCKETS).for_each(clear);
        // A free record keeps its name: no bucket has a chain but those of the names.
        for record in 0..taken {
            let (name, _) = self.read(record);
            clear(self.bucket(name.owner, name.slot));
        }
        let (mut free, mut counted) = (0, 0);
        for record in 0..taken {
            let (name, count) = self.read(record);
            if count == 0 {
                self.store(self.at(record) + 2, free);
                free = index_word(record);
                continue;
            }
            let bucket = self.bucket(name.owner, name.slot);
            let chain = self.chain_of(name.process);
            let (next, of_process) = (self.load(bucket), self.load(chain));
            self.set_previous(record, 0);
            self.store(self.at(record) + 2, next | of_process << 32);
            if let Some(other) = self.record_of(of_process) {
                self.set_previous(other, index_word(record));
            }
            self.store(bucket, index_word(record));
            self.store(chain, index_word(record));
            counted += 1;
        }
        self.store(WORD_TAKEN, taken as u64 | free << 32);
        self.store(WORD_COUNTED, counted);
    }

    /// The record that counts what `name` holds of this generation, and the count.
    fn find(&self, name: Name, generation: u32) -> Option<(usize, u32)> {
        self.chain(self.bucket(name.owner, name.slot)).find_map(|record| {
            let (found, count) = self.read(record);
            let (of, _) = halves(self.load(self.at(record) + 1));
            (count > 0 && found == name && of == generation).then_some((record, count))
        })
    }

    /// A free record.
    fn take(&self) -> Option<usize> {
        let (taken, free) = halves(self.load(WORD_TAKEN));
        if let Some(record) = self.record_of(u64::from(free)) {
            let (next, _) = halves(self.load(self.at(record) + 2));
            self.store(WORD_TAKEN, u64::from(taken) | u64::from(next) << 32);
            return Some(record);
        }
        let record = taken as usize;
        (record < self.records).then(|| {
            self.store(WORD_TAKEN, u64::from(taken) + 1);
            record
        })
    }

    /// A record counts nothing any more.
    fn forget(&self, record: usize, name: Name) {
        let at = self.at(record);
        let (_, previous) = halves(self.load(at + 1));
        let (next, of_process) = halves(self.load(at + 2));
        self.store(at, name.word(0));
        let bucket = self.bucket(name.owner, name.slot);
        let before = self.chain(bucket).find(|other| self.next_of(*other) == index_word(record));
        match before {
            Some(before) => {
                let at = self.at(before) + 2;
                let (_, of_process) = halves(self.load(at));
                self.store(at, u64::from(next) | u64::from(of_process) << 32);
            }
            None => self.store(bucket, u64::from(next)),
        }
        match self.record_of(u64::from(previous)) {
            Some(before) => {
                let at = self.at(before) + 2;
                let (next, _) = halves(self.load(at));
                self.store(at, u64::from(next) | u64::from(of_process) << 32);
            }
            None => self.store(self.chain_of(name.process), u64::from(of_process)),
        }
        if let Some(after) = self.record_of(u64::from(of_process)) {
            self.set_previous(after, u64::from(previous));
        }
        let (taken, free) = halves(self.load(WORD_TAKEN));
        self.store(at + 2, u64::from(free));
        self.store(WORD_TAKEN, u64::from(taken) | index_word(record) << 32);
        self.store(WORD_COUNTED, self.load(WORD_COUNTED).saturating_sub(1));
    }

    /// The records of a bucket. Of a chain that a death left wrong, no more than there are.
    fn chain(&self, bucket: usize) -> impl Iterator<Item = usize> + '_ {
        let (taken, _) = halves(self.load(WORD_TAKEN));
        let next = |record: &usize| self.record_of(self.next_of(*record));
        std::iter::successors(self.record_of(self.load(bucket)), next).take(self.in_table(taken))
    }

    /// The word that names the next record of the same bucket.
    fn next_of(&self, record: usize) -> u64 {
        let (next, _) = halves(self.load(self.at(record) + 2));
        u64::from(next)
    }

    fn set_previous(&self, record: usize, previous: u64) {
        let at = self.at(record) + 1;
        let (generation, _) = halves(self.load(at));
        self.store(at, u64::from(generation) | previous << 32);
    }

    /// The record that a word names, if it is one in use.
    fn record_of(&self, word: u64) -> Option<usize> {
        let (taken, _) = halves(self.load(WORD_TAKEN));
        let record = usize::try_from(word.checked_sub(1)?).ok()?;
        (record < self.in_table(taken)).then_some(record)
    }

    fn in_table(&self, taken: u32) -> usize {
        (taken as usize).min(self.records)
    }

    /// The word of the bucket of a slot.
    fn bucket(&self, owner: NodeId, slot: u32) -> usize {
        let slot = slot & self.place_mask;
        let mixed = (u64::from(slot) << 6 ^ u64::from(owner.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (_, high) = halves(mixed);
        WORD_BUCKETS + (high as usize & (self.buckets - 1))
    }

    /// The word of the chain of a process.
    fn chain_of(&self, process: ProcessSlot) -> usize {
        WORD_PROCESSES + usize::from(process.0 % PROCESSES_MAX)
    }

    fn at(&self, record: usize) -> usize {
        WORD_BUCKETS + self.buckets + record * RECORD_WORDS
    }

    /// Name and count of a record.
    fn read(&self, record: usize) -> (Name, u32) {
        Name::from_word(self.load(self.at(record)))
    }

    fn load(&self, word: usize) -> u64 {
        self.words.load(self.first + word)
    }

    fn store(&self, word: usize, value: u64) {
        self.words.store(self.first + word, value);
    }
}

fn index_word(record: usize) -> u64 {
    record as u64 + 1
}

#[cfg(test)]
mod tests;
