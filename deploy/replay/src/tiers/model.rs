//! A drive without bytes, with the policy that chooses what is written to it.

use kv_drive::policy::Backups;

use super::TierOptions;
use super::drive::Drive;

/// What was written, and what was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriveFigures {
    /// Blocks that were written.
    pub written_blocks: u64,
    /// Bytes of their extents.
    pub written_bytes: u64,
    /// Blocks that left the drive.
    pub left_blocks: u64,
    /// Blocks that were due and that the pool had no more, or the drive had already.
    pub gone_blocks: u64,
    /// Blocks that were due and not admitted.
    pub refused_blocks: u64,
}

/// A drive as its agent uses it: names of blocks, which are written, and which leave. Blocks are
/// numbered from 0.
#[derive(Debug)]
pub struct DriveModel {
    drive: Drive,
    backups: Backups<u32>,
    group: usize,
    figures: DriveFigures,
}

impl DriveModel {
    /// An empty drive for as many blocks as there are depths. A depth says how many blocks are before
    /// one in its prefix ([`depths`](super::depths)).
    #[must_use]
    pub fn new(depths: Vec<u16>, options: &TierOptions) -> Self {
        let unique_blocks = u32::try_from(depths.len()).unwrap_or(u32::MAX);
        Self {
            backups: options.backups(unique_blocks),
            group: options.group(unique_blocks),
            drive: Drive::new(depths, options),
            figures: DriveFigures::default(),
        }
    }

    /// Whether a block is on the drive.
    #[must_use]
    pub fn has(&self, block: u32) -> bool {
        self.drive.has(block)
    }

    /// A request uses these blocks; those that are not there are passed over.
    pub fn used(&mut self, blocks: &[u32]) {
        self.drive.used(blocks);
    }

    /// A block is in the pool at `now_ms`, and was published or found there. Time does not go back.
    pub fn seen(&mut self, block: u32, now_ms: u64) {
        self.backups.seen(block, self.drive.has(block), now_ms);
    }

    /// The next blocks to be written together, of those that are due and in the pool.
    pub fn due(&mut self, now_ms: u64, in_pool: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut group = Vec::with_capacity(self.group);
        while group.len() < self.group
            && let Some(block) = self.backups.due(now_ms)
        {
            if in_pool(block) && !self.drive.has(block) {
                group.push(block);
            } else {
                self.figures.gone_blocks += 1;
            }
        }
        group
    }

    /// Whether blocks wait until they are due.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.backups.waiting() > 0
    }

    /// Blocks are on the drive from now on. Others leave for them.
    pub fn write(&mut self, blocks: &[u32]) {
        self.figures.written_blocks += blocks.len() as u64;
        self.figures.written_bytes += self.drive.write(blocks);
        let left = self.drive.keep_room();
        self.figures.left_blocks += left.len() as u64;
        left.into_iter().for_each(|block| self.backups.left(block));
    }

    /// The drive.
    #[must_use]
    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    /// What came of it so far.
    #[must_use]
    pub fn figures(&self) -> DriveFigures {
        DriveFigures { refused_blocks: self.backups.figures().refused, ..self.figures }
    }
}
