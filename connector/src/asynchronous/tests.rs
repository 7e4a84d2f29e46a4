//! AsyncPool on a real region in /dev/shm, with locks that need no lock manager.

use std::sync::mpsc;
use std::time::Duration;

use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::Region;
use kv_cache::{Attention, BlockHash, CacheGeometry, DriveGeometry, Dtype, KvGeometry};

use super::*;
use crate::block::NewBlock;
use crate::options::OptionsError;

pub(super) const BLOCK_BYTES: usize = 8192;
const NODES: u16 = 2;

pub(super) fn options() -> SessionOptions {
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    let kv = KvGeometry::new(2, heads, Dtype::F16, 16).unwrap();
    let options = SessionOptions::new(kv.model("tiny", "1", 1), BLOCK_BYTES as u64);
    options.with_chunk_timeout(Duration::from_secs(5))
}

/// A folder with a fresh region, gone when it is dropped.
pub(super) fn region() -> (tempfile::TempDir, std::path::PathBuf) {
    region_with(None)
}

pub(super) fn region_with(
    drives: Option<DriveGeometry>,
) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("region");
    let cache = CacheGeometry::new(256, 64).unwrap().with_drives(drives);
    let geometry = Geometry {
        region_bytes: 16 << 20,
        nodes: NODES,
        locks: 8,
        chunk_bytes: 1 << 20,
        area_lines: cache.area_lines(NODES),
        host_words: 0,
    };
    let host_words = cache.host_words(&Layout::new(geometry).unwrap()) as u64;
    // Host tiers are told apart by it: the random name of the folder, in part.
    let name = folder.path().as_os_str().as_encoded_bytes();
    let random = name.iter().fold(0, |sum: u64, byte| sum.rotate_left(7) ^ u64::from(*byte));
    let uuid = [u64::from(std::process::id()), random];
    let superblock = Superblock::new(uuid, Geometry { host_words, ..geometry }, cache.encode());
    let superblock = Superblock { lock_protocol: LockProtocol::Bakery, ..superblock };
    let region = Region::create_file(&path, geometry.region_bytes).unwrap();
    format_superblock(region.fabric(), &superblock, |_, _| ()).unwrap();
    (folder, path)
}

pub(super) fn attach(path: &Path, node: u16, queue_depth: usize) -> AsyncPool {
    let options = AsyncOptions::new().with_copy_threads(2).with_queue_depth(queue_depth);
    AsyncPool::attach(path, node, &options.with_publishes_by_layers(true)).unwrap()
}

pub(super) fn block(number: u8) -> NewBlock<Vec<Vec<u8>>> {
    let hash = BlockHash::new([number; 32]);
    let bytes = vec![vec![number; 100], vec![!number; BLOCK_BYTES - 100]];
    NewBlock { hash, depth: u32::from(number), bytes }
}

#[test]
fn what_one_node_publishes_another_holds_and_fetches() {
    let (_folder, path) = region();
    let (prefill, decode) = (attach(&path, 0, 8), attach(&path, 1, 8));
    let from = prefill.session(options()).unwrap();
    let published = from.publish((0..20).map(block).collect()).unwrap().wait().unwrap();
    assert_eq!(published.report.unwrap().published(), 20);
    assert_eq!(published.blocks, (0..20).map(block).collect::<Vec<_>>(), "buffers come back");

    let to = decode.session(options()).unwrap();
    let hashes: Vec<_> = (0..25).map(|number| block(number).hash).collect();
    let found = to.lookup(hashes.clone()).unwrap().wait().unwrap().unwrap();
    assert_eq!(found.blocks().len(), 20);
    let held = to.lookup_and_hold(hashes).unwrap().wait().unwrap().unwrap();
    assert_eq!(held.blocks(), found.blocks());
    assert_eq!(decode.metrics().held_blocks, 20);

    let empty = vec![vec![vec![0; BLOCK_BYTES / 2]; 2]; 20];
    let fetched = to.fetch(held.blocks(), empty).unwrap().wait().unwrap();
    assert_eq!(fetched.report.unwrap().valid_blocks(), 20);
    for (number, parts) in (0..).zip(&fetched.destinations) {
        assert_eq!(parts.concat(), block(number).bytes.concat());
    }
    to.release(held).unwrap().wait().unwrap();
    assert_eq!(decode.metrics().released_blocks, 20);
}

#[test]
fn buffers_of_another_length_are_an_error_and_come_back() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let short = NewBlock { hash: BlockHash::new([1; 32]), depth: 0, bytes: vec![1; 7] };
    let published = session.publish(vec![short.clone()]).unwrap().wait().unwrap();
    assert!(published.report.unwrap_err().to_string().contains("7 bytes"));
    assert_eq!(published.blocks, [short]);
}

