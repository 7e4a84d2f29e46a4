//! Two hosts with a drive each: a block that left the pool comes back from the drive of its host.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[path = "drives/again.rs"]
mod again;
#[path = "drives/laws.rs"]
mod laws;
#[path = "drives/prefetches.rs"]
mod prefetches;
#[path = "drives/silent.rs"]
mod silent;

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::OnceLock;

use cxl_shm::clock::{Clock as _, SystemClock};
use kv_cache::tier::{DriveError, Found, RestoreState};
use kv_cache::{
    BlockHash, BlockKey, KeySpace, Model, Namespace, RestoreOutcome, RestoreRequest, Watermarks,
};
use kv_drive::encoding::{EncodingChoice, EncodingOptions};
use kv_drive::io::EngineKind;
use kv_drive::io::faulty::{Call, Fault, Faults};
use kv_drive::policy::AdmissionKind;
use kv_drive::store::{Access, FolderOptions, Store, StoreOptions};
use rackline::{NewBlock, NodeId, Pool, RestoreOptions, ScratchRegion, SessionOptions};
use rackline_agent::{
    Agent, AgentError, BackupSettings, DriveFolder, RestoreSettings, ScheduleSettings, Settings,
};
use tempfile::TempDir;

const MODEL: Model<'_> = Model {
    name: "model",
    revision: "1",
    dtype: "f16",
    layout_version: 1,
    block_tokens: 16,
    tensor_parallel_rank: 0,
    tensor_parallel_size: 1,
    layers: 1,
    kv_heads: 1,
    head_dim: 1,
};
/// No multiple of a page: what follows in its last page is not the block's.
const BLOCK_BYTES: usize = (64 << 10) - 100;
const A: u16 = 0;
const B: u16 = 1;
const LIMIT_MS: u64 = 120_000;

/// The one clock of the process: how long ago an agent was heard of is told by it.
fn clock() -> SystemClock {
    static CLOCK: OnceLock<SystemClock> = OnceLock::new();
    *CLOCK.get_or_init(SystemClock::start)
}

fn region() -> ScratchRegion {
    ScratchRegion::create_with_drives(16 << 20, 2, 64 << 10, 64 << 20).unwrap()
}

fn settings(region: &ScratchRegion, node: u16, folder: &Path) -> Settings {
    Settings {
        region: region.path().to_owned(),
        node,
        drives: vec![DriveFolder { path: folder.to_owned(), capacity_bytes: Some(64 << 20) }],
        engine: EngineKind::Uring,
        take_over: false,
        restore: RestoreSettings { depth: 4, queue_max: 100 },
        backup: BackupSettings {
            age_ms: 0,
            admission: AdmissionKind::All,
            backlog_bytes: 32 << 20,
            commit_ms: 5,
            commit_bytes: 8 << 20,
            silent_ms: 10_000,
            retry_ms: 200,
            schedule: ScheduleSettings { depth: 4, idle_us: 1_000, write_wait_us: 100_000 },
            watermarks: Watermarks::default(),
            encoding: EncodingOptions { choice: EncodingChoice::Raw, least_saving_percent: 10 },
        },
    }
}

fn start(region: &ScratchRegion, node: u16, folder: &TempDir) -> Agent {
    Agent::start(settings(region, node, folder.path())).unwrap()
}

fn hash(number: u32) -> BlockHash {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    BlockHash::new(bytes)
}

fn options() -> SessionOptions {
    SessionOptions::new(MODEL, BLOCK_BYTES as u64).with_namespace(Namespace::new("tenant", b""))
}

fn key(number: u32) -> BlockKey {
    let namespace = Namespace::new("tenant", b"");
    KeySpace::new(MODEL.fingerprint(), namespace, BLOCK_BYTES as u64).key(&hash(number))
}

fn content(number: u32) -> Vec<u8> {
    let [low, high, ..] = number.wrapping_mul(77).to_le_bytes();
    (0..BLOCK_BYTES).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1] ^ low ^ high).collect()
}

fn publish(pool: &Pool, numbers: std::ops::Range<u32>) {
    for (depth, number) in (0..).zip(numbers) {
        let bytes = content(number);
        let block = NewBlock { hash: hash(number), depth, bytes: [bytes.as_slice()] };
        assert_eq!(pool.session(options()).unwrap().publish(&[block]).unwrap().available(), 1);
    }
}

