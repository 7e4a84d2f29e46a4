//! A pool with an agent beside one without: publish and fetch while backups run, lookups, and the
//! processor time of backups and restores. What two threads cost each other on the same machine is
//! measured in the same run.
//!
//! `cargo bench -p rackline-benches --bench agent`. The folder is `RACKLINE_BENCH_FOLDER`, else one in
//! the build's folder: it has to lie on the drive that is to be measured. Both pools take turns, and each
//! ratio is the median over all rounds.

use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cxl_shm::clock::SystemClock;
use kv_cache::Watermarks;
use kv_drive::encoding::{EncodingChoice, EncodingOptions};
use kv_drive::io::EngineKind;
use kv_drive::policy::AdmissionKind;
use rackline::{
    Attention, BlockHash, Dtype, Forwards, KvGeometry, NewBlock, Pool, RestoreOptions,
    ScratchRegion, Session, SessionOptions,
};
use rackline_agent::{
    Agent, BackupSettings, DriveFolder, RestoreSettings, ScheduleSettings, Settings,
};
use rackline_benches::{median, processor_seconds};
use tempfile::TempDir;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCK: usize = 256 << 10;
/// Blocks of a round.
const BLOCKS: usize = 128;
/// Blocks of a round that are timed, beside backups of those before them.
const TIMED: usize = 32;
/// How long an engine computes between two uses of the pool.
const FORWARD_MS: u64 = 8;
/// Room for the blocks of all rounds below the watermark at which eviction starts.
const REGION_BYTES: u64 = 3 << 30;
const DRIVE_BYTES: u64 = 4 << 30;
const PREFIX: usize = 256;
const LOOKUP_BLOCK: usize = 4096;
const LIMIT_MS: u64 = 300_000;

fn main() -> Outcome<()> {
    // Under `cargo test` everything runs once, which is all that is wanted.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let folder = std::env::var_os("RACKLINE_BENCH_FOLDER")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    beside(&folder, if is_bench { 15 } else { 1 })?;
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

/// What runs on the other processors while a pool is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// A thread that touches no memory: what two busy threads cost each other.
    Arithmetic,
    /// A thread that copies blocks from memory to memory all the time: what any other use of the memory
    /// costs.
    Copies,
    /// Backups of an agent that no engine tells of its forwards.
    Backups,
    /// Backups of an agent that an engine tells of its forwards. The engine uses the pool between them.
    Forwards,
}

const WAYS: [Beside; 5] =
    [Beside::Nothing, Beside::Arithmetic, Beside::Copies, Beside::Backups, Beside::Forwards];

/// Publish and fetch, by what runs beside them, in times of those with nothing beside them.
///
/// It matters in which memory a pool lies. So each has the agent once, and each ratio is the geometric
/// mean of both passes.
fn beside(folder: &Path, rounds: usize) -> Outcome<()> {
    let regions = [region(BLOCK)?, region(BLOCK)?];
    for region in &regions {
        // As `rackline format` does. Else the time of a publish is that of the system's page faults.
        let pool = Pool::attach(region.path(), 0)?;
        pool.attachment().region().prefault(64 << 20, |_, _| ())?;
    }
    let [first, second] = [0, 1].map(|pass| {
        let (with, without) = (&regions[pass], &regions[1 - pass]);
        pass_beside(&tempfile::tempdir_in(folder)?, [with, without], pass, rounds)
    });
    let (first, second) = (first?, second?);
    let ratio = |way: Beside, at: usize| {
        let at = 2 * way as usize + at;
        (first.ratios[at] * second.ratios[at]).sqrt()
    };
    let ratios = |way| format!("{:.2} and {:.2}", ratio(way, 0), ratio(way, 1));
    let mib = |way: Beside| (first.written[way as usize] + second.written[way as usize]) >> 20;
    println!(
        "blocks of {} KiB, publish and fetch in times of a quiet pool\n\
         between forwards that the agent is told of: {}; {} MiB backed up meanwhile\n\
         while backups run at any time: {}; {} MiB\n\
         beside a thread that copies memory: {}\n\
         beside a thread that computes: {}",
        BLOCK >> 10,
        ratios(Beside::Forwards),
        mib(Beside::Forwards),
        ratios(Beside::Backups),
        mib(Beside::Backups),
        ratios(Beside::Copies),
        ratios(Beside::Arithmetic),
    );
    Ok(())
}

