//! AsyncPool by layers, on a real region in /dev/shm.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kv_cache::{BlockHash, MatchedBlock};

use super::tests::{BLOCK_BYTES, attach, block, options, region};
use super::*;
use crate::block::NewBlock;
use crate::dma::Layers;

/// As long as the pieces of a block.
fn layers() -> Arc<Layers> {
    Arc::new(Layers::new([100, BLOCK_BYTES as u64 - 100]))
}

fn empty() -> Vec<Vec<u8>> {
    vec![vec![0; BLOCK_BYTES / 4]; 4]
}

fn find(session: &AsyncSession, numbers: std::ops::Range<u8>) -> Vec<MatchedBlock> {
    let hashes: Vec<_> = numbers.map(|number| block(number).hash).collect();
    session.lookup(hashes).unwrap().wait().unwrap().unwrap().blocks().to_vec()
}

#[test]
fn what_goes_by_layers_is_what_goes_whole() {
    let (_folder, path) = region();
    let (prefill, decode) = (attach(&path, 0, 8), attach(&path, 1, 8));
    let (from, to) = (prefill.session(options()).unwrap(), decode.session(options()).unwrap());
    let whole = from.publish((0..5).map(block).collect()).unwrap().wait().unwrap();
    assert_eq!(whole.report.unwrap().published(), 5);
    let publish = from.publish_by_layers((0..10).map(block).collect(), layers()).unwrap();
    // In any order.
    publish.layer_ready(1);
    publish.layer_ready(0);
    let published = publish.finish().wait().unwrap();
    let report = published.report.unwrap().unwrap();
    assert_eq!((report.published(), report.available()), (5, 10));
    assert_eq!(published.blocks, (0..10).map(block).collect::<Vec<_>>(), "buffers come back");

    let found = find(&to, 0..10);
    assert_eq!(found.len(), 10);
    let fetch = to.fetch_by_layers(found.clone(), vec![empty(); 10], layers()).unwrap();
    fetch.arrivals.wait(0).unwrap();
    fetch.arrivals.wait(1).unwrap();
    assert_eq!(fetch.arrivals.wait(2), Err(Stopped::Ended), "there are two");
    let fetched = fetch.completion.wait().unwrap();
    assert_eq!(fetched.report.unwrap().valid_blocks(), 10);
    let whole = to.fetch(found, vec![empty(); 10]).unwrap().wait().unwrap();
    assert_eq!(fetched.destinations, whole.destinations);
    for (number, parts) in (0..).zip(&fetched.destinations) {
        assert_eq!(parts.concat(), block(number).bytes.concat());
    }
}

/// A publish of blocks 1 and 2 that waits for its layers.
fn waiting(session: &AsyncSession) -> LayeredPublish<Vec<Vec<u8>>> {
    session.publish_by_layers(vec![block(1), block(2)], layers()).unwrap()
}

#[test]
fn nothing_waits_behind_a_publish_that_waits_for_its_layers() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let (publish, behind) = (waiting(&session), waiting(&session));
    publish.layer_ready(0);
    for number in 10..20 {
        let published = session.publish(vec![block(number)]).unwrap().wait().unwrap();
        assert_eq!(published.report.unwrap().published(), 1);
    }
    let found = find(&session, 10..20);
    let fetch = session.fetch_by_layers(found, vec![empty(); 10], layers()).unwrap();
    fetch.arrivals.wait(1).unwrap();
    assert_eq!(fetch.completion.wait().unwrap().report.unwrap().valid_blocks(), 10);
    assert_eq!(find(&session, 1..3).len(), 0, "not yet");
    publish.layer_ready(1);
    assert!(publish.completion.poll().unwrap().is_none(), "nobody said so");
    assert_eq!(publish.finish().wait().unwrap().report.unwrap().unwrap().published(), 2);
    assert_eq!(behind.finish().wait().unwrap().report.unwrap().unwrap().available(), 2);
    assert_eq!(find(&session, 1..3).len(), 2);
}

#[test]
fn what_is_aborted_or_dropped_is_not_published() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    for ready in 0..=2 {
        let publish = waiting(&session);
        (0..ready).for_each(|layer| publish.layer_ready(layer));
        assert!(!publish.is_aborted());
        let published = publish.abort().wait().unwrap();
        assert_eq!(published.report, Ok(None));
        assert_eq!(published.blocks, [block(1), block(2)]);
        let publish = waiting(&session);
        (0..ready).for_each(|layer| publish.layer_ready(layer));
        drop(publish);
    }
    // Those that were dropped are over when one behind them is.
    assert_eq!(waiting(&session).finish().wait().unwrap().report.unwrap().unwrap().published(), 2);
}

