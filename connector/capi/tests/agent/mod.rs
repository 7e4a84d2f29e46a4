//! A stand-in for the agent of a host, without a drive: it announces blocks, and publishes those that
//! are asked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cxl_shm::clock::SystemClock;
use kv_cache::tier::{Announced, AskedRestore, DriveAnnouncer, DriveReplica, RestoreDesk};
use kv_cache::{BlockHash, KeySpace, RestoreOutcome};
use rackline::{Attention, Dtype, KvGeometry, Namespace, NewBlock, Pool, SessionOptions};

/// The length of the blocks of the programs.
const BLOCK_BYTES: usize = 4196;
/// Blocks that it announces. It refuses the last.
const BLOCKS: u32 = 4;

/// The agent of node 0, on a thread.
pub(crate) struct StandIn {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<RestoreOutcome>>,
}

impl StandIn {
    /// Starts it, and returns when a process that attaches now finds its blocks.
    pub(crate) fn start(region: &Path) -> Self {
        let (stop, ready) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (ends, is_ready, region) = (Arc::clone(&stop), Arc::clone(&ready), region.to_owned());
        let thread = std::thread::spawn(move || work(&region, &ends, &is_ready));
        while !ready.load(Ordering::Acquire) {
            assert!(!thread.is_finished(), "it did not start");
            SystemClock::start().sleep_ms(5);
        }
        Self { stop, thread }
    }

    /// Ends it. Returns how it answered, without the refusals.
    pub(crate) fn stop(self) -> Vec<RestoreOutcome> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

fn hash(number: u32) -> BlockHash {
    let mut bytes = [0x5a; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    BlockHash::new(bytes)
}

fn work(region: &PathBuf, stop: &AtomicBool, ready: &AtomicBool) -> Vec<RestoreOutcome> {
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    let model = KvGeometry::new(2, heads, Dtype::F16, 16).unwrap().model("tiny", "1", 1);
    let fingerprint = model.fingerprint();
    let options = SessionOptions::new(model, BLOCK_BYTES as u64);
    let space = KeySpace::new(fingerprint, Namespace::default(), BLOCK_BYTES as u64);
    let namespace = options.namespace().tag();
    let pool = Pool::attach(region, 0).unwrap();
    let (cache, clock) = (pool.cache(), SystemClock::start());
    let session = pool.session(options).unwrap();
    let claim = cache.claim_drives().unwrap();
    let mut announcer = DriveAnnouncer::begin(&claim, &cache).unwrap();
    let mut replica = DriveReplica::begin(&claim, &cache);
    let mut desk = RestoreDesk::begin(&claim);
    let announced = |number| {
        let key = space.key(&hash(number));
        let depth = u16::try_from(number).unwrap();
        Announced { key, bytes: u32::try_from(BLOCK_BYTES).unwrap(), depth, namespace }
    };
    let blocks: Vec<_> = (0..BLOCKS).map(announced).collect();
    assert_eq!(announcer.announce(&cache, &blocks).unwrap(), blocks.len());
    let mut restored = Vec::new();
    let (started_ms, ready_ms) = (clock.now_us() / 1000, 1_000);
    while !stop.load(Ordering::Acquire) {
        replica.sync(&cache, &clock).unwrap();
        for asked in desk.next(&cache).unwrap() {
            let outcome = answer(&session, &blocks, &asked);
            restored.extend((outcome == RestoreOutcome::Restored).then_some(outcome));
            desk.answer(&cache, &[(asked, outcome)]).unwrap();
        }
        // By then this host has seen its beat move.
        if clock.now_us() / 1000 >= started_ms + ready_ms {
            ready.store(true, Ordering::Release);
        }
        clock.sleep_ms(2);
    }
    replica.stop(&cache);
    restored
}

fn answer(
    session: &rackline::Session<'_>,
    blocks: &[Announced],
    asked: &AskedRestore,
) -> RestoreOutcome {
    let wanted = asked.request.unwrap().key;
    let number = blocks.iter().position(|block| block.key == wanted);
    let number = u32::try_from(number.expect("a block that was announced")).unwrap();
    if number + 1 == BLOCKS {
        return RestoreOutcome::TooLate;
    }
    let bytes = [u8::try_from(number + 1).unwrap(); BLOCK_BYTES];
    let block = NewBlock { hash: hash(number), depth: number, bytes: [&bytes[..]] };
    assert_eq!(session.publish(&[block]).unwrap().published(), 1);
    RestoreOutcome::Restored
}
