//! Which block is backed up next: blocks wait until they are old enough, then admission decides.

use std::collections::{HashSet, VecDeque};

use super::PolicyKey;
use super::admission::{Admission, AdmissionKind};

/// How long a block is READY before its backup, unless another time is chosen, in milliseconds.
pub const BACKUP_AGE_MS: u64 = 1000;

/// How blocks are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackupOptions {
    /// Which blocks are worth a write.
    pub admission: AdmissionKind,
    /// How long a block has to be READY in the pool, in milliseconds.
    pub backup_age_ms: u64,
    /// Blocks that wait at most. A block takes 64 bytes at most while it waits.
    pub waiting_max: usize,
    /// Blocks that the drive has room for: as many times two are remembered.
    pub drive_blocks: usize,
}

/// What became of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackupFigures {
    /// Blocks that began to wait.
    pub queued: u64,
    /// Blocks that were old enough and admitted.
    pub admitted: u64,
    /// Blocks that were old enough and not admitted.
    pub refused: u64,
    /// Blocks that did not wait, because too many did already.
    pub dropped: u64,
}

/// Blocks that wait for their backup (DRIVE-P1).
///
/// Waiting blocks leave in the order in which they came. What happens to a block in the pool
/// meanwhile is not told: the caller looks whether it is still there when it is due.
#[derive(Debug)]
pub struct Backups<K> {
    options: BackupOptions,
    admission: Admission,
    /// Each with the time at which it is due.
    waiting: VecDeque<(u64, K)>,
    is_waiting: HashSet<K>,
    figures: BackupFigures,
}

impl<K: PolicyKey> Backups<K> {
    /// Nothing waits, and nothing is remembered.
    #[must_use]
    pub fn new(options: BackupOptions) -> Self {
        Self {
            options,
            admission: Admission::new(options.admission, options.drive_blocks),
            waiting: VecDeque::new(),
            is_waiting: HashSet::new(),
            figures: BackupFigures::default(),
        }
    }

    /// A block became READY in the pool, or was found there, at `now_ms`. It waits from now on unless
    /// the drive has it. A block that was not admitted has another try so. Time does not go back.
    pub fn seen(&mut self, block: K, is_on_drive: bool, now_ms: u64) {
        self.admission.seen(block.bits());
        self.wait(block, is_on_drive, now_ms);
    }

    /// A block was found in the pool by a look at all of its blocks. It waits as if it was seen, and that
    /// counts as no use of it.
    pub fn found(&mut self, block: K, is_on_drive: bool, now_ms: u64) {
        self.admission.found(block.bits());
        self.wait(block, is_on_drive, now_ms);
    }

    fn wait(&mut self, block: K, is_on_drive: bool, now_ms: u64) {
        if is_on_drive || self.is_waiting.contains(&block) {
            return;
        }
        // DRIVE-P5.
        if self.waiting.len() >= self.options.waiting_max {
            self.figures.dropped += 1;
            return;
        }
        self.figures.queued += 1;
        self.waiting.push_back((now_ms.saturating_add(self.options.backup_age_ms), block));
        self.is_waiting.insert(block);
    }

    /// A block left the drive to make room.
    pub fn left(&mut self, block: K) {
        self.admission.left(block.bits());
    }

    /// The next block that is to be written, of those that are old enough at `now_ms`. The caller
    /// leaves out a block that the pool has no more.
    pub fn due(&mut self, now_ms: u64) -> Option<K> {
        while let Some((_, block)) = self.waiting.pop_front_if(|(due_ms, _)| *due_ms <= now_ms) {
            self.is_waiting.remove(&block);
            if self.admission.admits(block.bits()) {
                self.figures.admitted += 1;
                return Some(block);
            }
            self.figures.refused += 1;
        }
        None
    }

    /// Blocks that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What became of blocks so far.
    #[must_use]
    pub fn figures(&self) -> BackupFigures {
        self.figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backups(admission: AdmissionKind) -> Backups<u32> {
        let (backup_age_ms, waiting_max, drive_blocks) = (100, 3, 1000);
        Backups::new(BackupOptions { admission, backup_age_ms, waiting_max, drive_blocks })
    }

    fn all_due(backups: &mut Backups<u32>, now_ms: u64) -> Vec<u32> {
        std::iter::from_fn(|| backups.due(now_ms)).collect()
    }

    #[test]
    fn blocks_are_due_after_their_age_in_the_order_they_came() {
        let mut backups = backups(AdmissionKind::All);
        for (block, now_ms) in [(5, 10), (3, 10), (5, 40), (9, 50)] {
            backups.seen(block, false, now_ms);
        }
        assert_eq!(all_due(&mut backups, 109), [0_u32; 0]);
        assert_eq!(all_due(&mut backups, 110), [5, 3]);
        backups.seen(5, true, 120);
        assert_eq!(all_due(&mut backups, 1000), [9]);
        let figures = BackupFigures { queued: 3, admitted: 3, refused: 0, dropped: 0 };
        assert_eq!((backups.waiting(), backups.figures()), (0, figures));
    }

    #[test]
    fn a_refused_block_has_another_try_when_it_is_seen_again() {
        let mut backups = backups(AdmissionKind::SecondTouch);
        backups.seen(1, false, 0);
        backups.seen(2, false, 0);
        backups.seen(2, false, 50);
        assert_eq!(all_due(&mut backups, 100), [2]);
        backups.seen(1, false, 200);
        assert_eq!(all_due(&mut backups, 300), [1]);
        assert_eq!(backups.figures().refused, 1);
    }

    #[test]
    fn a_look_at_the_whole_pool_is_no_second_touch() {
        for kind in [AdmissionKind::SecondTouch, AdmissionKind::Frequency] {
            let mut backups = backups(kind);
            if kind == AdmissionKind::Frequency {
                // So that one sighting is not enough.
                (0..5).for_each(|_| backups.seen(77, true, 0));
                (0..640).for_each(|_| backups.left(77));
            }
            backups.seen(1, false, 0);
            backups.found(2, false, 0);
            assert_eq!(all_due(&mut backups, 100), [0_u32; 0]);
            for now_ms in [200, 400, 600] {
                backups.found(1, false, now_ms);
                backups.found(2, false, now_ms);
                assert_eq!(all_due(&mut backups, now_ms + 100), [0_u32; 0], "{kind}");
            }
            for _ in 0..20 {
                backups.seen(1, false, 800);
            }
            backups.found(1, false, 800);
            assert_eq!(all_due(&mut backups, 900), [1], "{kind}");
            // A drive that refused it gets it another time.
            backups.found(1, false, 1000);
            assert_eq!(all_due(&mut backups, 1100), [1], "{kind}");
        }
    }

    #[test]
    fn more_than_the_bound_do_not_wait_and_are_counted() {
        let mut backups = backups(AdmissionKind::All);
        (0..5).for_each(|block| backups.seen(block, false, 0));
        assert_eq!((backups.waiting(), backups.figures().dropped), (3, 2));
        assert_eq!(all_due(&mut backups, 100), [0, 1, 2]);
        backups.seen(4, false, 100);
        assert_eq!(all_due(&mut backups, 200), [4]);
    }
}