/// Fetches a block out of the pool.
fn fetch(pool: &Pool, number: u32) -> Option<Vec<u8>> {
    let session = pool.session(options()).unwrap();
    let found = session.lookup(&[hash(number)]).unwrap();
    if found.blocks().is_empty() {
        return None;
    }
    let mut bytes = vec![0; BLOCK_BYTES];
    let report = session.fetch(found.blocks(), vec![vec![bytes.as_mut_slice()]]);
    (report.unwrap().valid_blocks() == 1).then_some(bytes)
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let clock = SystemClock::start();
    while !reached() {
        assert!(clock.now_ms() < LIMIT_MS, "it never got there: {what}");
        clock.sleep_ms(2);
    }
}

/// Publishes other blocks until these are not in the pool any more.
fn evict(pool: &Pool, keys: &[BlockKey], first: u32) {
    for number in first..first + 1000 {
        if pool.cache().present(keys).iter().all(|is_present| !is_present) {
            return;
        }
        publish(pool, number..number + 1);
    }
    panic!("the blocks stay in the pool");
}

/// Which of `keys` are found on a drive, from the first on, and on whose.
fn on_drives(pool: &Pool, keys: &[BlockKey]) -> Vec<NodeId> {
    let found = pool.cache().find_with_drives(&clock(), keys);
    let node = |found: &Found| match found {
        Found::OnDrive { node, .. } => Some(*node),
        Found::InPool(_) => None,
    };
    found.behind.iter().filter_map(node).collect()
}

fn request(key: BlockKey) -> RestoreRequest {
    RestoreRequest { key, wait_ms: 60_000, recompute_ms: None, ahead: false }
}

/// Asks for blocks, few at a time, and waits for the answers.
fn restore(pool: &Pool, node: u16, requests: &[RestoreRequest]) -> Vec<RestoreOutcome> {
    requests.chunks(8).flat_map(|part| restore_part(pool, node, part)).collect()
}

fn restore_part(pool: &Pool, node: u16, requests: &[RestoreRequest]) -> Vec<RestoreOutcome> {
    let (cache, clock) = (pool.cache(), clock());
    let asked = cache.ask_restore(&clock, NodeId(node), requests).unwrap();
    assert_eq!(asked.full, 0);
    let mut outcomes = Vec::new();
    wait_until("all requests are answered", || {
        let states = cache.restore_states(&asked.tickets).unwrap();
        let answer = |state: &RestoreState| match state {
            RestoreState::Answered(outcome) => Some(*outcome),
            _ => None,
        };
        outcomes = states.iter().filter_map(answer).collect();
        outcomes.len() == requests.len()
    });
    outcomes
}

