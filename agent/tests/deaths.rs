//! An agent that dies at any step of a backup, a restore or a clear: nothing is lost that was
//! announced, no cleared block comes back, no slot of the pool leaks, and every request is answered.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::crash::{ARM_VARIABLE, CrashPoint, arm_from_environment};
use kv_cache::tier::{Found, RestoreState};
use kv_cache::{
    BlockHash, BlockKey, KeySpace, Model, Namespace, RestoreOutcome, RestoreRequest, Watermarks,
};
use kv_drive::encoding::{EncodingChoice, EncodingOptions};
use kv_drive::io::EngineKind;
use kv_drive::policy::AdmissionKind;
use rackline::{NewBlock, NodeId, Pool, ScratchRegion, SessionOptions};
use rackline_agent::{
    Agent, BackupSettings, DriveFolder, RestoreSettings, ScheduleSettings, Settings,
};

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
const BLOCK_BYTES: usize = (64 << 10) - 100;
const BLOCKS: u32 = 8;
const LIMIT_MS: u64 = 120_000;
const REGION: &str = "RACKLINE_TEST_REGION";
const FOLDER: &str = "RACKLINE_TEST_FOLDER";

fn clock() -> SystemClock {
    static CLOCK: OnceLock<SystemClock> = OnceLock::new();
    *CLOCK.get_or_init(SystemClock::start)
}

fn settings(region: &Path, node: u16, folder: &Path) -> Settings {
    Settings {
        region: region.to_owned(),
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
            retry_ms: 10_000,
            schedule: ScheduleSettings { depth: 4, idle_us: 1_000, write_wait_us: 100_000 },
            watermarks: Watermarks::default(),
            encoding: EncodingOptions { choice: EncodingChoice::Raw, least_saving_percent: 10 },
        },
    }
}

fn hash(number: u32) -> BlockHash {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    BlockHash::new(bytes)
}

fn tenant() -> Namespace {
    Namespace::new("tenant", b"")
}

fn options() -> SessionOptions {
    SessionOptions::new(MODEL, BLOCK_BYTES as u64).with_namespace(tenant())
}

fn keys() -> Vec<BlockKey> {
    let space = KeySpace::new(MODEL.fingerprint(), tenant(), BLOCK_BYTES as u64);
    (0..BLOCKS).map(|number| space.key(&hash(number))).collect()
}

fn content(number: u32) -> Vec<u8> {
    let [low, high, ..] = number.wrapping_mul(77).to_le_bytes();
    (0..BLOCK_BYTES).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1] ^ low ^ high).collect()
}

fn publish(pool: &Pool, number: u32) {
    let bytes = content(number);
    let block = NewBlock { hash: hash(number), depth: 0, bytes: [bytes.as_slice()] };
    assert_eq!(pool.session(options()).unwrap().publish(&[block]).unwrap().available(), 1);
}

