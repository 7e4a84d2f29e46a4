//! A drive behind a pool: which blocks would come from where, and what is written for that.
//!
//! The pool does the same with a drive as without one. After a request the pool has its blocks, and
//! it does not matter whether they were computed or restored. So a drive adds hits, and changes
//! nothing else.
//!
//! A block of a request is a hit when all blocks before it are hits, and the pool has it, or else the
//! drive. Candidates for backups are the blocks that a request leaves in the pool. Before a request
//! those are written that are due by the time of the trace, and that the pool still has.

mod drive;
mod model;

use kv_cache::Watermarks;
use kv_drive::io::PAGE_BYTES;
use kv_drive::policy::{AdmissionKind, BackupOptions, Backups, drive_writes_per_day};

use super::pool::PoolSimulation;
use super::simulation::{Outcome, Simulation};
use super::trace::Trace;

pub use drive::{Drive, depths};
pub use model::{DriveFigures, DriveModel};

/// Blocks that wait for their backup at most: more than any pool of a replay has.
const WAITING_MAX: usize = 1 << 26;
/// Blocks that become durable together at most.
const GROUP_MAX: usize = 64;

/// The upper tier.
pub trait TierPool {
    /// Whether a block is there.
    fn has(&self, block: u32) -> bool;

    /// Replays the next request. `false` when there is none.
    fn step(&mut self) -> bool;

    /// What came of it so far.
    fn outcome(&self) -> Outcome;
}

impl TierPool for Simulation<'_> {
    fn has(&self, block: u32) -> bool {
        Simulation::has(self, block)
    }

    fn step(&mut self) -> bool {
        Simulation::step(self)
    }

    fn outcome(&self) -> Outcome {
        Simulation::outcome(self)
    }
}

impl TierPool for PoolSimulation<'_> {
    fn has(&self, block: u32) -> bool {
        PoolSimulation::has(self, block)
    }

    fn step(&mut self) -> bool {
        PoolSimulation::step(self)
    }

    fn outcome(&self) -> Outcome {
        PoolSimulation::outcome(self)
    }
}

/// What the drive is, and how blocks are chosen for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierOptions {
    /// Which blocks are written.
    pub admission: AdmissionKind,
    /// How long a block waits for its backup, in milliseconds.
    pub backup_age_ms: u64,
    /// Length of a block.
    pub block_bytes: u64,
    /// Bytes that extents may take. `None` is no limit.
    pub room_bytes: Option<u64>,
    /// Between which levels of use the drive is kept.
    pub watermarks: Watermarks,
}

impl TierOptions {
    /// Bytes that a block takes on the drive: whole pages.
    #[must_use]
    pub fn extent_bytes(&self) -> u64 {
        self.block_bytes.max(1).next_multiple_of(PAGE_BYTES.into())
    }

    /// Blocks that the drive has room for; for all `unique_blocks` of a trace when it has no limit.
    #[must_use]
    pub fn drive_blocks(&self, unique_blocks: u32) -> u64 {
        let blocks = self.room_bytes.map(|bytes| bytes / self.extent_bytes());
        blocks.unwrap_or_else(|| unique_blocks.into())
    }

    /// Blocks that become durable together: few against the room that the watermarks leave.
    #[must_use]
    pub fn group(&self, unique_blocks: u32) -> usize {
        usize::try_from(self.drive_blocks(unique_blocks) / 64)
            .unwrap_or(GROUP_MAX)
            .clamp(1, GROUP_MAX)
    }

    /// How blocks of a trace with `unique_blocks` are chosen.
    fn backups(&self, unique_blocks: u32) -> Backups<u32> {
        Backups::new(BackupOptions {
            admission: self.admission,
            backup_age_ms: self.backup_age_ms,
            waiting_max: WAITING_MAX,
            drive_blocks: usize::try_from(self.drive_blocks(unique_blocks)).unwrap_or(usize::MAX),
        })
    }
}