#[test]
fn a_block_that_left_the_pool_comes_back_from_the_drive_of_its_host() {
    let (region, [a, b]) = (region(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let (agent_a, agent_b) = (start(&region, A, &a), start(&region, B, &b));
    let (on_a, on_b) =
        (Pool::attach(region.path(), A).unwrap(), Pool::attach(region.path(), B).unwrap());
    let keys: Vec<_> = (0..8).map(key).collect();
    publish(&on_a, 0..8);
    wait_until("the blocks are backed up", || agent_a.figures().announced >= 8);
    evict(&on_a, &keys, 100);
    wait_until("the other host knows", || on_drives(&on_b, &keys).len() == 8);
    assert_eq!(on_drives(&on_b, &keys), [NodeId(A); 8]);
    assert_eq!(fetch(&on_b, 3), None);

    let requests: Vec<_> = keys.iter().map(|key| request(*key)).collect();
    assert_eq!(restore(&on_b, A, &requests), [RestoreOutcome::Restored; 8]);
    for number in 0..8 {
        assert_eq!(fetch(&on_b, number).as_deref(), Some(&*content(number)), "block {number}");
    }
    assert_eq!(agent_a.figures().restored, 8);
    assert_eq!(restore(&on_b, A, &requests[..1]), [RestoreOutcome::Restored]);
    assert_eq!(agent_a.figures().restored, 8, "what is in the pool is not read again");
    let late = RestoreRequest { wait_ms: 0, ..request(key(100)) };
    evict(&on_a, &[key(100)], 2000);
    let answers = restore(&on_b, A, &[request(key(99_999)), late]);
    assert_eq!(answers, [RestoreOutcome::Unknown, RestoreOutcome::TooLate]);
    agent_a.stop().unwrap();
    agent_b.stop().unwrap();
    assert!(on_drives(&on_b, &keys).is_empty(), "no agent, no drive");
}

#[test]
fn a_pool_that_is_formatted_anew_has_what_the_drives_hold() {
    let folder = tempfile::tempdir().unwrap();
    {
        let region = region();
        let agent = start(&region, A, &folder);
        publish(&Pool::attach(region.path(), A).unwrap(), 0..20);
        wait_until("the blocks are backed up", || agent.figures().backed_up == 20);
        agent.stop().unwrap();
    }
    let region = region();
    let agent = start(&region, A, &folder);
    wait_until("the blocks are announced", || agent.is_ready());
    assert_eq!(agent.figures().announced, 20);
    let pool = Pool::attach(region.path(), A).unwrap();
    let keys: Vec<_> = (0..20).map(key).collect();
    wait_until("its host knows", || on_drives(&pool, &keys).len() == 20);
    let requests: Vec<_> = keys.iter().map(|key| request(*key)).collect();
    assert_eq!(restore(&pool, A, &requests), [RestoreOutcome::Restored; 20]);
    for number in 0..20 {
        assert_eq!(fetch(&pool, number).as_deref(), Some(&*content(number)), "block {number}");
    }
    agent.stop().unwrap();
}

/// Blocks of a drive come back with the same bytes, encoded or not, and the figures say how they were.
#[test]
fn encoded_blocks_come_back_as_they_were_published() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let mut encoding = settings(&region, A, folder.path());
    encoding.backup.encoding.choice = EncodingChoice::Auto;
    // Twice what `evict` publishes at most, and more: no block is written raw to save time (AGENT-B5).
    encoding.backup.backlog_bytes = 256 << 20;
    let agent = Agent::start(encoding).unwrap();
    let pool = Pool::attach(region.path(), A).unwrap();
    let keys: Vec<_> = (0..8).map(key).collect();
    publish(&pool, 0..8);
    wait_until("the blocks are backed up", || agent.figures().announced >= 8);
    let encoder = agent.figures().encoder;
    // A block that waited twice is encoded twice, and written once.
    assert!(encoder.lz4_blocks >= 8 && encoder.raw_blocks == 0, "{encoder:?}");
    assert!(
        encoder.bytes_after * 4 < encoder.bytes_before * 3 && encoder.cpu_ns > 0,
        "{encoder:?}"
    );
    evict(&pool, &keys, 100);
    wait_until("its host knows", || on_drives(&pool, &keys).len() == 8);
    let requests: Vec<_> = keys.iter().map(|key| request(*key)).collect();
    assert_eq!(restore(&pool, A, &requests), [RestoreOutcome::Restored; 8]);
    for number in 0..8 {
        assert_eq!(fetch(&pool, number).as_deref(), Some(&*content(number)), "block {number}");
    }
    let decoded = 8 * BLOCK_BYTES as u64;
    wait_until("the figures say so", || agent.figures().decoded.bytes == decoded);
    let figures = agent.figures();
    assert_eq!(figures.encoded.blocks, figures.blocks, "{figures:?}");
    assert!(figures.saved_bytes() > 0);
    laws::encoded(&agent, decoded);
    agent.stop().unwrap();
}

#[test]
fn a_damaged_extent_is_a_miss_and_is_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    let first = region();
    let agent = start(&first, A, &folder);
    publish(&Pool::attach(first.path(), A).unwrap(), 0..1);
    wait_until("the block is backed up", || agent.figures().backed_up == 1);
    agent.stop().unwrap();
    let segment =
        std::fs::OpenOptions::new().write(true).open(folder.path().join("segment-1.data"));
    segment.unwrap().write_all_at(b"damage", 1000).unwrap();
    let region = region();
    let agent = start(&region, A, &folder);
    let pool = Pool::attach(region.path(), A).unwrap();
    wait_until("its host knows", || on_drives(&pool, &[key(0)]).len() == 1);
    assert_eq!(restore(&pool, A, &[request(key(0))]), [RestoreOutcome::Damaged]);
    assert_eq!(fetch(&pool, 0), None);
    wait_until("it is withdrawn", || on_drives(&pool, &[key(0)]).is_empty());
    assert_eq!(restore(&pool, A, &[request(key(0))]), [RestoreOutcome::Unknown]);
    agent.stop().unwrap();
}