fn fetch(pool: &Pool, number: u32) -> Option<Vec<u8>> {
    let session = pool.session(options()).unwrap();
    let found = session.lookup(&[hash(number)]).unwrap();
    let mut bytes = vec![0; BLOCK_BYTES];
    if found.blocks().is_empty() {
        return None;
    }
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

/// A region with two hosts. The agent of the first is a process that may die.
struct Rack {
    point: CrashPoint,
    region: ScratchRegion,
    folder: tempfile::TempDir,
    agent: Child,
    has_died: bool,
    on_a: Pool,
    on_b: Pool,
    /// Keeps what the second host knows of drives.
    other: Agent,
    _other_folder: tempfile::TempDir,
}

impl Rack {
    fn new(point: CrashPoint) -> Self {
        let region = ScratchRegion::create_with_drives(16 << 20, 2, 64 << 10, 64 << 20).unwrap();
        let (folder, other_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let agent = start(region.path(), folder.path(), Some(point));
        let other = Agent::start(settings(region.path(), 1, other_folder.path())).unwrap();
        let [on_a, on_b] = [0, 1].map(|node| Pool::attach(region.path(), node).unwrap());
        let (has_died, _other_folder) = (false, other_folder);
        Self { point, region, folder, agent, has_died, on_a, on_b, other, _other_folder }
    }

    /// Waits for something that the agent does. One that dies meanwhile is started again.
    fn wait_until(&mut self, what: &str, mut reached: impl FnMut(&Self) -> bool) {
        let clock = SystemClock::start();
        while !reached(self) {
            assert!(clock.now_ms() < LIMIT_MS, "{:?}: it never got there: {what}", self.point);
            if !self.has_died && self.agent.try_wait().unwrap().is_some() {
                self.has_died = true;
                self.agent = start(self.region.path(), self.folder.path(), None);
            }
            clock.sleep_ms(2);
        }
    }

    /// How many of the blocks the second host finds on the drive of the first, or in the pool.
    fn found(&self) -> usize {
        let found = self.on_b.cache().find_with_drives(&clock(), &keys());
        let on_drive = |found: &&Found| matches!(found, Found::OnDrive { node: NodeId(0), .. });
        found.behind.iter().filter(on_drive).count()
    }

    fn evict(&self) {
        for number in 100..1100 {
            if self.on_a.cache().present(&keys()).iter().all(|is_present| !is_present) {
                return;
            }
            publish(&self.on_a, number);
        }
        panic!("the blocks stay in the pool");
    }

    /// Asks once, and waits for the answers of whatever agent.
    fn restore(&mut self) -> Vec<RestoreOutcome> {
        let request =
            |key| RestoreRequest { key, wait_ms: 60_000, recompute_ms: None, ahead: false };
        let requests: Vec<_> = keys().into_iter().map(request).collect();
        let asked = self.on_b.cache().ask_restore(&clock(), NodeId(0), &requests).unwrap();
        assert_eq!(asked.full, 0);
        let mut outcomes = Vec::new();
        self.wait_until("all requests are answered", |rack| {
            let states = rack.on_b.cache().restore_states(&asked.tickets).unwrap();
            let answer = |state: &RestoreState| match state {
                RestoreState::Answered(outcome) => Some(*outcome),
                _ => None,
            };
            outcomes = states.iter().filter_map(answer).collect();
            outcomes.len() == requests.len()
        });
        outcomes
    }

    fn play(mut self) {
        let point = self.point;
        (0..BLOCKS).for_each(|number| publish(&self.on_a, number));
        // What a dead agent had not made durable is backed up by the next one, from the pool.
        wait_until("the blocks are in the pool", || fetch(&self.on_b, 0).is_some());
        self.wait_until("the blocks are announced", |rack| rack.announced() >= BLOCKS.into());
        self.evict();
        self.wait_until("the other host finds them", |rack| rack.found() == keys().len());
        let first = self.restore();
        let is_known = |it: &RestoreOutcome| {
            [RestoreOutcome::Restored, RestoreOutcome::Stopped, RestoreOutcome::Busy].contains(it)
        };
        assert!(first.iter().all(is_known), "{point:?}: {first:?}");
        // A request that met a dead agent is asked for again.
        self.wait_until("the blocks are back", |rack| {
            let back = (0..BLOCKS).filter(|number| match fetch(&rack.on_b, *number) {
                Some(bytes) => {
                    assert_eq!(bytes, content(*number), "{point:?}: block {number}");
                    true
                }
                None => {
                    let key = keys()[*number as usize];
                    let request =
                        RestoreRequest { key, wait_ms: 60_000, recompute_ms: None, ahead: false };
                    let asked = rack.on_b.cache().ask_restore(&clock(), NodeId(0), &[request]);
                    drop(asked.unwrap());
                    false
                }
            });
            back.count() == keys().len()
        });
        let left = self.on_b.clear(None, Duration::from_millis(3000)).unwrap().nodes_left();
        self.wait_until("the clear is carried out", |rack| {
            let again = || rack.on_b.clear(None, Duration::from_millis(1000)).unwrap();
            left.is_empty() || again().nodes_left().is_empty()
        });
        assert!(self.has_died, "{point:?}: the agent did not come there");
        self.wait_until("no host finds a block", |rack| rack.announced() == 0 && rack.found() == 0);
        assert_eq!(self.restore(), vec![RestoreOutcome::Unknown; keys().len()], "{point:?}");
        // No slot of the pool leaks.
        wait_until("the pool is empty", || {
            [&self.on_a, &self.on_b].iter().all(|it| it.cache().heap_use(&clock()).blocks == 0)
        });
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
        self.other.stop().unwrap();
    }

    /// Blocks that the agent of the first host says that it has announced.
    fn announced(&self) -> u64 {
        let cache = self.on_b.cache();
        let (member, node) = (cache.member(), NodeId(0));
        let seen = kv_cache::agent_of(member.fabric(), member.superblock(), member.layout(), node);
        seen.unwrap().map_or(0, |seen| seen.line.announced_blocks)
    }
}

fn start(region: &Path, folder: &Path, point: Option<CrashPoint>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "an_agent_dies_at_every_step_of_a_backup"]).env(REGION, region);
    command.env(FOLDER, folder).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(point) = point {
        command.env(ARM_VARIABLE, format!("{}:1", point.name()));
    }
    command.spawn().unwrap()
}

/// Plays with a death at each of these points; or, in a process of its own, is the agent.
fn play(points: &[CrashPoint]) {
    let Some(region) = std::env::var_os(REGION) else {
        return points.iter().for_each(|point| Rack::new(*point).play());
    };
    arm_from_environment().unwrap();
    let folder = std::env::var_os(FOLDER).unwrap();
    let agent = Agent::start(settings(Path::new(&region), 0, Path::new(&folder))).unwrap();
    wait_until("its parent ends it", || agent.has_ended());
    agent.stop().unwrap();
}

#[test]
fn an_agent_dies_at_every_step_of_a_backup() {
    use CrashPoint::{BackupAnnounced, BackupCommitted, BackupWritten};
    play(&[BackupWritten, BackupCommitted, BackupAnnounced]);
}

#[test]
fn an_agent_dies_at_every_step_of_a_restore() {
    use CrashPoint::{
        PublishAnnounced, PublishCopied, PublishLogged, PublishReady, PublishReserved,
        RestorePublished,
    };
    play(&[PublishReserved, PublishCopied, PublishReady, PublishLogged]);
    play(&[PublishAnnounced, RestorePublished]);
}

#[test]
fn an_agent_dies_at_every_step_of_a_clear() {
    use CrashPoint::{ClearCommitted, ClearRemoved, ClearSwept, ClearWithdrawn};
    play(&[ClearSwept, ClearWithdrawn, ClearRemoved, ClearCommitted]);
}
