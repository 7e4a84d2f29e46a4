//! Blocks of this node that are in the pool and on no drive, and the policy that decides on them.

use std::collections::{HashMap, VecDeque};

use kv_cache::{BlockKey, Handle, OwnUse};
use kv_drive::policy::{AdmissionKind, BackupFigures, BackupOptions, Backups};

use super::Candidate;

/// Blocks whose uses are looked at in one turn.
const LOOKED_AT: usize = 256;
/// No block is looked at more often, in milliseconds.
const LOOK_AGAIN_MS: u64 = 2_000;

/// A block that was seen in the pool.
#[derive(Clone, Copy, Debug)]
struct Known {
    block: Candidate,
    /// The position in the node's log of its publication, or of its last use that was seen.
    used: u64,
    /// The time of its entry among the looks: others with its key are of an earlier time that it was
    /// known.
    looked_ms: u64,
}

/// The last position of a log at which a use of a block is no news, when the log had the position `now`
/// as the block was found. No use since then has another position than `now` while the node publishes
/// nothing.
pub(super) const fn before(now: u64) -> u64 {
    now.saturating_sub(1)
}

/// What may be backed up.
#[derive(Debug)]
pub(super) struct KnownBlocks {
    policy: Backups<BlockKey>,
    blocks: HashMap<BlockKey, Known>,
    /// The order in which uses are looked at, and when each was looked at last. Empty when every
    /// block is admitted.
    looks: VecDeque<(u64, BlockKey)>,
    watches_uses: bool,
}

impl KnownBlocks {
    pub(super) fn new(options: BackupOptions) -> Self {
        Self {
            policy: Backups::new(options),
            blocks: HashMap::new(),
            looks: VecDeque::new(),
            watches_uses: options.admission != AdmissionKind::All,
        }
    }

    /// A block was published at position `published` of the node's log. Says whether there was room for
    /// it.
    pub(super) fn seen(
        &mut self,
        block: Candidate,
        published: u64,
        is_on_drive: bool,
        now_ms: u64,
    ) -> bool {
        let dropped = self.policy.figures().dropped;
        self.policy.seen(block.key, is_on_drive, now_ms);
        let has_room = self.policy.figures().dropped == dropped;
        self.enter(block, published, is_on_drive, has_room, now_ms)
    }

    /// A block was found by a look at the whole pool, when the log had the position `now`. Says whether
    /// there was room for it.
    pub(super) fn found(
        &mut self,
        block: Candidate,
        now: u64,
        is_on_drive: bool,
        now_ms: u64,
    ) -> bool {
        let dropped = self.policy.figures().dropped;
        self.policy.found(block.key, is_on_drive, now_ms);
        let has_room = self.policy.figures().dropped == dropped;
        // What was seen of its uses stays.
        let same = |known: &&Known| known.block.handle == block.handle;
        let known = self.blocks.get(&block.key).filter(same);
        let used = known.map_or(before(now), |known| known.used);
        self.enter(block, used, is_on_drive, has_room, now_ms)
    }

    fn enter(
        &mut self,
        block: Candidate,
        used: u64,
        is_on_drive: bool,
        has_room: bool,
        now_ms: u64,
    ) -> bool {
        if is_on_drive || !has_room {
            self.blocks.remove(&block.key);
            return has_room;
        }
        let entry = self.blocks.get(&block.key).map(|known| known.looked_ms);
        let looked_ms = entry.unwrap_or(now_ms);
        self.blocks.insert(block.key, Known { block, used, looked_ms });
        if entry.is_none() && self.watches_uses {
            self.looks.push_back((now_ms, block.key));
        }
        true
    }

    /// Blocks whose uses are to be looked at now.
    pub(super) fn next_looks(&mut self, now_ms: u64) -> Vec<(BlockKey, Handle)> {
        let mut found = Vec::new();
        while found.len() < LOOKED_AT
            && self.looks.front().is_some_and(|(at, _)| at + LOOK_AGAIN_MS <= now_ms)
        {
            let Some((at_ms, key)) = self.looks.pop_front() else { break };
            // One that was written or that is gone is looked at no more.
            let known = self.blocks.get_mut(&key).filter(|known| known.looked_ms == at_ms);
            if let Some(known) = known {
                found.push((key, known.block.handle));
                known.looked_ms = now_ms;
                self.looks.push_back((now_ms, key));
            }
        }
        found
    }

    /// What a look at the use of a block has shown.
    pub(super) fn looked(&mut self, key: BlockKey, found: OwnUse, now_ms: u64) {
        let Some(known) = self.blocks.get_mut(&key) else { return };
        match found {
            OwnUse::Gone => self.gone(&key),
            OwnUse::At(position) if position > known.used => {
                known.used = position;
                self.policy.seen(key, false, now_ms);
            }
            OwnUse::At(_) | OwnUse::Never => {}
        }
    }

    /// The next block that is old enough and admitted.
    pub(super) fn due(&mut self, now_ms: u64) -> Option<Candidate> {
        loop {
            let key = self.policy.due(now_ms)?;
            if let Some(known) = self.blocks.remove(&key) {
                return Some(known.block);
            }
        }
    }