#[test]
fn a_drive_that_is_full_lets_the_oldest_blocks_leave() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let mut small = settings(&region, A, folder.path());
    small.drives[0].capacity_bytes = Some(8 << 20);
    let agent = Agent::start(small).unwrap();
    let pool = Pool::attach(region.path(), A).unwrap();
    let mut next = 0;
    wait_until("blocks leave the drive", || {
        publish(&pool, next..next + 4);
        next += 4;
        agent.figures().evicted > 0
    });
    let figures = agent.figures();
    assert!(figures.used_bytes <= 8 << 20 && figures.backed_up > figures.blocks, "{figures:?}");
    wait_until("they are withdrawn", || on_drives(&pool, &[key(0)]).is_empty());
    agent.stop().unwrap();
}

fn clear(pool: &Pool, timeout_ms: u64) -> Vec<NodeId> {
    let timeout = std::time::Duration::from_millis(timeout_ms);
    pool.clear(Some(&Namespace::new("tenant", b"")), timeout).unwrap().nodes_left()
}

/// Keys of the blocks that a folder has, read as a tool does.
fn blocks_in(folder: &Path) -> u64 {
    let folder = FolderOptions { path: folder.to_owned(), capacity_bytes: 64 << 20 };
    let options = StoreOptions {
        engine: EngineKind::Posix,
        host: [0; 16],
        take_over: false,
        access: Access::Read,
    };
    let store = Store::open(&[folder], options).unwrap();
    store.scan(|_, _| ()).unwrap();
    store.volumes().map(|(_, volume)| volume.usage().blocks).sum()
}

#[test]
fn a_clear_reaches_drives_and_what_is_on_its_way() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let agent = start(&region, A, &folder);
    let (on_a, on_b) =
        (Pool::attach(region.path(), A).unwrap(), Pool::attach(region.path(), B).unwrap());
    let keys: Vec<_> = (0..200).map(key).collect();
    for round in 0..3 {
        publish(&on_a, 0..200);
        if round > 0 {
            // Some are on the drive, some wait for it, some are being written.
            wait_until("some are backed up", || agent.figures().announced > 20);
        }
        if round > 1 {
            evict(&on_a, &keys[..8], 1000);
            let requests: Vec<_> = keys[..8].iter().map(|key| request(*key)).collect();
            on_b.cache().ask_restore(&clock(), NodeId(A), &requests).unwrap();
        }
        assert_eq!(clear(&on_b, LIMIT_MS), []);
        assert_eq!(on_a.cache().present(&keys), vec![false; 200], "round {round}");
        let left: Vec<_> = (0..200).filter(|number| fetch(&on_b, *number).is_some()).collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
        let requests: Vec<_> = keys.iter().map(|key| request(*key)).collect();
        let answers = restore(&on_b, A, &requests);
        assert_eq!(answers, vec![RestoreOutcome::Unknown; 200], "round {round}");
        wait_until("the figures are told", || agent.figures().backlog_bytes == 0);
        assert_eq!(agent.figures().announced, 0);
    }
    publish(&on_a, 0..4);
    wait_until("what comes later is backed up", || agent.figures().announced == 4);
    agent.stop().unwrap();
    assert_eq!(blocks_in(folder.path()), 4);
}