#[test]
fn a_session_of_blocks_that_can_never_be_is_refused() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let open = |block_bytes| pool.session(SessionOptions::new(options().model(), block_bytes));
    let most_bytes = 1 << 20;
    for block_bytes in [0, most_bytes + 1] {
        let error = OpenError::Length { block_bytes, most_bytes };
        assert_eq!(open(block_bytes).unwrap_err(), error);
    }
    let hold = options().with_hold(Duration::from_secs(3600));
    let refused = pool.session(hold).unwrap_err();
    assert_eq!(refused, OpenError::Options(OptionsError::Hold { hold_ms: 3_600_000 }));
    assert!(open(most_bytes).is_ok() && pool.check_open().is_ok());
    pool.close();
    assert_eq!(open(1).unwrap_err(), OpenError::Closed);
}

/// Bytes whose thread waits for a word before it continues.
#[derive(Debug)]
struct Gate(Mutex<mpsc::Receiver<()>>, Vec<u8>);

impl Source for Gate {
    fn parts(&self) -> Vec<&[u8]> {
        self.0.lock().unwrap().recv().unwrap();
        vec![&self.1]
    }
}

#[test]
fn a_full_queue_gives_back_what_it_was_given() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 1);
    let session = pool.session(options()).unwrap();
    let mut gates = Vec::new();
    let mut under_way = Vec::new();
    let refused = loop {
        let (open, gate) = mpsc::channel();
        let bytes = Gate(Mutex::new(gate), vec![0; BLOCK_BYTES]);
        let number = u8::try_from(gates.len()).unwrap();
        let hash = BlockHash::new([number; 32]);
        match session.publish(vec![NewBlock { hash, depth: 0, bytes }]) {
            Ok(completion) => {
                under_way.push(completion);
                gates.push(open);
            }
            Err(refused) => break refused,
        }
    };
    // Two at work and one waiting at most; a thread may not have taken up its first yet.
    assert!((1..=3).contains(&under_way.len()), "{}", under_way.len());
    assert!(refused.kind == SubmitErrorKind::Busy);
    assert_eq!(refused.given[0].bytes.1.len(), BLOCK_BYTES);

    // Lookups and fetches have queues of their own.
    assert_eq!(session.lookup(Vec::new()).unwrap().wait().unwrap().unwrap().blocks().len(), 0);
    for gate in &gates {
        gate.send(()).unwrap();
    }
    for completion in under_way {
        assert_eq!(completion.wait().unwrap().report.unwrap().published(), 1);
    }
}

#[test]
fn a_second_close_waits_for_what_the_first_waits_for() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let (open, gate) = mpsc::channel();
    let bytes = Gate(Mutex::new(gate), vec![0; BLOCK_BYTES]);
    let hash = BlockHash::new([1; 32]);
    let publish =
        pool.session(options()).unwrap().publish(vec![NewBlock { hash, depth: 0, bytes }]);
    let publish = publish.unwrap();
    let (say, closed) = mpsc::channel();
    let close = || {
        let (pool, say) = (pool.clone(), say.clone());
        std::thread::spawn(move || {
            pool.close();
            say.send(()).unwrap();
        })
    };
    let first = close();
    while pool.check_open().is_ok() {
        std::thread::yield_now();
    }
    let second = close();
    let early = closed.recv_timeout(Duration::from_millis(300));
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "a close ended before the publish");
    open.send(()).unwrap();
    assert_eq!(publish.wait().unwrap().report.unwrap().published(), 1);
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn fetches_do_not_wait_for_publishes_unless_asked_for() {
    let (_folder, path) = region();
    let pool = AsyncPool::attach(&path, 0, &AsyncOptions::new()).unwrap();
    let session = pool.session(options()).unwrap();
    assert_eq!(
        session.publish(vec![block(1)]).unwrap().wait().unwrap().report.unwrap().published(),
        1
    );
    let found = session.lookup(vec![block(1).hash]).unwrap().wait().unwrap().unwrap();
    let (gates, under_way): (Vec<_>, Vec<_>) = (10..14)
        .map(|number| {
            let (open, gate) = mpsc::channel();
            let bytes = Gate(Mutex::new(gate), vec![0; BLOCK_BYTES]);
            let hash = BlockHash::new([number; 32]);
            (open, session.publish(vec![NewBlock { hash, depth: 0, bytes }]).unwrap())
        })
        .unzip();
    for _ in 0..3 {
        let mut fetch = session.fetch(found.blocks().to_vec(), vec![vec![0; BLOCK_BYTES]]).unwrap();
        let fetched = fetch
            .wait_timeout(Duration::from_secs(60))
            .unwrap()
            .expect("no fetch while publishes wait");
        assert_eq!(fetched.report.unwrap().valid_blocks(), 1);
    }
    gates.iter().for_each(|gate| gate.send(()).unwrap());
    for completion in under_way {
        assert_eq!(completion.wait().unwrap().report.unwrap().published(), 1);
    }
}

