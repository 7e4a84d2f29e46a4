//! A pool with an agent beside one without: publish and fetch while backups run, lookups, and the
//! processor time of backups and restores.
//!
//! `cargo bench -p rackline-benches --bench agent`. The folder is `RACKLINE_BENCH_FOLDER`, else one in
//! the build's folder: it has to lie on the drive that is to be measured. Both pools take turns, and each
//! ratio is the median over all rounds.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cxl_shm::clock::SystemClock;
use kv_cache::Watermarks;
use kv_drive::encoding::{EncodingChoice, EncodingOptions};
use kv_drive::io::EngineKind;
use kv_drive::policy::AdmissionKind;
use rackline::{
    Attention, BlockHash, Dtype, KvGeometry, NewBlock, Pool, RestoreOptions, ScratchRegion,
    Session, SessionOptions,
};
use rackline_agent::{
    Agent, BackupSettings, DriveFolder, RestoreSettings, ScheduleSettings, Settings,
};
use rackline_benches::{median, processor_seconds};

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCK: usize = 256 << 10;
/// Blocks of a round: so many that backups of the round before run beside.
const BLOCKS: usize = 128;
/// Room for the blocks of all rounds below the watermark at which eviction starts.
const REGION_BYTES: u64 = 1 << 30;
const DRIVE_BYTES: u64 = 4 << 30;
const PREFIX: usize = 256;
const LOOKUP_BLOCK: usize = 4096;
const LIMIT_MS: u64 = 300_000;

fn main() -> Outcome<()> {
    // Under `cargo test` everything runs once, which is all that is wanted.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let folder = std::env::var_os("RACKLINE_BENCH_FOLDER")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    beside(&folder, if is_bench { 21 } else { 1 })?;
    costs(&folder, if is_bench { 5 } else { 1 })?;
    lookups(&folder, if is_bench { 1001 } else { 1 })
}

fn options(bytes: usize) -> Outcome<SessionOptions> {
    let heads = Attention::Heads { kv_heads: 1, head_dim: u32::try_from(bytes / 4)? };
    let kv = KvGeometry::new(1, heads, Dtype::F16, 1)?;
    Ok(SessionOptions::new(kv.model("agent", "1", 1), kv.rank_block_bytes()))
}

fn hashes(first: usize, count: usize) -> Vec<BlockHash> {
    let hash = |number: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        BlockHash::new(bytes)
    };
    (first..first + count).map(hash).collect()
}

fn region(bytes: usize) -> Outcome<ScratchRegion> {
    Ok(ScratchRegion::create_with_drives(REGION_BYTES, 1, bytes as u64, DRIVE_BYTES)?)
}

fn start(region: &ScratchRegion, folder: &Path) -> Outcome<Agent> {
    let agent = Agent::start(Settings {
        region: region.path().to_owned(),
        node: 0,
        drives: vec![DriveFolder { path: folder.to_owned(), capacity_bytes: Some(DRIVE_BYTES) }],
        engine: EngineKind::Uring,
        take_over: false,
        restore: RestoreSettings { depth: 16, queue_max: 4096 },
        backup: BackupSettings {
            age_ms: 0,
            admission: AdmissionKind::All,
            backlog_bytes: DRIVE_BYTES,
            commit_ms: 200,
            commit_bytes: 256 << 20,
            silent_ms: 10_000,
            retry_ms: 10_000,
            schedule: ScheduleSettings { depth: 16, idle_us: 10_000, write_wait_us: 2_000_000 },
            watermarks: Watermarks::new(95, 90)?,
            encoding: EncodingOptions { choice: EncodingChoice::Raw, least_saving_percent: 10 },
        },
    })?;
    until("the agent is ready", || agent.is_ready());
    Ok(agent)
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let clock = SystemClock::start();
    while !reached() {
        assert!(clock.now_us() / 1000 < LIMIT_MS, "it never got there: {what}");
        clock.sleep_ms(1);
    }
}

fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let clock = SystemClock::start();
    work()?;
    Ok(clock.now_us() as f64)
}

fn publish(session: &Session<'_>, hashes: &[BlockHash], bytes: &[u8]) -> Outcome<()> {
    for (depth, hash) in (0..).zip(hashes) {
        let block = NewBlock { hash: *hash, depth, bytes: [bytes] };
        assert_eq!(session.publish(&[block])?.published(), 1);
    }
    Ok(())
}

fn fetch(session: &Session<'_>, hashes: &[BlockHash], into: &mut [u8]) -> Outcome<()> {
    for hash in hashes {
        let found = session.lookup(std::slice::from_ref(hash))?;
        let report = session.fetch(found.blocks(), vec![vec![&mut *into]])?;
        assert_eq!(report.valid_blocks(), 1);
    }
    Ok(())
}

