//! Real memory errors under a process of a pool: poisoned payload is a miss and its chunk leaves the
//! pool; poisoned metadata cuts the process off, and the others of its host go on.
//!
//! Poison needs Linux 6.6 and a user who may use `userfaultfd`; the tests say so when it is not there.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{ChunkState, failed_extents, read_superblock};
use cxl_shm::region::Region;
use cxl_shm::units::{Extent, NodeId};
use cxl_shm::verify::poison::{contain_nothing, poison};
use rackline::{
    BlockHash, FetchStop, LossCause, Miss, Model, NewBlock, Pool, PublishOutcome, ScratchRegion,
    SessionError, SessionOptions,
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
const BLOCK_BYTES: usize = 64 << 10;
const REGION: &str = "RACKLINE_TEST_REGION";
const CASE: &str = "RACKLINE_TEST_CASE";
const BROKEN: &str = "RACKLINE_TEST_BROKEN";
const TEST: &str = "a_process_survives_errors_of_its_memory";
const SIGBUS: i32 = 7;
const LIMIT_MS: u64 = 120_000;

fn options() -> SessionOptions {
    SessionOptions::new(MODEL, BLOCK_BYTES as u64)
}

fn hash(number: u8) -> BlockHash {
    BlockHash::new([number; 32])
}

fn publish(pool: &Pool, number: u8) -> PublishOutcome {
    // Zeros, which a checksum cannot tell from the replacement.
    let bytes = vec![0; BLOCK_BYTES];
    let block = NewBlock { hash: hash(number), depth: 0, bytes: [bytes.as_slice()] };
    let report = pool.session(options()).unwrap().publish(&[block]).unwrap();
    report.outcomes()[0].clone()
}

fn fetch(pool: &Pool, number: u8) -> Result<(), Option<Miss>> {
    let session = pool.session(options()).unwrap();
    let found = session.lookup(&[hash(number)]).unwrap();
    if found.blocks().is_empty() {
        return Err(None);
    }
    let mut bytes = vec![1; BLOCK_BYTES];
    let report = session.fetch(found.blocks(), vec![vec![bytes.as_mut_slice()]]).unwrap();
    match report.stop() {
        None => Ok(()),
        Some(FetchStop::Miss(miss)) => Err(Some(*miss)),
        Some(stop) => panic!("{stop:?}"),
    }
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let clock = SystemClock::start();
    while !reached() {
        assert!(clock.now_ms() < LIMIT_MS, "it never got there: {what}");
        clock.sleep_ms(5);
    }
}

/// Where block `number` of node 0 is.
fn payload_of(pool: &Pool, number: u8) -> Extent {
    let session = pool.session(options()).unwrap();
    let found = session.lookup(&[hash(number)]).unwrap();
    let wanted = kv_cache::Wanted {
        handle: found.blocks()[0].handle,
        key: found.blocks()[0].key,
        bytes: BLOCK_BYTES as u64,
    };
    pool.cache().open(&[wanted])[0].as_ref().unwrap().payload()
}

/// Blocks of zeros whose pages are poisoned are misses; their chunk leaves the pool.
fn payload(region: &Path) {
    let pool = Pool::attach(region, 0).unwrap();
    assert_eq!(publish(&pool, 1), PublishOutcome::Published);
    assert_eq!(publish(&pool, 2), PublishOutcome::Published);
    assert_eq!(fetch(&pool, 1), Ok(()));
    let lost = payload_of(&pool, 1);
    let (layout, fabric) =
        (*pool.attachment().member().layout(), pool.attachment().region().fabric().clone());
    let chunk = layout.chunk_of(lost).unwrap();
    poison(region, Extent::new(lost.offset() + 8192, 4096).unwrap()).unwrap();
    assert_eq!(fetch(&pool, 1), Err(Some(Miss::MemoryFailed)));
    assert_eq!(fetch(&pool, 1), Err(None), "it is not offered again");
    assert!(!fabric.is_cut_off());
    // The rest of the pool is as it was, and no new block goes there.
    let state = || layout.chunk_entry(chunk).fresh(&fabric).unwrap().state();
    wait_until("the chunk is out of use", || state() == Some(ChunkState::Failed));
    assert_eq!(
        failed_extents(&layout, &fabric),
        [Extent::new(lost.offset() + 8192, 4096).unwrap()]
    );
    assert_eq!(publish(&pool, 1), PublishOutcome::Published);
    assert_ne!(layout.chunk_of(payload_of(&pool, 1)), Some(chunk));
    assert_eq!(fetch(&pool, 1), Ok(()));
    let metrics = pool.metrics();
    assert_eq!((metrics.memory_faults, metrics.failed_chunks), (1, 1));
    assert_eq!((metrics.misses(Miss::MemoryFailed), metrics.membership_lost), (1, 0));
}

/// A publish into a poisoned page: the block does not become READY, and the next one goes elsewhere.
fn publishing(region: &Path) {
    let pool = Pool::attach(region, 0).unwrap();
    assert_eq!(publish(&pool, 1), PublishOutcome::Published);
    let next = payload_of(&pool, 1).end();
    poison(region, Extent::new(next, 4096).unwrap()).unwrap();
    let missing = publish(&pool, 2);
    assert_eq!((missing.label(), fetch(&pool, 2)), ("memory_failed", Err(None)));
    assert!(missing.why_missing().is_some_and(|why| why.contains("memory")));
    assert_eq!(publish(&pool, 2), PublishOutcome::Published);
    assert_eq!(fetch(&pool, 2), Ok(()));
    wait_until("the chunk is noted", || pool.metrics().failed_chunks == 1);
}

/// A poisoned page of metadata: every call says so, and the process ends in order.
fn metadata(region: &Path) {
    let pool = Pool::attach(region, 0).unwrap();
    assert_eq!(publish(&pool, 1), PublishOutcome::Published);
    let layout = *pool.attachment().member().layout();
    let line = layout.heartbeat(NodeId(1)).range().start().bytes();
    // A lookup reads the head of each node's log.
    let area = layout.area(NodeId(1)).range();
    for at in [line, area.start().bytes()] {
        poison(region, Extent::new(at, 64).unwrap()).unwrap();
    }
    let session = pool.session(options()).unwrap();
    let mut outcome = Ok(());
    wait_until("a lookup says so", || {
        outcome = session.lookup(&[hash(1)]).map(drop);
        outcome.is_err()
    });
    let Err(SessionError::MembershipLost(lost)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(lost.cause, LossCause::MemoryFailed);
    let refused = publish_refused(&pool);
    assert!(refused.contains("the memory of the region failed"), "{refused}");
    assert_eq!(pool.metrics().membership_lost, 1);
    assert_eq!(pool.metrics().lost().unwrap().cause.name(), "memory_failed");
    let clock = SystemClock::start();
    drop(session);
    drop(pool);
    assert!(clock.now_ms() < LIMIT_MS, "closing hangs");
}

fn publish_refused(pool: &Pool) -> String {
    let bytes = vec![3; BLOCK_BYTES];
    let block = NewBlock { hash: hash(9), depth: 0, bytes: [bytes.as_slice()] };
    match pool.session(options()).unwrap().publish(&[block]) {
        Ok(report) => report.outcomes()[0].why_missing().unwrap(),
        Err(error) => error.to_string(),
    }
}

fn child(case: &str, region: &Path) {
    if std::env::var_os(BROKEN).is_some() {
        contain_nothing();
    }
    match case {
        "payload" => payload(region),
        "publishing" => publishing(region),
        "metadata" => metadata(region),
        other => panic!("no case {other:?}"),
    }
}

fn start(case: &str, region: &Path, broken: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture"]).env(CASE, case).env(REGION, region);
    if broken {
        command.env(BROKEN, "1");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn formatted() -> ScratchRegion {
    let region = ScratchRegion::create(32 << 20, 2, BLOCK_BYTES as u64).unwrap();
    Region::open(region.path(), None).unwrap().prefault(32 << 20, |_, _| ()).unwrap();
    region
}

fn can_poison() -> bool {
    let region = ScratchRegion::create(16 << 20, 1, BLOCK_BYTES as u64).unwrap();
    let _mapped = Region::open(region.path(), None).unwrap();
    let poisoned = poison(region.path(), Extent::new(0, 64).unwrap());
    if let Err(error) = &poisoned {
        let skipped = format!("SKIPPED {TEST}: no memory can be poisoned here: {error}\n");
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
    }
    poisoned.is_ok()
}

#[test]
fn a_process_survives_errors_of_its_memory() {
    if let Some(case) = std::env::var_os(CASE) {
        let region = std::env::var_os(REGION).unwrap();
        return child(case.to_str().unwrap(), Path::new(&region));
    }
    if !can_poison() {
        return;
    }
    use std::os::unix::process::ExitStatusExt as _;
    for case in ["payload", "publishing", "metadata"] {
        let region = formatted();
        // Beside it another process of the node, which must not notice anything.
        let beside = Pool::attach(region.path(), 0).unwrap();
        let output = start(case, region.path(), false).wait_with_output().unwrap();
        let said = [&output.stdout, &output.stderr];
        let said = said.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
        assert!(output.status.success(), "{case}: {:?}: {said}", output.status);
        assert_eq!(publish(&beside, 20), PublishOutcome::Published, "{case}");
        assert_eq!(fetch(&beside, 20), Ok(()), "{case}");
        let (_, layout) = read_superblock(beside.attachment().region().fabric()).unwrap();
        let lost = failed_extents(&layout, beside.attachment().region().fabric());
        assert_eq!(lost.is_empty(), case == "metadata", "{case}: {lost:?}");
        drop(beside);
        let region = formatted();
        let output = start(case, region.path(), true).wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(SIGBUS), "{case}");
    }
}
