//! `rackline agent`: killed and started again it has its blocks; its settings come from a file.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use cxl_shm::clock::SystemClock;
use kv_cache::tier::{Found, RestoreState};
use kv_cache::{
    BlockHash, BlockKey, KeySpace, ModelFingerprint, RestoreOutcome, RestoreRequest, agent_of,
};
use rackline::{Attention, Dtype, KvGeometry, Namespace, NewBlock, NodeId, SessionOptions};
use rustix::process::{Pid, Signal, kill_process};

use pool::Pool;

const BLOCK_BYTES: usize = 16 << 10;
const BLOCKS: u8 = 6;

/// The one clock of the process: how long ago an agent was heard of is told by it.
fn clock() -> SystemClock {
    static CLOCK: OnceLock<SystemClock> = OnceLock::new();
    *CLOCK.get_or_init(SystemClock::start)
}

/// How long it may take: far longer than on a slow machine, to end a hang and not to measure.
const LIMIT_MS: u64 = 900_000;

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let clock = SystemClock::start();
    while !reached() {
        assert!(clock.now_us() / 1000 < LIMIT_MS, "it never got there: {what}");
        clock.sleep_ms(5);
    }
}

/// A process that is killed when the test ends.
struct Process(Child);

impl Process {
    fn agent(pool: &Pool, folder: &Path) -> Self {
        let drive = format!("{}:64MiB", folder.display());
        let flags = ["--node", "0", "--drive", &drive, "--admission", "all"];
        let soon = ["--backup-age-ms", "0", "--commit-ms", "5"];
        Self(pool.rackline(&["agent"]).args(flags).args(soon).spawn().unwrap())
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

/// Grants the chunks that a publish takes.
fn lock_manager(pool: &Pool) -> Process {
    let mut command = pool.rackline(&["lock-manager", "--node", "1"]);
    Process(command.stderr(Stdio::null()).spawn().unwrap())
}

fn options() -> SessionOptions {
    let options = SessionOptions::new(fingerprint(), BLOCK_BYTES as u64);
    options.with_chunk_timeout(Duration::from_secs(120))
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fingerprint() -> ModelFingerprint {
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    KvGeometry::new(1, heads, Dtype::F16, 64).unwrap().model("model", "1", 1).fingerprint()
}

fn hash(number: u8) -> BlockHash {
    BlockHash::new([number; 32])
}

fn keys() -> Vec<BlockKey> {
    let space = KeySpace::new(fingerprint(), Namespace::default(), BLOCK_BYTES as u64);
    (0..BLOCKS).map(|number| space.key(&hash(number))).collect()
}

fn publish(engine: &rackline::Pool) {
    let session = engine.session(options()).unwrap();
    for number in 0..BLOCKS {
        let bytes = [number ^ 0x5a; BLOCK_BYTES];
        let block = NewBlock { hash: hash(number), depth: number.into(), bytes: [&bytes[..]] };
        assert_eq!(session.publish(&[block]).unwrap().published(), 1);
    }
}

/// Takes the blocks out of the pool, as an eviction would.
fn remove(engine: &rackline::Pool) {
    let cache = engine.cache();
    let found = cache.lookup(&keys());
    let handles: Vec<_> = found.blocks().iter().map(|block| block.handle).collect();
    assert_eq!(cache.retire(&clock(), &handles), u64::from(BLOCKS));
}

fn found_on_drive(engine: &rackline::Pool) -> usize {
    let found = engine.cache().find_with_drives(&clock(), &keys());
    found.behind.iter().filter(|it| matches!(it, Found::OnDrive { .. })).count()
}

fn restore(engine: &rackline::Pool) -> Vec<RestoreState> {
    let (cache, clock) = (engine.cache(), clock());
    let request = |key| RestoreRequest { key, wait_ms: 60_000, recompute_ms: None, ahead: false };
    let requests: Vec<_> = keys().into_iter().map(request).collect();
    let asked = cache.ask_restore(&clock, NodeId(0), &requests).unwrap();
    assert_eq!((asked.tickets.len(), asked.full), (requests.len(), 0));
    let mut states = Vec::new();
    wait_until("the requests are answered", || {
        states = cache.restore_states(&asked.tickets).unwrap();
        !states.contains(&RestoreState::Pending)
    });
    states
}

fn is_right(engine: &rackline::Pool) -> bool {
    let session = engine.session(options()).unwrap();
    let hashes: Vec<_> = (0..BLOCKS).map(hash).collect();
    let found = session.lookup(&hashes).unwrap();
    let mut memory = vec![vec![0; BLOCK_BYTES]; found.blocks().len()];
    let parts = memory.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
    let report = session.fetch(found.blocks(), parts).unwrap();
    report.valid_blocks() == usize::from(BLOCKS)
        && (0..BLOCKS).zip(&memory).all(|(number, bytes)| *bytes == [number ^ 0x5a; BLOCK_BYTES])
}

#[test]
fn an_agent_that_was_killed_has_its_blocks_when_it_starts_again() {
    let (pool, folder) = (Pool::format_in("/dev/shm"), tempfile::tempdir().unwrap());
    let _manager = lock_manager(&pool);
    let engine = rackline::Pool::attach(pool.path(), 0).unwrap();
    let agent = Process::agent(&pool, folder.path());
    publish(&engine);
    wait_until("the blocks are announced", || announced(&engine) == u64::from(BLOCKS));
    remove(&engine);
    wait_until("the host knows", || found_on_drive(&engine) == usize::from(BLOCKS));

    agent.send(Signal::KILL);
    drop(agent);
    // What the dead agent has announced is a miss as soon as its host misses its beat.
    wait_until("no drive is believed in", || found_on_drive(&engine) == 0);
    assert!(!is_right(&engine), "the blocks are not in the pool");

    let agent = Process::agent(&pool, folder.path());
    wait_until("the drive is announced again", || found_on_drive(&engine) == BLOCKS.into());
    let restored = RestoreState::Answered(RestoreOutcome::Restored);
    assert_eq!(restore(&engine), vec![restored; BLOCKS.into()]);
    assert!(is_right(&engine));
    agent.send(Signal::TERM);
    let mut agent = agent;
    assert!(agent.0.wait().unwrap().success(), "SIGTERM stops in order");
    assert_eq!(found_on_drive(&engine), 0);
}

/// What the agent of node 0 says that it has announced.
fn announced(engine: &rackline::Pool) -> u64 {
    let cache = engine.cache();
    let member = cache.member();
    let seen = agent_of(member.fabric(), member.superblock(), member.layout(), NodeId(0)).unwrap();
    seen.map_or(0, |seen| seen.line.announced_blocks)
}

fn run(pool: &Pool, command: &str, arguments: &[&str]) -> Output {
    let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_rackline"));
    process.arg(command).args(arguments).env("RACKLINE_REGION", pool.path()).output().unwrap()
}

#[test]
fn settings_are_checked_without_a_start() {
    let (pool, folder) = (Pool::format_in("/dev/shm"), tempfile::tempdir().unwrap());
    let file = folder.path().join("rackline.toml");
    let config = format!("--config={}", file.display());
    let good = "node = 1\n[agent]\ndrive = [\"/mnt/a:1GiB\"]\nadmission = \"second-touch\"\n\
                [lock_manager]\ndeclare_ms = 2000\n";
    std::fs::write(&file, good).unwrap();
    for command in ["agent", "lock-manager"] {
        let output = run(&pool, command, &[&config, "--check"]);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("rackline.toml"), "{output:?}");
    }
    let refused = |text: &str, command: &str, typed: &[&str], word: &str| {
        std::fs::write(&file, text).unwrap();
        let output = run(&pool, command, &[&[config.as_str(), "--check"], typed].concat());
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}: {words}");
        assert!(words.contains(word), "{text}: {words}");
    };
    refused("node = 1\n[agent]\ndrives = [\"a\"]", "agent", &[], "drives");
    refused("node = 1\n[lock_manager]\ndeclare_ms = 2", "lock-manager", &[], "declare-ms");
    refused(good, "agent", &["--admission", "some"], "second-touch");
    refused(good, "agent", &["--drive", "/mnt/a:much"], "DIR:3TiB");
}

#[test]
fn an_agent_without_drives_follows_and_status_says_so() {
    let pool = Pool::format_in("/dev/shm");
    let _manager = lock_manager(&pool);
    let checked = pool.rackline(&["agent"]).args(["--node", "0", "--check"]).output().unwrap();
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && said.contains("would follow the drives"), "{said}");
    let mut agent = pool.rackline(&["agent"]);
    let agent = Process(agent.args(["--node", "0"]).stderr(Stdio::null()).spawn().unwrap());
    let status = || {
        let said = pool.rackline(&["status"]).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    wait_until("it serves", || status().contains("node 0 has no drives: its agent serves"));
    agent.send(Signal::KILL);
    drop(agent);
    wait_until("it is silent", || status().contains("its agent is silent: engines of this host"));
}
