//! Descriptor segments: each node's segment is a linear-probing hash table with one writing host.
//!
//! A segment consists of one hash table or several ([`super::tables`]). The rules hold for each.
//!
//! - **INDEX-S1** A key's home is its first 64 bits modulo the number of slots of the table. Its
//!   descriptor is in one of the [`PROBE_SLOTS`] slots from there on, wrapping around.
//! - **INDEX-S2** A search ends at a blank slot, or at a tombstone that says so. A used slot is
//!   never blank again, because it must remember its generation (BLOCK-D1). It stays as a tombstone
//!   (FREE), which inserts reuse. Searches pass over a tombstone as long as something may lie
//!   behind it. Its owner, or the reclaimer of an orphan, cleans it up, in place, once a search
//!   ends at the next slot, together with the tombstones before it. Background upkeep also cleans it up: it checks the slots where
//!   a key of its place could be, and waits until no block in them has its home at or before the
//!   tombstone.
//! - **INDEX-S3** At most three quarters of the slots hold blocks, so that searches stay short.
//!   A block goes to the first table that is not as full.
//! - **INDEX-S4** A block stays in the slot where it was published, because handles name slots.
//! - **INDEX-S5** The owner says how many tables are in use, in the line of the log's head. It
//!   publishes that together with the first descriptor of another table, which says WRITING: so
//!   before any block of that table is complete. A scan after a look at that line misses no block
//!   that the head counts. A word that says nothing possible means all tables.
//!
//! Any host searches a segment with loads alone. Lookups of engines use the replica instead (see
//! [`crate::replica`]), and the owner inserts by its directory in DRAM.

use cxl_shm::fabric::{
    Fabric, LineError, OwnedArea, OwnedLine, PeerArea, PeerLine, PeerWord, PublishBatch,
    refresh_all,
};
use cxl_shm::layout::Layout;
use cxl_shm::units::{LineRange, NodeId};

use super::{BlockState, Descriptor, DescriptorError, DescriptorLine, SlotContent, Tables, halves};
use crate::identity::BlockKey;

/// Slots in which a key can be. At the highest load of a segment (INDEX-S3) about one key in ten
/// thousand finds all of them taken.
pub const PROBE_SLOTS: u32 = 256;
/// Lines that are refreshed together in a search: most searches need one batch.
const PROBE_BATCH: usize = 16;
/// Lines that are refreshed together in a scan.
const SCAN_LINES: u64 = 4096;

/// The word that says how many tables are in use.
pub(crate) fn used_word(used: usize) -> u64 {
    let used = used as u64;
    used | (!used) << 32
}

/// How many tables are in use, as a word says (INDEX-S5). One that nobody ever wrote means one.
pub(crate) fn tables_in_use(word: u64, tables: Tables) -> usize {
    let (used, inverse) = halves(word);
    let possible = 1..=tables.count();
    match used as usize {
        0 if word == 0 => 1,
        count if used == !inverse && possible.contains(&count) => count,
        _ => tables.count(),
    }
}

/// A node's segment as any host may read it.
#[derive(Clone, Copy, Debug)]
pub struct PeerSegment {
    area: PeerArea,
    node: NodeId,
    layout: Layout,
    tables: Tables,
    used: PeerWord,
}

impl PeerSegment {
    pub(crate) fn new(
        area: PeerArea,
        node: NodeId,
        layout: Layout,
        tables: Tables,
        used: PeerWord,
    ) -> Self {
        Self { area, node, layout, tables, used }
    }

    /// Slots of the tables that the owner has begun to use, as this host's caches hold it
    /// (INDEX-S5). The slots after these are blank.
    pub(crate) fn slots_in_use(&self, fabric: &impl Fabric) -> u32 {
        self.tables.slots_of(tables_in_use(self.used.cached(fabric), self.tables))
    }

    /// Number of slots, a power of two.
    #[must_use]
    pub fn slots(&self) -> u32 {
        u32::try_from(self.area.lines()).expect("a segment has at most 2^26 slots")
    }

    /// Searches for a complete block with loads alone: of one generation as it was at some moment
    /// after the call began.
    ///
    /// Slots that cannot be read are passed over.
    pub fn probe<F: Fabric>(&self, fabric: &F, key: BlockKey) -> Option<Descriptor> {
        let used = tables_in_use(self.used.fresh(fabric), self.tables);
        self.tables
            .all()
            .take(used)
            .find_map(|table| self.probe_slots(fabric, key, &table.probe(key).collect::<Vec<_>>()))
    }

    /// Searches the slots of one table where `key` can be.
    fn probe_slots<F: Fabric>(
        &self,
        fabric: &F,
        key: BlockKey,
        slots: &[u32],
    ) -> Option<Descriptor> {
        for batch in slots.chunks(PROBE_BATCH) {
            refresh_all(fabric, batch.iter().map(|slot| self.line(*slot).range()));
            for slot in batch {
                match self.cached(fabric, *slot) {
                    Ok(SlotContent::Blank | SlotContent::Free { ends_search: true, .. }) => {
                        return None;
                    }
                    Ok(SlotContent::Block(block)) if block.key == key && block.is_readable() => {
                        return Some(block);
                    }
                    Ok(SlotContent::Free { .. } | SlotContent::Block(_)) | Err(_) => {}
                }
            }
        }
        None
    }

