//! The replica: what this process believes is in the pool, in its own DRAM.
//!
//! One batched refresh of the heads of all publication logs makes it current. Then a whole prefix
//! is matched at the speed of DRAM.
//!
//! - **INDEX-R1** It is soft state. A wrong entry costs a failed fetch, which is a miss. A missing
//!   entry costs a block that is not found.
//! - **INDEX-R2** Every slot of every segment has at most one entry, so the region bounds its size,
//!   whatever the logs say. Several owners may have the same key.
//! - **INDEX-R3** An entry whose fetch failed is *quarantined*: this process does not believe in
//!   that generation of that slot any more, whatever logs and segments say. A block of this node
//!   itself is an exception, when it turns out to be readable under the heap lock
//!   (`read/damage.rs`). Only some generations are quarantined: one that the slot was seen to have,
//!   or to have had, or one that this replica has an entry of. A handle may come from anywhere. One
//!   that is newer than the slot says nothing about the slot. A block with another key or length
//!   than its reader wants is good for other readers, and stays.
//! - **INDEX-R4** Of several copies of a block all readers take that of the lowest node.
//! - **INDEX-R5** Some slots have no entry for the moment: the line was torn, or the block was
//!   EVICTING when a hold gave up. They are looked at again at the next syncs, at growing intervals
//!   ([`again`]). No log tells that a line is whole again, or that EVICTING has become READY.

mod again;
mod changes;
mod miss;
mod reader;
mod rows;
mod sync;

use cxl_shm::units::NodeId;
use hashbrown::HashTable;

use crate::format::{
    Areas, BlockState, Descriptor, DescriptorError, Handle, LogEntry, LogKind, SlotContent,
    is_newer,
};
use crate::identity::{BlockKey, IndexKey};
use again::Again;
pub use changes::Changes;
pub use miss::Miss;
pub use reader::{PoolPrefix, PoolReader};
use rows::{Mark, Rows};

/// A table of all blocks of the pool, as far as this process knows.
#[derive(Debug)]
pub(crate) struct Replica {
    areas: Areas,
    /// `owner * slots + slot` of every entry, found by key.
    table: HashTable<u32>,
    owners: Vec<Owner>,
    again: Again,
    /// What changed, where it is noted.
    changes: Option<Changes>,
}

/// A block that is a miss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missed {
    /// As it was asked for.
    pub(crate) handle: Handle,
    /// As it was asked for.
    pub(crate) key: BlockKey,
    /// Why.
    pub(crate) miss: Miss,
}

#[derive(Debug)]
struct Owner {
    /// One row a slot; none before the first entry.
    rows: Rows,
    /// How far its log was read; `None` before its segment was.
    position: Option<u64>,
}

impl Replica {
    /// An empty replica: the first [`sync`](Self::sync) fills it.
    pub(crate) fn new(areas: Areas) -> Self {
        let owner = |_| Owner { rows: Rows::default(), position: None };
        let owners = areas.layout().nodes().map(owner).collect();
        Self { areas, table: HashTable::new(), owners, again: Again::default(), changes: None }
    }

    /// Number of entries.
    pub(crate) fn blocks(&self) -> usize {
        self.table.len()
    }

