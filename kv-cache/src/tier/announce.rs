//! Announcing the blocks on the drives of this host to all hosts.

use cxl_shm::fabric::PublishBatch;
use cxl_shm::node::Backend;
use hashbrown::HashTable;

use super::{DriveClaim, DriveError};
use crate::format::{DriveAreas, DriveEntry, LogEntry, LogKind};
use crate::identity::{BlockKey, IndexKey, NamespaceTag};
use crate::process::Cache;

/// Entries that are published with one fence a phase.
const BATCH: usize = 256;

/// A block on a drive of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// What it is known by.
    pub key: BlockKey,
    /// Its length.
    pub bytes: u32,
    /// Blocks before it in its prefix, at most 65,535.
    pub depth: u16,
    /// The namespace that it counts for.
    pub namespace: NamespaceTag,
}

/// The drive directory of this node, as its agent writes it. One life of an agent has one.
///
/// It takes about 10 bytes of DRAM a block.
#[derive(Debug)]
pub struct DriveAnnouncer {
    pub(super) drives: DriveAreas,
    life: u32,
    /// Slots that are taken, found by key.
    table: HashTable<u32>,
    /// Slots that were taken, and are free again.
    free: Vec<u32>,
    /// The first slot that was never taken.
    fresh: u32,
}

impl DriveAnnouncer {
    /// Begins a new life of the agent (TIER-D2): nothing is announced before
    /// [`announce`](Self::announce).
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub fn begin<B: Backend>(
        claim: &DriveClaim<'_, B>,
        cache: &Cache<'_, B>,
    ) -> Result<Self, DriveError> {
        cache.check_member()?;
        let (fabric, drives) = (cache.member().fabric(), claim.drives);
        let word = cache.own_drives(drives).life();
        // 0 is the life of a blank entry.
        let life = life_of(word.own(fabric)).wrapping_add(1).max(1);
        word.publish(fabric, life.into());
        Ok(Self { drives, life, table: HashTable::new(), free: Vec::new(), fresh: 0 })
    }

    /// Blocks that are announced.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.table.len() as u64
    }

    /// Blocks that can be announced at once.
    #[must_use]
    pub fn blocks_max(&self) -> u64 {
        self.drives.plan.geometry.slots().into()
    }

    /// Announces `blocks`, which are on a drive, durably. After return every host that looks learns
    /// of them. Returns how many of `blocks` are announced. There is no room for the others.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub fn announce<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
        blocks: &[Announced],
    ) -> Result<usize, DriveError> {
        let mut announced = 0;
        for batch in blocks.chunks(BATCH) {
            cache.check_member()?;
            announced += self.announce_batch(cache, batch);
        }
        Ok(announced)
    }

    fn announce_batch<B: Backend>(&mut self, cache: &Cache<'_, B>, blocks: &[Announced]) -> usize {
        let fabric = cache.member().fabric();
        let own = cache.own_drives(self.drives);
        let (mut batch, mut log) = (PublishBatch::new(fabric), Vec::new());
        let mut announced = 0;
        for block in blocks {
            let key = block.key.index();
            if self.find(cache, key).is_none() {
                let Some(slot) = self.take_slot() else { continue };
                let Announced { bytes, depth, namespace, .. } = *block;
                let entry = DriveEntry { key, bytes, depth, namespace, life: self.life };
                for (word, value) in own.entry_words(slot).zip(own.encode(slot, &entry)) {
                    batch.word(word, value);
                }
                log.push(self.log_entry(LogKind::Published, key, slot));
                let (drives, node) = (self.drives, cache.member().node());
                let key_at = |slot: &u32| drives.of(node).entry(fabric, *slot).map(|it| it.key);
                self.table.insert_unique(hash(key), slot, |slot| key_at(slot).map_or(0, hash));
            }
            announced += 1;
        }
        batch.publish();
        // TIER-D1.
        own.log().append(fabric, &log);
        announced
    }

    /// Says that blocks are not on a drive any more, or soon will not be. Returns how many of them
    /// were announced.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub fn withdraw<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
        keys: &[BlockKey],
    ) -> Result<usize, DriveError> {
        let mut withdrawn = 0;
        for batch in keys.chunks(BATCH) {
            cache.check_member()?;
            withdrawn += self.withdraw_batch(cache, batch);
        }
        Ok(withdrawn)
    }

    fn withdraw_batch<B: Backend>(&mut self, cache: &Cache<'_, B>, keys: &[BlockKey]) -> usize {
        let fabric = cache.member().fabric();
        let own = cache.own_drives(self.drives);
        let (mut batch, mut log) = (PublishBatch::new(fabric), Vec::new());
        for key in keys.iter().map(|key| key.index()) {
            let Some(slot) = self.find(cache, key) else { continue };
            if let Ok(found) = self.table.find_entry(hash(key), |other| *other == slot) {
                found.remove();
            }
            for word in own.entry_words(slot) {
                batch.word(word, 0);
            }
            log.push(self.log_entry(LogKind::Removed, key, slot));
            self.free.push(slot);
        }
        batch.publish();
        // TIER-D1.
        own.log().append(fabric, &log);
        log.len()
    }

    /// The slot of a block that is announced.
    fn find<B: Backend>(&self, cache: &Cache<'_, B>, key: IndexKey) -> Option<u32> {
        let (fabric, node) = (cache.member().fabric(), cache.member().node());
        let own = self.drives.of(node);
        let is_key = |slot: &u32| own.entry(fabric, *slot).is_some_and(|it| it.key == key);
        self.table.find(hash(key), is_key).copied()
    }

    fn take_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = self.fresh;
            (slot < self.drives.plan.geometry.slots()).then(|| {
                self.fresh += 1;
                slot
            })
        })
    }

    fn log_entry(&self, kind: LogKind, key: IndexKey, slot: u32) -> LogEntry {
        LogEntry { kind, key, slot, generation: self.life }
    }
}

/// The life that a node's word says.
pub(super) fn life_of(word: u64) -> u32 {
    u32::try_from(word).unwrap_or(0)
}

/// Keys are uniform already.
fn hash(key: IndexKey) -> u64 {
    key.words()[0]
}