/// What came of a replay with a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierOutcome {
    /// What the pool would have done alone.
    pub pool_alone: Outcome,
    /// Hits of blocks that the pool had.
    pub pool_hits: u64,
    /// Hits of blocks that the drive had, and the pool had not.
    pub drive_hits: u64,
    /// All other blocks of requests.
    pub misses: u64,
    /// Blocks that were written to the drive.
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

impl TierOutcome {
    /// Hits of both tiers as a share of all blocks, from 0 to 1; 0 when there were none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let hits = self.pool_hits + self.drive_hits;
        Outcome { hits, ..self.pool_alone }.hit_rate()
    }

    /// Bytes written for each byte that was hit on the drive. `None` when none was.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn written_a_hit(&self, options: &TierOptions) -> Option<f64> {
        let hit_bytes = self.drive_hits * options.block_bytes;
        (hit_bytes > 0).then(|| self.written_bytes as f64 / hit_bytes as f64)
    }

    /// How often the drive is written whole in a day like the trace. `None` without a limit of the
    /// drive, or without times.
    #[must_use]
    pub fn drive_writes_per_day(&self, options: &TierOptions, trace: &Trace) -> Option<f64> {
        let elapsed_ms = trace.duration_ms().filter(|ms| *ms > 0)?;
        Some(drive_writes_per_day(self.written_bytes, options.room_bytes?, elapsed_ms))
    }
}

/// A replay through a pool and a drive under way: one request after the other.
#[derive(Debug)]
pub struct TierSimulation<'t, P> {
    trace: &'t Trace,
    pool: P,
    drive: DriveModel,
    next: usize,
    outcome: TierOutcome,
}

impl<'t, P: TierPool> TierSimulation<'t, P> {
    /// A replay of `trace` through `pool`, which has replayed nothing yet, and an empty drive.
    #[must_use]
    pub fn new(trace: &'t Trace, pool: P, options: &TierOptions) -> Self {
        let depths = depths(trace.unique_blocks(), trace.requests().iter().map(Vec::as_slice));
        let drive = DriveModel::new(depths, options);
        Self { trace, pool, drive, next: 0, outcome: TierOutcome::default() }
    }

    /// Replays the next request. `false` when there is none.
    pub fn step(&mut self) -> bool {
        let Some(request) = self.trace.requests().get(self.next) else { return false };
        let now_ms = self.trace.times_ms()[self.next];
        self.next += 1;
        self.back_up(now_ms);
        let (mut pool_hits, mut drive_hits) = (0, 0);
        for block in request {
            match (self.pool.has(*block), self.drive.has(*block)) {
                (true, _) => pool_hits += 1,
                (false, true) => drive_hits += 1,
                (false, false) => break,
            }
        }
        self.outcome.pool_hits += pool_hits;
        self.outcome.drive_hits += drive_hits;
        self.outcome.misses += request.len() as u64 - pool_hits - drive_hits;
        self.drive.used(request);
        self.pool.step();
        for block in request.iter().filter(|block| self.pool.has(**block)) {
            self.drive.seen(*block, now_ms);
        }
        true
    }

    /// Writes what is due, as far as the pool still has it.
    fn back_up(&mut self, now_ms: u64) {
        loop {
            let group = self.drive.due(now_ms, |block| self.pool.has(block));
            if group.is_empty() {
                return;
            }
            self.drive.write(&group);
        }
    }

    /// Replays all that is left.
    #[must_use]
    pub fn run(mut self) -> TierOutcome {
        while self.step() {}
        self.outcome()
    }

    /// What came of it so far.
    #[must_use]
    pub fn outcome(&self) -> TierOutcome {
        let DriveFigures {
            written_blocks,
            written_bytes,
            left_blocks,
            gone_blocks,
            refused_blocks,
        } = self.drive.figures();
        TierOutcome {
            pool_alone: self.pool.outcome(),
            written_blocks,
            written_bytes,
            left_blocks,
            gone_blocks,
            refused_blocks,
            ..self.outcome
        }
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &P {
        &self.pool
    }

    /// The drive.
    #[must_use]
    pub fn drive(&self) -> &Drive {
        self.drive.drive()
    }
}

#[cfg(test)]
mod tests;
