//! How an [`AsyncPool`] ends where its end is not the usual one.

use std::sync::mpsc;
use std::time::Duration;

use cxl_shm::clock::{Clock as _, SystemClock};

use super::tests::{BLOCK_BYTES, attach, block, mappings, options, region};
use super::*;
use crate::block::NewBlock;
use crate::spawn::refusal;

/// Whether `happens` within a minute.
pub(super) fn soon(happens: impl Fn() -> bool) -> bool {
    let clock = SystemClock::start();
    while !happens() && clock.now_ms() < 60_000 {
        clock.sleep_ms(1);
    }
    happens()
}

/// Bytes that keep the pool they are published to. A thread waits for a word before it reads them.
struct Keeps {
    pool: AsyncPool,
    closes: bool,
    go_on: Mutex<mpsc::Receiver<()>>,
    bytes: Vec<u8>,
}

impl Source for Keeps {
    fn parts(&self) -> Vec<&[u8]> {
        self.go_on.lock().unwrap().recv().unwrap();
        if self.closes {
            self.pool.close();
        }
        vec![&self.bytes]
    }
}

fn publish_of_own_pool(path: &Path, closes: bool) -> (AsyncPool, mpsc::Sender<()>) {
    let pool = attach(path, 0, 8);
    let (say, go_on) = mpsc::channel();
    let go_on = Mutex::new(go_on);
    let bytes = Keeps { pool: pool.clone(), closes, go_on, bytes: vec![7; BLOCK_BYTES] };
    let NewBlock { hash, depth, .. } = block(1);
    let session = pool.session(options()).unwrap();
    // Nobody waits for it: the thread that publishes drops the bytes.
    drop(session.publish(vec![NewBlock { hash, depth, bytes }]).unwrap());
    (pool, say)
}

#[test]
fn a_thread_of_the_pool_may_drop_the_last_handle() {
    let (_folder, path) = region();
    let (pool, say) = publish_of_own_pool(&path, false);
    drop(pool);
    assert!(mappings(&path) > 0);
    say.send(()).unwrap();
    assert!(soon(|| mappings(&path) == 0), "the process never leaves the pool");

    let again = attach(&path, 0, 8);
    let lookup = again.session(options()).unwrap().lookup(vec![block(1).hash]).unwrap();
    assert_eq!(lookup.wait().unwrap().unwrap().blocks().len(), 1, "the publish was carried out");
}

#[test]
fn a_thread_of_the_pool_may_close_it() {
    let (_folder, path) = region();
    let (pool, say) = publish_of_own_pool(&path, true);
    let (closed, is_closed) = mpsc::channel();
    let closes = pool.clone();
    // It waits for the thread that is about to close the pool, too.
    let first = std::thread::spawn(move || {
        closes.close();
        closed.send(()).unwrap();
    });
    assert!(soon(|| pool.check_open().is_err()));
    say.send(()).unwrap();
    is_closed.recv_timeout(Duration::from_secs(60)).expect("the first close never ends");
    first.join().unwrap();
    assert!(soon(|| mappings(&path) == 0));
}

#[test]
fn a_forked_child_leaves_the_queues_of_its_parent_alone() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let mut running = Arc::into_inner(pool.running).unwrap();
    // As if this were a child, forked while a thread of the parent submitted.
    running.process = ProcessMark::default();
    std::mem::forget(running.lanes());
    drop(running);
    // Dropped queues would end the threads, and with them this life of the node.
    SystemClock::start().sleep_ms(500);
    let again = Pool::attach(&path, 0).unwrap();
    let incarnation = again.attachment().member().incarnation();
    assert_eq!(incarnation.0, 1, "the queues of the parent were dropped");
}

#[test]
fn a_process_whose_threads_cannot_be_started_leaves_its_node() {
    for name in [
        "rackline-pages",
        "rackline-upkeep",
        "rackline-copy-1",
        "rackline-layers",
        "rackline-lookup",
    ] {
        let (_folder, path) = region();
        let options = AsyncOptions::new().with_copy_threads(2).with_publishes_by_layers(true);
        let refused = {
            let _refusal = refusal::of(name);
            AsyncPool::attach(&path, 0, &options).unwrap_err()
        };
        assert!(matches!(refused, PoolError::Thread(_)), "{name}: {refused}");
        assert_eq!(mappings(&path), 0, "{name}");
        let pool = Pool::attach(&path, 0).unwrap();
        let incarnation = pool.attachment().member().incarnation();
        assert_eq!(incarnation.0, 2, "{name}: the node was never left");
    }
}
