//! What a replay with a drive prints.

use bytesize::ByteSize;
use rackline_replay::{TierOptions, TierOutcome, Trace};
use serde::Serialize;

use super::super::{Options, live};
use crate::output::{say, show};

/// A trace through a pool and a drive, under several rules of admission.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    requests: usize,
    block_refs: u64,
    unique_blocks: u32,
    /// None when the trace does not say.
    duration_ms: Option<u64>,
    policy: &'static str,
    touch: &'static str,
    /// None is no limit.
    pool_blocks: Option<u64>,
    /// None is no limit.
    drive_blocks: Option<u64>,
    block_bytes: u64,
    backup_age_ms: u64,
    pub(super) pool_alone_hits: u64,
    pub(super) pool_evictions: u64,
    pub(super) admissions: Vec<Admission>,
    #[serde(flatten)]
    pub(super) live: Option<live::LiveTiers>,
}

/// What one rule of admission gives.
#[derive(Debug, Serialize)]
pub(super) struct Admission {
    admission: &'static str,
    pool_hits: u64,
    drive_hits: u64,
    misses: u64,
    hit_rate: f64,
    written_blocks: u64,
    written_bytes: u64,
    written_bytes_a_hit_byte: Option<f64>,
    drive_writes_per_day: Option<f64>,
    left_blocks: u64,
    gone_blocks: u64,
    refused_blocks: u64,
}

impl Admission {
    pub(super) fn new(tiers: &TierOptions, outcome: &TierOutcome, trace: &Trace) -> Self {
        Self {
            admission: tiers.admission.name(),
            pool_hits: outcome.pool_hits,
            drive_hits: outcome.drive_hits,
            misses: outcome.misses,
            hit_rate: outcome.hit_rate(),
            written_blocks: outcome.written_blocks,
            written_bytes: outcome.written_bytes,
            written_bytes_a_hit_byte: outcome.written_a_hit(tiers),
            drive_writes_per_day: outcome.drive_writes_per_day(tiers, trace),
            left_blocks: outcome.left_blocks,
            gone_blocks: outcome.gone_blocks,
            refused_blocks: outcome.refused_blocks,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

impl Report {
    pub(super) fn new(
        trace: &Trace,
        pool_blocks: Option<u64>,
        tiers: &TierOptions,
        options: &Options,
    ) -> Self {
        Self {
            requests: trace.requests().len(),
            block_refs: trace.block_refs(),
            unique_blocks: trace.unique_blocks(),
            duration_ms: trace.duration_ms(),
            policy: options.policy.name(),
            touch: options.touch.name(),
            pool_blocks,
            drive_blocks: tiers.room_bytes.map(|_| tiers.drive_blocks(trace.unique_blocks())),
            block_bytes: tiers.block_bytes,
            backup_age_ms: tiers.backup_age_ms,
            pool_alone_hits: 0,
            pool_evictions: 0,
            admissions: Vec::new(),
            live: None,
        }
    }

    fn room(&self, blocks: Option<u64>) -> String {
        match blocks {
            None => "without a limit".to_owned(),
            Some(blocks) => {
                let share = percent(blocks, self.unique_blocks.into());
                let bytes = ByteSize(blocks.saturating_mul(self.block_bytes));
                format!("{blocks} blocks, {bytes} ({share:.1} % of the different ones)")
            }
        }
    }

    pub(super) fn print(&self) {
        let Self { requests, block_refs, unique_blocks, .. } = self;
        say!("{requests} requests, {block_refs} blocks, {unique_blocks} of them different");
        say!("  pool:  {}, {}, {}", self.room(self.pool_blocks), self.policy, self.touch);
        say!("  drive: {}, backups after {} ms", self.room(self.drive_blocks), self.backup_age_ms);
        if self.duration_ms.is_none() {
            say!("  the trace has no times: one request a second");
        }
        say!("");
        say!(
            "  admission     pool hits  drive hits  all hits      written  a byte of hit  writes a day"
        );
        let alone = percent(self.pool_alone_hits, *block_refs);
        say!(
            "  (no drive)    {alone:>7.2} %           -  {alone:>6.2} %            -              -             -"
        );
        for it in &self.admissions {
            let (pool, drive) = (it.pool_hits, it.drive_hits);
            let [pool, drive, all] =
                [pool, drive, pool + drive].map(|hits| percent(hits, *block_refs));
            let written = ByteSize(it.written_bytes).to_string();
            show!("  {:<12}  {pool:>7.2} %   {drive:>7.2} %  {all:>6.2} %", it.admission);
            let or_none = |figure: Option<f64>, digits: usize| {
                figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
            };
            let a_hit = or_none(it.written_bytes_a_hit_byte, 2);
            let a_day = or_none(it.drive_writes_per_day, 1);
            say!("  {written:>11}  {a_hit:>13}  {a_day:>12}");
        }
        say!("");
        say!("written: to the drive; a byte of hit: bytes written for each byte of drive hits;");
        say!(
            "writes a day: how often the drive is written whole in a day at the rate of the trace"
        );
        if let Some(live) = &self.live {
            live.print();
        }
    }
}
