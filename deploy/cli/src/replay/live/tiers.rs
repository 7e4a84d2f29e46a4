//! `rackline replay --tiers --live`: through a real pool and a real folder.

use anyhow::{Context, Result, bail, ensure};
use cxl_shm::clock::SystemClock;
use rackline_replay::{Outcome, PoolSimulation, TierOptions, TierOutcome, TierSimulation, Trace};
use serde::Serialize;

use super::figures::{Calls, Figures, Latency};
use super::folder::OwnFolder;
use super::protocol::{DriveServed, Served};
use super::{Fleet, Wish, progress, serve};
use crate::output::say;
use crate::rack::{Interrupt, LockManager};

/// What a live replay adds to the figures of a replay with a drive.
#[derive(Debug, Serialize)]
pub(in super::super) struct LiveTiers {
    elapsed_s: f64,
    requests_per_s: f64,
    /// Of fetches from the pool, reads from the drive, and writes with their commits: each of all
    /// blocks of a request.
    fetch: Figures,
    get: Figures,
    put: Figures,
    /// Bytes that the folder wrote, metadata and moved blocks among them.
    folder_written_bytes: u64,
}

/// Replays `trace`. After each request all figures have to be those of the simulation.
pub(in super::super) fn run_tiers(
    wish: &Wish<'_>,
    trace: &Trace,
    tiers: &TierOptions,
) -> Result<(TierOutcome, LiveTiers)> {
    let interrupt = Interrupt::install_for_terminal()?;
    let sizes = wish.sizes(trace)?;
    let folder = OwnFolder::make(wish.drive_in, tiers, trace)?;
    let region = sizes.make_region("replay", &interrupt)?;
    let manager = LockManager::start(&region.region, &region.layout, 0, &interrupt)?;
    let path = folder.path.to_str().context("the path of the folder is no text")?;
    let numbers = [
        folder.capacity_bytes,
        tiers.drive_blocks(trace.unique_blocks()),
        tiers.group(trace.unique_blocks()) as u64,
        tiers.backup_age_ms,
    ];
    let [capacity, blocks, group, age] = numbers.map(|number| number.to_string());
    let drive = [
        "--drive",
        path,
        "--drive-capacity",
        &capacity,
        "--drive-blocks",
        &blocks,
        "--group",
        &group,
        "--backup-age-ms",
        &age,
        "--admission",
        tiers.admission.name(),
    ];
    let salt = uuid::Uuid::new_v4().to_string();
    let own = Some(&region);
    let mut fleet = Fleet::start(wish, region.path(), 0, &drive, &salt, own, &interrupt)?;
    let simulation = TierSimulation::new(trace, PoolSimulation::new(trace, sizes.shape), tiers);
    let replayed = replay(&mut fleet, trace, tiers, simulation);
    drop(fleet);
    drop(manager);
    replayed
}

fn replay(
    fleet: &mut Fleet,
    trace: &Trace,
    tiers: &TierOptions,
    mut simulation: TierSimulation<'_, PoolSimulation<'_>>,
) -> Result<(TierOutcome, LiveTiers)> {
    let Some(worker) = fleet.workers.first_mut().and_then(|workers| workers.first_mut()) else {
        bail!("there is no worker");
    };
    let bar = progress::live(trace.requests().len());
    let (mut totals, mut written_bytes) = (TierOutcome::default(), 0);
    let [mut fetch, mut get, mut put] = [Calls::new()?, Calls::new()?, Calls::new()?];
    let clock = SystemClock::start();
    for (number, (request, now_ms)) in trace.requests().iter().zip(trace.times_ms()).enumerate() {
        let served =
            serve(worker, request, *now_ms).with_context(|| format!("request {number}"))?;
        if let Some(trouble) = &served.trouble {
            bail!("request {number}: a block was refused: {trouble}");
        }
        let DriveServed { hits, written_blocks, get_ns, put_ns, .. } = served.drive;
        if served.hits > 0 {
            fetch.count(served.fetch_ns, served.hits)?;
        }
        if hits > 0 {
            get.count(get_ns, hits)?;
        }
        if written_blocks > 0 {
            put.count(put_ns, written_blocks)?;
        }
        written_bytes = served.drive.folder_written_bytes;
        add(&mut totals, &served, request.len() as u64);
        simulation.step();
        let (expected, refused) = (simulation.outcome(), simulation.pool().refused());
        ensure!(
            totals == expected,
            "after request {number} the tiers have {totals:?}, the simulation has {expected:?}, \
             with {refused} blocks refused: this is a bug, please report it"
        );
        bar.inc(1);
    }
    let elapsed_ns = clock.now_ns();
    bar.finish_and_clear();
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let (elapsed_s, requests) = (elapsed_ns as f64 / 1e9, trace.requests().len() as f64);
    let live = LiveTiers {
        elapsed_s,
        requests_per_s: requests / elapsed_s,
        fetch: fetch.figures(tiers.block_bytes),
        get: get.figures(tiers.block_bytes),
        put: put.figures(tiers.block_bytes),
        folder_written_bytes: written_bytes,
    };
    Ok((totals, live))
}

/// Counts a request of so many blocks.
fn add(totals: &mut TierOutcome, served: &Served, blocks: u64) {
    let DriveServed { pool_hits, hits, written_blocks, written_bytes, .. } = served.drive;
    let alone = totals.pool_alone;
    totals.pool_alone = Outcome {
        requests: alone.requests + 1,
        block_refs: alone.block_refs + blocks,
        hits: alone.hits + served.hits,
        evictions: alone.evictions + served.evicted,
    };
    totals.pool_hits += served.hits + pool_hits;
    totals.drive_hits += hits;
    totals.misses += blocks - served.hits - pool_hits - hits;
    totals.written_blocks += written_blocks;
    totals.written_bytes += written_bytes;
    totals.left_blocks += served.drive.left_blocks;
    totals.gone_blocks += served.drive.gone_blocks;
    totals.refused_blocks = served.drive.refused_blocks;
}

impl LiveTiers {
    pub(in super::super) fn print(&self) {
        say!(
            "served in {:.1} s, one request after the other: {:.0} requests a second, each with the \
             hits of the simulation",
            self.elapsed_s,
            self.requests_per_s
        );
        say!(
            "                    p50       p90       p99       max    (us, the blocks of a request)"
        );
        for (name, figures) in
            [("pool: fetch", &self.fetch), ("drive: read", &self.get), ("drive: write", &self.put)]
        {
            let Latency { p50, p90, p99, max } = figures.latency_us;
            let (blocks, rate) = (figures.blocks, figures.bytes_per_s / 1e9);
            say!(
                "  {name:<12} {p50:>8.1}  {p90:>8.1}  {p99:>8.1}  {max:>8.1}   {blocks} blocks, \
                 {rate:.2} GB/s"
            );
        }
        say!(
            "the folder wrote {}, metadata and moved blocks among them",
            bytesize::ByteSize(self.folder_written_bytes)
        );
    }
}