    /// Reads every slot of the tables that are in use, freshly, and tells `visit` what it holds.
    pub fn scan<F: Fabric>(
        &self,
        fabric: &F,
        mut visit: impl FnMut(u32, Result<SlotContent, DescriptorError>),
    ) {
        let used = tables_in_use(self.used.fresh(fabric), self.tables);
        let end = u64::from(self.tables.slots_of(used));
        let mut first = 0;
        while let Some(part) = self.area.part(first, SCAN_LINES.min(end - first)) {
            if part.lines() == 0 {
                break;
            }
            fabric.refresh(part.range());
            for line in first..first + part.lines() {
                let slot = u32::try_from(line).expect("a segment has at most 2^26 slots");
                visit(slot, self.cached(fabric, slot));
            }
            first += part.lines();
        }
    }

    /// All lines of the segment.
    #[cfg(feature = "verify")]
    pub(crate) fn all(&self) -> LineRange {
        self.area.range()
    }

    /// The line of a slot, for tools that show it.
    ///
    /// # Panics
    /// When the segment has no such slot.
    #[must_use]
    pub fn line_of(&self, slot: u32) -> LineRange {
        self.range(slot)
    }

    /// The line of a slot, to be refreshed in a batch.
    pub(crate) fn range(&self, slot: u32) -> LineRange {
        self.line(slot).range()
    }

    /// The lines of `count` slots from `first` on.
    pub(crate) fn ranges(&self, first: u32, count: u32) -> LineRange {
        let part = self.area.part(first.into(), count.into());
        part.expect("slots are checked to be in the segment").range()
    }

    /// A slot as this host's caches hold it.
    pub(crate) fn cached(
        &self,
        fabric: &impl Fabric,
        slot: u32,
    ) -> Result<SlotContent, DescriptorError> {
        content(self.line(slot).cached(fabric), self.node, slot, &self.layout)
    }

    fn line(&self, slot: u32) -> PeerLine<DescriptorLine> {
        self.area.line(u64::from(slot)).expect("slots are checked to be in the segment")
    }
}

/// This node's segment as it may write it, under the heap lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnSegment {
    area: OwnedArea,
    node: NodeId,
    layout: Layout,
}

impl OwnSegment {
    pub(crate) fn new(area: OwnedArea, node: NodeId, layout: Layout) -> Self {
        Self { area, node, layout }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn line(&self, slot: u32) -> OwnedLine<DescriptorLine> {
        self.area.line(u64::from(slot)).expect("slots are checked to be in the segment")
    }

    /// What this host last wrote to a slot.
    pub(crate) fn own(
        &self,
        fabric: &impl Fabric,
        slot: u32,
    ) -> Result<SlotContent, DescriptorError> {
        content(self.line(slot).own(fabric), self.node, slot, &self.layout)
    }

    /// A block whose writer died while it said that it may leave, or that it stays: of its line the
    /// state or the seal alone is of that write, and nothing else of the block has changed
    /// (EVICT-H6). A line that says something else, a tombstone that has begun for instance, is
    /// none.
    pub(crate) fn undecided(&self, fabric: &impl Fabric, slot: u32) -> Option<SlotContent> {
        let line = self.line(slot);
        let said = [BlockState::Ready, BlockState::Evicting]
            .into_iter()
            .find_map(|state| line.own_mended(fabric, |line| line.decide(state)))?;
        match content(Ok(said), self.node, slot, &self.layout) {
            Ok(SlotContent::Block(block)) => {
                Some(SlotContent::Block(Descriptor { state: BlockState::Evicting, ..block }))
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// Says of blocks, of which nothing else has changed, that they are in `state`. Every host sees
    /// it after return.
    #[track_caller]
    pub(crate) fn publish_as(
        &self,
        fabric: &impl Fabric,
        blocks: &[Descriptor],
        state: BlockState,
    ) {
        let mut batch = PublishBatch::new(fabric);
        for block in blocks {
            let line = DescriptorLine::block(&Descriptor { state, ..*block });
            batch.line(self.line(block.handle.slot()), &line);
        }
        batch.publish();
    }
}

fn content(
    line: Result<DescriptorLine, LineError>,
    node: NodeId,
    slot: u32,
    layout: &Layout,
) -> Result<SlotContent, DescriptorError> {
    match line {
        Ok(line) => line.decode(node, slot, layout),
        Err(LineError::Blank { .. }) => Ok(SlotContent::Blank),
        Err(error) => Err(DescriptorError::Torn(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_says_nothing_possible_means_all_tables() {
        let tables = Tables::new(64, 8);
        assert_eq!(tables_in_use(0, tables), 1);
        for used in 1..=tables.count() {
            assert_eq!(tables_in_use(used_word(used), tables), used);
        }
        for word in [1, 5, u64::MAX, used_word(0), used_word(5), used_word(2) ^ 1 << 40] {
            assert_eq!(tables_in_use(word, tables), tables.count(), "{word:#x}");
        }
    }
}