#[test]
fn closing_ends_the_wait_for_layers_that_nobody_will_say_are_ready() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let (publish, behind) = (waiting(&session), waiting(&session));
    let finished = session.publish_by_layers(vec![block(3)], layers()).unwrap().finish();
    publish.layer_ready(0);
    pool.close();
    assert!(publish.is_aborted() && behind.is_aborted());
    for publish in [publish, behind] {
        // Too late.
        assert_eq!(publish.finish().wait().unwrap().report, Ok(None));
    }
    assert_eq!(finished.wait().unwrap().report.unwrap().unwrap().published(), 1);
    let refused = session.publish_by_layers(vec![block(1)], layers()).unwrap_err();
    assert_eq!(refused, SubmitErrorKind::Closed.with(vec![block(1)]));
    drop((session, pool));
    let session = attach(&path, 0, 8).session(options()).unwrap();
    // Each alone: nothing is found behind a gap.
    for (number, blocks) in [(1, 0), (2, 0), (3, 1)] {
        assert_eq!(find(&session, number..number + 1).len(), blocks, "block {number}");
    }
}

#[test]
fn who_did_not_ask_for_publishes_by_layers_gets_the_blocks_back() {
    let (_folder, path) = region();
    let pool = AsyncPool::attach(&path, 0, &AsyncOptions::new()).unwrap();
    let session = pool.session(options()).unwrap();
    let refused = session.publish_by_layers(vec![block(1)], layers()).unwrap_err();
    assert_eq!(refused, SubmitErrorKind::NoLayers.with(vec![block(1)]));
    assert_eq!(refused.given, [block(1)]);
}

#[test]
fn a_forked_child_is_refused_a_publish_before_any_lock() {
    let (_folder, path) = region();
    let mut pool = attach(&path, 0, 8);
    // As if a fork were in between, while another thread publishes.
    let process = std::mem::take(&mut Arc::get_mut(&mut pool.running).unwrap().process);
    let held = pool.running.waiting.0.lock();
    assert_eq!(pool.session(options()).unwrap_err(), OpenError::Forked);
    let session = AsyncSession::new(Arc::clone(&pool.running), options());
    let refused = session.publish_by_layers(vec![block(1)], layers()).unwrap_err();
    assert_eq!(refused, SubmitErrorKind::Forked.with(vec![block(1)]));
    drop((held, session));
    Arc::get_mut(&mut pool.running).unwrap().process = process;
}

/// Memory that says when a thread of the pool comes to it, and makes it wait, or panic.
#[derive(Debug)]
struct Gate(mpsc::Receiver<bool>, Vec<u8>);

impl Destination for Gate {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        assert!(self.0.recv().unwrap(), "on purpose");
        vec![&mut self.1]
    }
}

impl Source for Gate {
    fn parts(&self) -> Vec<&[u8]> {
        vec![&self.1]
    }

    fn layer(&self, _: usize) -> Vec<&[u8]> {
        panic!("on purpose");
    }
}

#[test]
fn a_wait_for_a_layer_ends_when_the_fetch_does() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    assert!(session.publish(vec![block(0)]).unwrap().wait().unwrap().report.is_ok());
    let found = find(&session, 0..1);
    for goes_on in [true, false] {
        let (open, gate) = mpsc::channel();
        let gate = Gate(gate, vec![0; BLOCK_BYTES]);
        let fetch = session.fetch_by_layers(found.clone(), vec![gate], layers()).unwrap();
        assert_eq!(
            fetch.arrivals.wait_timeout(0, Duration::from_millis(1)),
            Ok(false),
            "it waits at the gate"
        );
        let arrivals = fetch.arrivals.clone();
        let waiting = thread::spawn(move || arrivals.wait(1));
        open.send(goes_on).unwrap();
        assert_eq!(waiting.join().unwrap(), if goes_on { Ok(()) } else { Err(Stopped::Ended) });
        assert_eq!(fetch.completion.wait().is_ok(), goes_on);
    }
    // Layers that are not those of the blocks: nothing is fetched.
    let wrong = Arc::new(Layers::new([1]));
    let fetch = session.fetch_by_layers(found.clone(), vec![empty()], wrong).unwrap();
    assert_eq!(fetch.arrivals.wait(0), Err(Stopped::Ended));
    assert!(fetch.completion.wait().unwrap().report.is_err());
    // Revoked before it was begun: all three threads are at a gate, or will be.
    let (gates, under_way): (Vec<_>, Vec<_>) = (0..3)
        .map(|_| {
            let (open, gate) = mpsc::channel();
            let gate = Gate(gate, vec![0; BLOCK_BYTES]);
            (open, session.fetch_by_layers(found.clone(), vec![gate], layers()).unwrap())
        })
        .unzip();
    let behind = session.fetch_by_layers(found, vec![empty()], layers()).unwrap();
    assert!(behind.completion.cancel());
    assert_eq!(behind.arrivals.wait(0), Err(Stopped::Ended));
    gates.iter().for_each(|gate| gate.send(true).unwrap());
    for fetch in under_way {
        assert_eq!(fetch.arrivals.wait(1), Ok(()));
    }
}

#[test]
fn a_publish_by_layers_that_panics_takes_nothing_else_with_it() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let (_open, gate) = mpsc::channel();
    let bytes = Gate(gate, Vec::new());
    let trap = NewBlock { hash: BlockHash::new([1; 32]), depth: 0, bytes };
    let publish = session.publish_by_layers(vec![trap], layers()).unwrap();
    publish.layer_ready(0);
    assert_eq!(publish.finish().wait().unwrap_err(), Lost);
    assert_eq!(waiting(&session).finish().wait().unwrap().report.unwrap().unwrap().published(), 2);
}