#[test]
fn an_agent_that_was_down_clears_before_it_announces() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let agent = start(&region, A, &folder);
    let on_a = Pool::attach(region.path(), A).unwrap();
    let on_b = Pool::attach(region.path(), B).unwrap();
    publish(&on_a, 0..20);
    wait_until("the blocks are backed up", || agent.figures().announced == 20);
    agent.stop().unwrap();
    assert_eq!(clear(&on_b, 50), [NodeId(A)], "its drives have not answered");
    assert_eq!(blocks_in(folder.path()), 20);
    let agent = start(&region, A, &folder);
    assert_eq!(clear(&on_b, LIMIT_MS), []);
    wait_until("it has begun", || agent.is_ready());
    assert_eq!(agent.figures().announced, 0);
    publish(&on_a, 0..20);
    wait_until("the blocks are backed up", || agent.figures().announced == 20);
    agent.stop().unwrap();
    let agent = start(&region, A, &folder);
    wait_until("they are announced again", || agent.figures().announced == 20);
    agent.stop().unwrap();

    // More requests than a node has lines for, and the line of the clear is lost.
    assert_eq!(clear(&on_b, 50), [NodeId(A)]);
    let other = Namespace::new("other", b"");
    for _ in 0..20 {
        let left = on_b.unpin(&other, std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(left, []);
    }
    let agent = start(&region, A, &folder);
    wait_until("it has begun", || agent.is_ready());
    assert_eq!(agent.figures().announced, 0);
    agent.stop().unwrap();
    assert_eq!(blocks_in(folder.path()), 0);
}

#[test]
fn a_drive_that_was_away_is_cleared_before_it_is_announced() {
    let (region, [first, second]) = (region(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let both = || {
        let mut both = settings(&region, A, first.path());
        both.drives.push(DriveFolder { path: second.path().to_owned(), ..both.drives[0].clone() });
        Agent::start(both).unwrap()
    };
    let on_a = Pool::attach(region.path(), A).unwrap();
    let agent = both();
    publish(&on_a, 0..20);
    wait_until("the blocks are backed up", || agent.figures().announced == 20);
    agent.stop().unwrap();
    let away = blocks_in(second.path());
    assert!((1..20).contains(&away), "{away}");
    let agent = start(&region, A, &first);
    assert_eq!(clear(&on_a, LIMIT_MS), []);
    publish(&on_a, 30..35);
    wait_until("later blocks are backed up", || agent.figures().announced == 5);
    agent.stop().unwrap();
    assert_eq!((blocks_in(first.path()), blocks_in(second.path())), (5, away));
    let agent = both();
    wait_until("it has begun", || agent.is_ready());
    assert_eq!(agent.figures().announced, 5);
    agent.stop().unwrap();
    assert_eq!((blocks_in(first.path()), blocks_in(second.path())), (5, 0));
}

#[test]
fn a_clear_stops_blocks_while_an_earlier_one_waits() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let agent = start(&region, A, &folder);
    let on_a = Pool::attach(region.path(), A).unwrap();
    let keys: Vec<_> = (0..100).map(key).collect();
    publish(&on_a, 0..100);
    wait_until("the blocks are backed up", || agent.figures().announced == 100);
    agent.stop().unwrap();
    // A table that the device does not give.
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let table = names.into_iter().find(|path| path.to_string_lossy().contains(".table-")).unwrap();
    let (elsewhere, first) = (tempfile::tempdir().unwrap(), Namespace::new("other", b""));
    std::fs::rename(&table, elsewhere.path().join("table")).unwrap();
    std::fs::create_dir(&table).unwrap();
    let agent = start(&region, A, &folder);
    wait_until("the other tables are read", || agent.figures().announced > 0);
    let timeout = std::time::Duration::from_millis(50);
    assert_eq!(on_a.clear(Some(&first), timeout).unwrap().nodes_left(), [NodeId(A)]);
    assert_eq!(clear(&on_a, 50), [NodeId(A)], "not all blocks are known");
    clock().sleep_ms(500);
    let requests: Vec<_> = keys.iter().map(|key| request(*key)).collect();
    let answers = restore(&on_a, A, &requests);
    assert!(answers.contains(&RestoreOutcome::Unknown), "{answers:?}");
    assert!(!answers.contains(&RestoreOutcome::Restored), "{answers:?}");

    std::fs::remove_dir(&table).unwrap();
    std::fs::rename(elsewhere.path().join("table"), &table).unwrap();
    wait_until("both are carried out", || agent.is_ready());
    assert_eq!(clear(&on_a, LIMIT_MS), []);
    agent.stop().unwrap();
    assert_eq!(blocks_in(folder.path()), 0);
}

/// AGENT-C4.
#[test]
fn a_later_clear_withdraws_its_blocks_while_an_earlier_one_cannot_commit() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let faults = Faults::of_folder(folder.path());
    let agent = start(&region, A, &folder);
    let on_a = Pool::attach(region.path(), A).unwrap();
    publish(&on_a, 0..20);
    wait_until("the blocks are backed up", || agent.figures().announced == 20);
    faults.plan(Some(Call::Sync), 0, u64::MAX, Fault::Error(libc::EIO));
    let (other, timeout) = (Namespace::new("other", b""), std::time::Duration::from_millis(200));
    let cleared = on_a.clear(Some(&other), timeout).unwrap();
    assert_eq!(cleared.nodes_left(), [NodeId(A)]);
    assert_eq!(agent.figures().announced, 20);
    let tenant = Namespace::new("tenant", b"");
    let cleared = on_a.clear(Some(&tenant), timeout).unwrap();
    assert_eq!(cleared.nodes_left(), [NodeId(A)]);
    wait_until("its blocks are withdrawn", || agent.figures().announced == 0);
    faults.clear();
    wait_until("both are carried out", || clear(&on_a, 1000).is_empty());
    agent.stop().unwrap();
    assert_eq!(blocks_in(folder.path()), 0);
}