/// What one pass found.
struct Pass {
    /// Median ratios of publish and fetch of each way.
    ratios: [f64; 2 * WAYS.len()],
    /// Bytes that were backed up in each way.
    written: [u64; WAYS.len()],
}

/// All ways take turns in each round. Only the first of the pools has an agent.
fn pass_beside(
    folder: &TempDir,
    regions: [&ScratchRegion; 2],
    pass: usize,
    rounds: usize,
) -> Outcome<Pass> {
    let agent = start(regions[0], folder.path())?;
    let pools = [Pool::attach(regions[0].path(), 0)?, Pool::attach(regions[1].path(), 0)?];
    let [busy, quiet] = [pools[0].session(options(BLOCK)?)?, pools[1].session(options(BLOCK)?)?];
    let mut buffer = vec![0x5a; BLOCK];
    let mut ways = WAYS;
    let (mut ratios, mut written) = ([const { Vec::new() }; 2 * WAYS.len()], [0; WAYS.len()]);
    for round in 0..=rounds {
        let mut us = [[0.0; 2]; WAYS.len()];
        for way in ways {
            let has_agent = matches!(way, Beside::Backups | Beside::Forwards);
            let session = if has_agent { &busy } else { &quiet };
            let mut forwards = match way {
                Beside::Forwards => Some(session.report_forwards().ok_or("no room to report")?),
                _ => None,
            };
            let mut forward = || {
                let _ = forwards.as_mut().map(|forwards| forwards.begin(1024, 0));
                SystemClock::start().sleep_ms(FORWARD_MS);
                let _ = forwards.as_mut().map(Forwards::end);
            };
            // The agent learns how long they take.
            (0..4).for_each(|_| forward());
            let number = WAYS.len() * (pass * (rounds + 1) + round) + way as usize;
            let numbers = hashes(number * BLOCKS, BLOCKS);
            let (backlog, blocks) = numbers.split_at(BLOCKS - TIMED);
            let (all, before) = (agent.figures().backed_up + BLOCKS as u64, written_bytes(&agent));
            publish(session, backlog, &buffer)?;
            for blocks in blocks.chunks(TIMED / 4) {
                forward();
                let [put, get] = beside_thread(way, || {
                    let put = timed(|| publish(session, blocks, &buffer))?;
                    Ok([put, timed(|| fetch(session, blocks, &mut buffer))?])
                })?;
                us[way as usize][0] += put;
                us[way as usize][1] += get;
            }
            written[way as usize] += written_bytes(&agent) - before;
            drop(forwards);
            if has_agent {
                until("all blocks are on the drive", || agent.figures().backed_up >= all);
            }
        }
        ways.rotate_left(1);
        if round > 0 {
            for (at, ratios) in ratios.iter_mut().enumerate() {
                ratios.push(us[at / 2][at % 2] / us[0][at % 2]);
            }
        }
    }
    agent.stop()?;
    let ratios = ratios.map(median);
    Ok(Pass { ratios, written })
}

/// Bytes that were given to drives so far.
fn written_bytes(agent: &Agent) -> u64 {
    let figures = agent.figures();
    figures.window_bytes + figures.idle_bytes + figures.late_bytes
}

/// Does `work` beside a thread of the kind that `way` names.
fn beside_thread<T>(way: Beside, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let (is_ready, ready) = std::sync::mpsc::channel();
        let over = &is_over;
        threads.spawn(move || {
            let (from, mut to) = (vec![0x5a_u8; 64 * BLOCK], vec![0xa5_u8; 64 * BLOCK]);
            let (mut number, mut at) = (1_u64, 0);
            let _ = is_ready.send(());
            while !over.load(Ordering::Relaxed) {
                match way {
                    Beside::Nothing | Beside::Backups | Beside::Forwards => break,
                    Beside::Arithmetic => {
                        for _ in 0..1000 {
                            number = black_box(number.wrapping_mul(0x9e37_79b9).rotate_left(5));
                        }
                    }
                    Beside::Copies => {
                        to[at..at + BLOCK].copy_from_slice(&from[at..at + BLOCK]);
                        // What nobody reads would not be copied.
                        black_box(&mut to);
                        at = (at + BLOCK) % from.len();
                    }
                }
            }
        });
        ready.recv()?;
        let outcome = work();
        is_over.store(true, Ordering::Relaxed);
        outcome
    })
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