#[test]
fn what_was_not_begun_can_be_cancelled() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let (gates, under_way): (Vec<_>, Vec<_>) = (0..2)
        .map(|number| {
            let (open, gate) = mpsc::channel();
            let bytes = Gate(Mutex::new(gate), vec![0; BLOCK_BYTES]);
            let hash = BlockHash::new([number; 32]);
            (open, session.publish(vec![NewBlock { hash, depth: 0, bytes }]).unwrap())
        })
        .unzip();
    let waiting = session.publish(vec![block(9)]).unwrap();
    // Both threads are at a gate, or will be: whatever waits behind is not begun.
    assert!(waiting.cancel());
    assert!(!waiting.cancel(), "once");
    for gate in &gates {
        gate.send(()).unwrap();
    }
    for mut completion in under_way {
        assert!(completion.wait_timeout(Duration::from_secs(60)).unwrap().is_some());
    }
    assert_eq!(waiting.wait().unwrap_err(), Lost);
    let found = session.lookup(vec![block(9).hash]).unwrap().wait().unwrap().unwrap();
    assert_eq!(found.blocks().len(), 0);
}

/// Bytes that are not available.
#[derive(Debug)]
struct Trap;

impl Source for Trap {
    fn parts(&self) -> Vec<&[u8]> {
        panic!("on purpose");
    }
}

#[test]
fn work_that_panics_takes_nothing_else_with_it() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    for _ in 0..3 {
        let block = NewBlock { hash: BlockHash::new([1; 32]), depth: 0, bytes: Trap };
        assert_eq!(session.publish(vec![block]).unwrap().wait().unwrap_err(), Lost);
    }
    let published = session.publish(vec![block(2)]).unwrap().wait().unwrap();
    assert_eq!(published.report.unwrap().published(), 1);
}

#[test]
fn what_was_taken_up_is_done_before_the_pool_is_left() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 64);
    let session = pool.session(options()).unwrap();
    let completions: Vec<_> =
        (0..30).map(|number| session.publish(vec![block(number)]).unwrap()).collect();
    pool.close();
    for completion in completions {
        assert_eq!(completion.poll().unwrap().unwrap().report.unwrap().published(), 1);
    }
    assert!(session.publish(vec![block(99)]).unwrap_err().kind == SubmitErrorKind::Closed);
    drop((session, pool));

    let again = attach(&path, 0, 8);
    let hashes: Vec<_> = (0..30).map(|number| block(number).hash).collect();
    let found = again.session(options()).unwrap().lookup(hashes).unwrap().wait().unwrap().unwrap();
    assert_eq!(found.blocks().len(), 30, "they outlive the process's attachment");
}

#[test]
fn sessions_serve_many_threads() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 256);
    let session = pool.session(options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let session = session.clone();
            scope.spawn(move || {
                for number in (0..10).map(|number| thread * 10 + number) {
                    let published = session.publish(vec![block(number)]).unwrap().wait().unwrap();
                    assert_eq!(published.report.unwrap().published(), 1);
                    let found =
                        session.lookup(vec![block(number).hash]).unwrap().wait().unwrap().unwrap();
                    let fetch = session.fetch(found.blocks().to_vec(), vec![vec![0; BLOCK_BYTES]]);
                    let fetched = fetch.unwrap().wait().unwrap();
                    assert_eq!(fetched.report.unwrap().valid_blocks(), 1);
                    assert_eq!(fetched.destinations[0], block(number).bytes.concat());
                }
            });
        }
    });
    assert_eq!(pool.metrics().published_blocks, 40);
    assert_eq!(pool.metrics().fetched_blocks, 40);
}

/// How many times this process has the file at `path` mapped.
pub(super) fn mappings(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())).count()
}

#[test]
fn a_process_that_cannot_attach_has_nothing_mapped() {
    let (_folder, path) = region();
    // Each thread takes a place in the registry of the host, which has room for one such pool.
    let options = AsyncOptions::new().with_copy_threads(64).with_fetch_threads(64);
    let pool = AsyncPool::attach(&path, 0, &options).unwrap();
    let before = mappings(&path);
    assert!(before > 0);
    AsyncPool::attach(&path, 0, &options).unwrap_err();
    assert_eq!(mappings(&path), before, "what is mapped cannot be formatted anew");
    drop(pool);
    assert_eq!(mappings(&path), 0);
}

#[test]
fn a_closed_pool_is_not_mapped_while_sessions_remain() {
    let (_folder, path) = region();
    let is_mapped = || mappings(&path) > 0;
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    assert!(session.publish(vec![block(1)]).unwrap().wait().unwrap().report.is_ok());
    assert!(is_mapped());
    pool.close();
    assert!(!is_mapped(), "what is mapped cannot be formatted anew");
    drop((session, pool));
}