#[test]
fn a_clear_of_a_region_that_is_gone_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    {
        let region = region();
        let agent = start(&region, A, &folder);
        publish(&Pool::attach(region.path(), A).unwrap(), 0..20);
        wait_until("the blocks are backed up", || agent.figures().announced == 20);
        agent.stop().unwrap();
    }
    // Asked for while no agent of the new region ever ran.
    let region = region();
    let on_b = Pool::attach(region.path(), B).unwrap();
    assert_eq!(clear(&on_b, LIMIT_MS), []);
    let agent = start(&region, A, &folder);
    wait_until("it has begun", || agent.is_ready());
    assert_eq!(agent.figures().announced, 0);
    agent.stop().unwrap();
    assert_eq!(blocks_in(folder.path()), 0);
}

#[test]
fn blocks_that_are_used_again_are_worth_a_write() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let mut second_touch = settings(&region, A, folder.path());
    second_touch.backup.admission = AdmissionKind::SecondTouch;
    let agent = Agent::start(second_touch).unwrap();
    let pool = Pool::attach(region.path(), A).unwrap();
    publish(&pool, 0..4);
    wait_until("each was seen", || agent.figures().not_admitted == 4);
    let reader = Pool::attach(region.path(), B).unwrap();
    assert!(fetch(&reader, 2).is_some());
    wait_until("the one that was used is backed up", || agent.figures().backed_up == 1);
    wait_until("it is announced", || agent.figures().announced == 1);
    agent.stop().unwrap();
}

/// An engine says when it computes: blocks are written in the windows that it leaves, and what was
/// learned of its forwards is kept.
#[test]
fn blocks_are_written_while_an_engine_computes() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let mut in_windows = settings(&region, A, folder.path());
    // Neither idle nor late: forwards come at once after one another.
    let schedule = ScheduleSettings { depth: 4, idle_us: LIMIT_MS * 1000, write_wait_us: u64::MAX };
    in_windows.backup.schedule = schedule;
    let agent = Agent::start(in_windows.clone()).unwrap();
    let pool = Pool::attach(region.path(), A).unwrap();
    let mut forwards = pool.session(options()).unwrap().report_forwards().unwrap();
    let clock = SystemClock::start();
    let mut forward = |work: &mut dyn FnMut()| {
        forwards.begin(1000, 0);
        clock.sleep_ms(60);
        work();
        clock.sleep_ms(60);
        forwards.end();
    };
    (0..8).for_each(|_| forward(&mut || ()));
    publish(&pool, 0..4);
    wait_until("a block is written in a window", || {
        forward(&mut || ());
        agent.figures().backed_up > 0
    });
    let figures = agent.figures();
    assert!(figures.windows_used > 0 && figures.window_bytes > 0, "{figures:?}");
    assert_eq!((figures.idle_bytes, figures.late_bytes), (0, 0), "{figures:?}");
    agent.stop().unwrap();
    let kept = std::fs::read_to_string(folder.path().join("slack")).unwrap();
    assert!(kept.lines().count() > 2, "{kept}");
    // The table of the agent before: the first forward that is seen from its begin is a window.
    let agent = Agent::start(in_windows).unwrap();
    wait_until("it sees a window", || {
        forward(&mut || ());
        agent.figures().windows > 0
    });
    agent.stop().unwrap();
}