    /// A block is not in the pool any more.
    pub(super) fn gone(&mut self, key: &BlockKey) {
        self.blocks.remove(key);
    }

    /// A block left the drive to make room.
    pub(super) fn left_drive(&mut self, key: BlockKey) {
        self.policy.left(key);
    }

    pub(super) fn figures(&self) -> BackupFigures {
        self.policy.figures()
    }
}

#[cfg(test)]
mod tests {
    use super::super::backlog::tests::block;
    use super::*;

    fn known(admission: AdmissionKind, waiting_max: usize) -> KnownBlocks {
        let (backup_age_ms, drive_blocks) = (100, 1000);
        KnownBlocks::new(BackupOptions { admission, backup_age_ms, waiting_max, drive_blocks })
    }

    fn due(known: &mut KnownBlocks, now_ms: u64) -> Vec<BlockKey> {
        std::iter::from_fn(|| known.due(now_ms)).map(|block| block.key).collect()
    }

    #[test]
    fn a_block_is_due_once_after_its_age() {
        let mut known = known(AdmissionKind::All, 10);
        let (first, second) = (block(1, 0, 10), block(2, 0, 10));
        assert!(known.seen(first, 5, false, 0));
        assert!(known.seen(second, 6, true, 0), "it is on a drive");
        assert_eq!(due(&mut known, 99), []);
        assert_eq!(due(&mut known, 100), [first.key]);
        assert_eq!(due(&mut known, 500), []);
        assert_eq!(known.next_looks(10_000), [], "every block is admitted: no use is looked at");
    }

    #[test]
    fn what_is_gone_or_has_no_room_is_not_remembered() {
        let mut known = known(AdmissionKind::All, 1);
        assert!(known.seen(block(1, 0, 10), 0, false, 0));
        assert!(!known.seen(block(2, 0, 10), 0, false, 0));
        known.gone(&block(1, 0, 10).key);
        assert_eq!(due(&mut known, 100), []);
        assert!(known.blocks.is_empty());
    }

    #[test]
    fn a_use_after_a_look_at_the_pool_admits_though_nothing_was_published_between() {
        let mut known = known(AdmissionKind::SecondTouch, 10);
        let blocks = [1, 2].map(|number| block(number, 0, 10));
        for block in blocks {
            assert!(known.found(block, 50, false, 0));
        }
        assert_eq!(due(&mut known, 200), []);
        known.looked(blocks[0].key, OwnUse::At(49), LOOK_AGAIN_MS);
        known.looked(blocks[1].key, OwnUse::At(50), LOOK_AGAIN_MS);
        assert_eq!(due(&mut known, LOOK_AGAIN_MS + 100), [blocks[1].key]);
        assert!(known.found(blocks[0], 60, false, LOOK_AGAIN_MS));
        known.looked(blocks[0].key, OwnUse::At(50), 2 * LOOK_AGAIN_MS);
        let at_ms = 2 * LOOK_AGAIN_MS + 100;
        assert_eq!(due(&mut known, at_ms), [blocks[0].key], "seen after the first look");
    }

    #[test]
    fn a_block_that_comes_and_goes_is_looked_at_once_at_a_time() {
        let mut known = known(AdmissionKind::SecondTouch, 10);
        let coming = block(1, 0, 10);
        for turn in 0..10 {
            assert!(known.seen(coming, 50, false, turn * LOOK_AGAIN_MS));
            known.gone(&coming.key);
            assert!(known.seen(coming, 50, false, turn * LOOK_AGAIN_MS + 1));
            assert!(known.next_looks(turn * LOOK_AGAIN_MS + 1).len() <= 1);
        }
        assert!(known.looks.len() <= 2, "{} looks of one block", known.looks.len());
    }

    #[test]
    fn a_use_after_the_publication_admits() {
        let mut known = known(AdmissionKind::SecondTouch, 10);
        let blocks = [1, 2, 3].map(|number| block(number, 0, 10));
        for block in blocks {
            assert!(known.seen(block, 50, false, 0));
        }
        assert_eq!(due(&mut known, 200), []);
        assert_eq!(known.figures().refused, 3);
        assert_eq!(known.next_looks(LOOK_AGAIN_MS - 1), []);
        let looks = known.next_looks(LOOK_AGAIN_MS);
        assert_eq!(looks.len(), 3);
        assert_eq!(known.next_looks(LOOK_AGAIN_MS), [], "each was looked at a moment ago");
        known.looked(blocks[0].key, OwnUse::At(50), LOOK_AGAIN_MS);
        known.looked(blocks[1].key, OwnUse::At(51), LOOK_AGAIN_MS);
        known.looked(blocks[2].key, OwnUse::Gone, LOOK_AGAIN_MS);
        assert_eq!(due(&mut known, LOOK_AGAIN_MS + 100), [blocks[1].key]);
        assert_eq!(known.next_looks(3 * LOOK_AGAIN_MS).len(), 1, "one is written, one is gone");
    }
}