    /// DRAM that it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let rows: usize = self.owners.iter().map(|owner| owner.rows.bytes()).sum();
        rows + self.table.allocation_size()
    }

    /// A block with `key`; of several owners that of the first, so that all readers use and mark
    /// the same copy and the others grow cold (INDEX-R4).
    pub(crate) fn find(&self, key: BlockKey) -> Option<Handle> {
        let key = key.index();
        let same = self.table.iter_hash(hash(key)).filter(|number| self.key_of(**number) == key);
        let (owner, slot) = self.place(*same.min()?);
        Some(Handle::new(owner, slot, self.owners[owner.index()].rows.generation(slot)))
    }

    /// Whether this process does not believe in `handle` any more (INDEX-R3).
    pub(crate) fn is_quarantined(&self, handle: Handle) -> bool {
        let rows = |owner: &Owner| {
            owner.rows.mark(handle.slot()) == Mark::Quarantined
                && owner.rows.generation(handle.slot()) == handle.generation()
        };
        self.owners.get(handle.owner().index()).is_some_and(rows)
    }

    /// Stops believing in a block that was missed, whose slot was read as `read` (INDEX-R3).
    pub(crate) fn distrust(
        &mut self,
        missed: &Missed,
        read: Option<Result<SlotContent, DescriptorError>>,
    ) {
        let Missed { handle, key, miss } = *missed;
        let (owner, slot, generation) = (handle.owner(), handle.slot(), handle.generation());
        let Some(read) = read else { return };
        if miss == Miss::Quarantined || self.is_quarantined(handle) {
            return;
        }
        let rows = &self.owners[owner.index()].rows;
        let has_entry = matches!(rows.mark(slot), Mark::Present | Mark::Undecided);
        let believed =
            has_entry && rows.generation(slot) == generation && rows.key(slot) == key.index();
        if miss.is_mismatch() {
            if believed && miss == Miss::WrongKey {
                // The entry was wrong, and the descriptor is as good as ever.
                self.remove(owner, slot);
                if let Ok(content) = read {
                    self.learn(owner, slot, content);
                }
            }
            return;
        }
        let seen = match read {
            Ok(SlotContent::Block(block)) => Some(block.handle.generation()),
            Ok(SlotContent::Free { generation, .. }) => Some(generation),
            Ok(SlotContent::Blank) | Err(_) => None,
        };
        let was_seen = seen.is_some_and(|seen| seen == generation || is_newer(seen, generation))
            && !rows.knows_newer(slot, generation);
        if !believed && !was_seen {
            return;
        }
        self.remove(owner, slot);
        let is_torn = matches!(read, Err(DescriptorError::Torn(_)));
        let rows = self.rows(owner, slot);
        rows.set_generation(slot, generation);
        rows.set_mark(slot, if is_torn { Mark::Torn } else { Mark::Quarantined });
        if is_torn {
            self.again.add(self.number(owner, slot));
        }
    }

    /// Offers a block to no lookup until its owner has decided whether it stays (INDEX-R5).
    pub(crate) fn withhold(&mut self, handle: Handle) {
        if self.areas.segment_of(handle).is_none() {
            return;
        }
        let (owner, slot) = (handle.owner(), handle.slot());
        let rows = &self.owners[owner.index()].rows;
        if rows.mark(slot) == Mark::Present && rows.generation(slot) == handle.generation() {
            self.remove(owner, slot);
            self.rows(owner, slot).set_mark(slot, Mark::Undecided);
            self.again.add(self.number(owner, slot));
        }
    }

    /// Believes in a quarantined block again, which was only torn for a moment (INDEX-R3).
    pub(crate) fn believe(&mut self, handle: Handle, key: BlockKey) {
        let (owner, slot) = (handle.owner(), handle.slot());
        let same = |owner: &Owner| owner.rows.generation(slot) == handle.generation();
        let mark =
            self.owners.get(owner.index()).filter(|it| same(it)).map(|it| it.rows.mark(slot));
        if matches!(mark, Some(Mark::Quarantined | Mark::Torn)) {
            self.rows(owner, slot).set_mark(slot, Mark::Absent);
            self.add(owner, slot, handle.generation(), key.index());
        }
    }

    /// Takes in another look at a slot of which an earlier one said nothing (INDEX-R5). Returns
    /// whether this one says something.
    fn learn_again(
        &mut self,
        owner: NodeId,
        slot: u32,
        read: Result<SlotContent, DescriptorError>,
    ) -> bool {
        let rows = &self.owners[owner.index()].rows;
        let mark = rows.mark(slot);
        if matches!(mark, Mark::Present | Mark::Quarantined) {
            // Something else has told of it since.
            return true;
        }
        let is_undecided = |block: &Descriptor| {
            mark == Mark::Undecided
                && block.state == BlockState::Evicting
                && block.handle.generation() == rows.generation(slot)
        };
        match read {
            Err(DescriptorError::Torn(_)) => false,
            Ok(SlotContent::Block(block)) if is_undecided(&block) => false,
            Err(DescriptorError::Malformed) => true,
            Ok(content) => {
                if mark != Mark::Absent {
                    self.rows(owner, slot).set_mark(slot, Mark::Absent);
                }
                self.learn(owner, slot, content);
                true
            }
        }
    }

    /// Takes in what a slot of a segment was just seen to hold.
    fn learn(&mut self, owner: NodeId, slot: u32, content: SlotContent) {
        match content {
            SlotContent::Block(block) if block.is_readable() => {
                self.add(owner, slot, block.handle.generation(), block.key.index());
            }
            // Writing: its log entry will say when it is ready.
            SlotContent::Block(_) | SlotContent::Blank => self.remove(owner, slot),
            SlotContent::Free { generation, .. } => self.forget(owner, slot, generation),
        }
    }

    /// Takes in an entry of a log.
    pub(crate) fn follow(&mut self, owner: NodeId, entry: &LogEntry) {
        let LogEntry { kind, key, slot, generation } = *entry;
        if slot >= self.areas.geometry().descriptor_slots() {
            return;
        }
        match kind {
            LogKind::Published => self.add(owner, slot, generation, key),
            LogKind::Removed => self.forget(owner, slot, generation),
        }
    }

    /// The block of `generation` is gone.
    fn forget(&mut self, owner: NodeId, slot: u32, generation: u32) {
        if !self.owners[owner.index()].rows.knows_newer(slot, generation) {
            self.remove(owner, slot);
        }
    }

    fn add(&mut self, owner: NodeId, slot: u32, generation: u32, key: IndexKey) {
        let rows = &self.owners[owner.index()].rows;
        if rows.knows_newer(slot, generation) {
            // An older entry of the log than what the segment showed.
            return;
        }
        if rows.generation(slot) == generation && rows.mark(slot) != Mark::Absent {
            // Known already, or quarantined.
            return;
        }
        self.remove(owner, slot);
        self.rows(owner, slot).set(slot, key, generation);
        let number = self.number(owner, slot);
        if let Some(changes) = &mut self.changes {
            changes.added.push((Handle::new(owner, slot, generation), key));
        }
        let Self { table, owners, areas, again: _, changes: _ } = self;
        let rehash = |number: &u32| hash(key_at(owners, areas, *number));
        table.insert_unique(hash(key), number, rehash);
    }

    /// Drops the entry of a slot, if there is one.
    fn remove(&mut self, owner: NodeId, slot: u32) {
        let rows = &mut self.owners[owner.index()].rows;
        if rows.mark(slot) != Mark::Present {
            return;
        }
        let key = rows.key(slot);
        rows.set_mark(slot, Mark::Absent);
        if let Some(changes) = &mut self.changes {
            changes.removed.push(key);
        }
        let number = self.number(owner, slot);
        if let Ok(entry) = self.table.find_entry(hash(key), |found| *found == number) {
            entry.remove();
        }
    }

    /// The rows of an owner, made when first needed: those of the table of `slot`, and before it.
    fn rows(&mut self, owner: NodeId, slot: u32) -> &mut Rows {
        let tables = self.areas.geometry().tables();
        let slots = tables.slots_of(tables.index_of(slot) + 1);
        let rows = &mut self.owners[owner.index()].rows;
        rows.ensure(slots);
        rows
    }

    fn number(&self, owner: NodeId, slot: u32) -> u32 {
        // At most 32 nodes of at most 2^26 slots.
        u32::from(owner.0) * self.areas.geometry().descriptor_slots() + slot
    }

    fn place(&self, number: u32) -> (NodeId, u32) {
        place_in(&self.areas, number)
    }

    fn key_of(&self, number: u32) -> IndexKey {
        key_at(&self.owners, &self.areas, number)
    }
}

fn place_in(areas: &Areas, number: u32) -> (NodeId, u32) {
    let slots = areas.geometry().descriptor_slots();
    let owner = u16::try_from(number / slots).expect("numbers are made of a node and a slot");
    (NodeId(owner), number % slots)
}

fn key_at(owners: &[Owner], areas: &Areas, number: u32) -> IndexKey {
    let (owner, slot) = place_in(areas, number);
    owners[owner.index()].rows.key(slot)
}

/// Keys are uniform already.
fn hash(key: IndexKey) -> u64 {
    key.words()[0]
}