#[test]
fn a_host_without_drives_follows_and_finds_blocks_of_others() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let owner = start(&region, A, &folder);
    // Node B had a drive once: what its agent announced then is not believed any more.
    let former = tempfile::tempdir().unwrap();
    let agent = start(&region, B, &former);
    let (pool, other) = (Pool::attach(region.path(), A).unwrap(), Pool::attach(region.path(), B));
    let other = other.unwrap();
    publish(&pool, 0..2);
    publish(&other, 10..12);
    wait_until("both are announced", || {
        owner.figures().announced == 2 && agent.figures().announced == 2
    });
    agent.stop().unwrap();

    let mut without = settings(&region, B, former.path());
    without.drives.clear();
    let follower = Agent::start(without).unwrap();
    wait_until("it is ready", || follower.is_ready());
    evict(&pool, &[key(0), key(1)], 100);
    wait_until("its host finds them", || on_drives(&other, &[key(0), key(1)]) == [NodeId(A); 2]);
    assert!(on_drives(&pool, &[key(10)]).is_empty(), "nobody can restore it");
    let session = other.session(options()).unwrap();
    let wait = RestoreOptions::new(std::time::Duration::from_millis(LIMIT_MS));
    let found = session.lookup_and_restore(&[hash(0), hash(1)], wait).unwrap();
    assert_eq!((found.restored(), found.stop()), (2, None));
    assert_eq!(fetch(&other, 1).unwrap(), content(1));
    // It is asked all the same, by a process that knows an older table.
    let cache = pool.cache();
    let asked = cache.ask_restore(&clock(), NodeId(B), &[request(key(10))]).unwrap();
    let mut state = RestoreState::Pending;
    wait_until("it is answered", || {
        state = cache.restore_states(&asked.tickets).unwrap()[0];
        state != RestoreState::Pending
    });
    assert_eq!(state, RestoreState::Answered(RestoreOutcome::Unknown));
    let figures = follower.figures();
    assert_eq!((figures.announced, figures.backed_up, figures.capacity_bytes), (0, 0, 0));
    laws::follows(&follower, 2);
    // A clear waits for the agents of all hosts.
    assert_eq!(clear(&pool, LIMIT_MS), []);
    wait_until("the drives of A have none", || on_drives(&other, &[key(0), key(1)]).is_empty());
    follower.stop().unwrap();
    owner.stop().unwrap();
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let agent = start(&region, A, &folder);
    let other = tempfile::tempdir().unwrap();
    let second = Agent::start(settings(&region, A, other.path())).unwrap_err();
    assert!(matches!(second, AgentError::Drives(DriveError::OtherAgent)), "{second}");
    let taken = Agent::start(settings(&region, B, folder.path())).unwrap_err();
    assert!(taken.to_string().contains("another process"), "{taken}");
    let missing = Agent::start(settings(&region, B, &other.path().join("none"))).unwrap_err();
    assert!(missing.to_string().contains("folder"), "{missing}");
    let link = other.path().join("link");
    std::os::unix::fs::symlink(other.path(), &link).unwrap();
    let mut twice = settings(&region, B, other.path());
    twice.drives.push(DriveFolder { path: link, capacity_bytes: None });
    let twice = Agent::start(twice).unwrap_err();
    assert!(twice.to_string().contains("are the same folder: give it once"), "{twice}");
    let mut small = settings(&region, B, other.path());
    small.drives[0].capacity_bytes = Some(1024);
    let small = Agent::start(small).unwrap_err();
    assert!(small.to_string().contains("capacity has to be 1048576 bytes or more"), "{small}");
    agent.stop().unwrap();
    let without = ScratchRegion::create(16 << 20, 2, 64 << 10).unwrap();
    let refused = Agent::start(settings(&without, A, folder.path())).unwrap_err();
    assert!(refused.to_string().contains("--drive-bytes"), "{refused}");
}