/// Publish and fetch while what the round before published is backed up.
fn beside(folder: &Path, rounds: usize) -> Outcome<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let (with, without) = (region(BLOCK)?, region(BLOCK)?);
    let agent = start(&with, folder.path())?;
    let pools = [Pool::attach(with.path(), 0)?, Pool::attach(without.path(), 0)?];
    let mut buffer = vec![0x5a; BLOCK];
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let hashes = hashes(round * BLOCKS, BLOCKS);
        let mut us = [[0.0; 2]; 2];
        for (pool, us) in pools.iter().zip(&mut us) {
            let session = pool.session(options(BLOCK)?)?;
            us[0] = timed(|| publish(&session, &hashes, &buffer))?;
            us[1] = timed(|| fetch(&session, &hashes, &mut buffer))?;
        }
        if round > 0 {
            puts.push(us[0][0] / us[1][0]);
            gets.push(us[0][1] / us[1][1]);
        }
    }
    let written_mib = agent.figures().backed_up_bytes >> 20;
    println!(
        "blocks of {} KiB while backups run: publish takes {:.2} times as long as without an agent, fetch \
         {:.2}; {written_mib} MiB were backed up meanwhile",
        BLOCK >> 10,
        median(puts),
        median(gets),
    );
    agent.stop()?;
    Ok(())
}

/// Processor seconds of this process, in which the agent runs, for a GiB that is backed up, and for one
/// that is restored.
fn costs(folder: &Path, rounds: usize) -> Outcome<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let with = region(BLOCK)?;
    let agent = start(&with, folder.path())?;
    let pool = Pool::attach(with.path(), 0)?;
    let session = pool.session(options(BLOCK)?)?;
    let (buffer, clock) = (vec![0x5a; BLOCK], SystemClock::start());
    let gib = (BLOCKS * BLOCK) as f64 / f64::from(1 << 30);
    let (mut backups, mut restores) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let hashes = hashes(round * BLOCKS, BLOCKS);
        let backed_up = agent.figures().backed_up;
        publish(&session, &hashes, &buffer)?;
        let before = processor_seconds();
        let left = backed_up + BLOCKS as u64;
        until("all blocks are on the drive", || agent.figures().backed_up >= left);
        backups.push((processor_seconds() - before) / gib);
        let found = session.lookup(&hashes)?;
        let handles: Vec<_> = found.blocks().iter().map(|block| block.handle).collect();
        assert_eq!(pool.cache().retire(&clock, &handles), BLOCKS as u64);
        until("the blocks are announced", || agent.figures().announced >= left);
        clock.sleep_ms(50);
        let before = processor_seconds();
        let restore = RestoreOptions::new(Duration::from_secs(60));
        let report = session.lookup_and_restore(&hashes, restore)?;
        restores.push((processor_seconds() - before) / gib);
        assert_eq!(report.restored(), BLOCKS, "{:?}", report.stop());
    }
    println!(
        "processor seconds a GiB, upkeep and waiting of the whole process included: backup {:.2}, restore {:.2}",
        median(backups),
        median(restores),
    );
    agent.stop()?;
    Ok(())
}

/// A lookup of blocks that are in the pool but for the last one, which is nowhere.
fn lookups(folder: &Path, rounds: usize) -> Outcome<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let (with, without) = (region(LOOKUP_BLOCK)?, ScratchRegion::create(64 << 20, 1, 4096)?);
    let agent = start(&with, folder.path())?;
    let pools = [Pool::attach(with.path(), 0)?, Pool::attach(without.path(), 0)?];
    let hashes = hashes(0, PREFIX);
    let sessions =
        [pools[0].session(options(LOOKUP_BLOCK)?)?, pools[1].session(options(LOOKUP_BLOCK)?)?];
    for session in &sessions {
        publish(session, &hashes[..PREFIX - 1], &[1; LOOKUP_BLOCK])?;
    }
    let restore = RestoreOptions::new(Duration::from_secs(1));
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let mut us = [0.0; 2];
        for (session, us) in sessions.iter().zip(&mut us) {
            let clock = SystemClock::start();
            let report = session.lookup_and_restore(&hashes, restore)?;
            *us = clock.now_ns() as f64;
            assert_eq!(report.held().blocks().len(), PREFIX - 1);
            session.release(report.into_held());
        }
        ratios.push(us[0] / us[1]);
    }
    println!(
        "lookup of {PREFIX} blocks, held: {:.2} times as long with drives as without",
        median(ratios)
    );
    agent.stop()?;
    Ok(())
}
