//! The queues, step by step, with requests that do nothing but say so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::closing_tests::soon;
use super::request::{InPieces, Piece, Request};
use super::tests::{BLOCK_BYTES, attach, block, mappings, options, region};
use super::turns::{Lane, Serves, Turns};
use super::*;
use crate::block::NewBlock;
use crate::session::PublishOutcome;

/// Which pieces were done, in order: of which request, and its number.
type Told = Arc<Mutex<Vec<(char, usize)>>>;

/// A request of so many pieces, and its result: their numbers.
fn request(
    name: char,
    pieces: usize,
    told: &Told,
) -> (Arc<dyn Request>, oneshot::Receiver<Vec<usize>>) {
    let (tell, result) = oneshot::channel();
    let told = Arc::clone(told);
    let given: VecDeque<_> = (0..pieces).collect();
    let work = move |_: &desk::Desk<'_>, number, given: usize| {
        assert_eq!(number, given, "in order");
        told.lock().unwrap().push((name, number));
        number
    };
    (Arc::new(InPieces::new(given, work, |results| results, tell)), result)
}

/// Runs pieces at a desk of a real pool: they are given one.
struct Bench {
    pool: Pool,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let (folder, path) = region();
        Self { pool: Pool::attach(&path, 0).unwrap(), _folder: folder }
    }

    fn run(&self, piece: Piece) {
        let (dma, clock) = (self.pool.dma(), self.pool.clock());
        let prefetches = self.pool.prefetches();
        desk::Desk { cache: &self.pool.cache(), dma, clock, prefetches }.work_on(piece);
    }
}

fn names(told: &Told) -> String {
    told.lock().unwrap().iter().map(|(name, _)| *name).collect()
}

#[test]
fn requests_take_turns_and_fetches_go_first() {
    let (bench, turns, told) = (Bench::new(), Turns::new(8), Told::default());
    let (long, long_result) = request('l', 4, &told);
    let (short, short_result) = request('s', 1, &told);
    let (other, _other_result) = request('o', 2, &told);
    let (publish, _publish_result) = request('p', 1, &told);
    turns.submit(Lane::Publish, publish).unwrap();
    for fetch in [long, short, other] {
        turns.submit(Lane::Fetch, fetch).unwrap();
    }
    turns.end();
    bench.run(turns.next(Serves::FetchesOnly).unwrap());
    while let Some(piece) = turns.next(Serves::Copies) {
        bench.run(piece);
    }
    assert_eq!(names(&told), "lsolollp");
    assert_eq!(long_result.try_recv().unwrap(), [0, 1, 2, 3]);
    assert_eq!(short_result.try_recv().unwrap(), [0]);
}

#[test]
fn a_queue_has_room_again_when_others_took_what_was_in_it() {
    let (bench, turns, told) = (Bench::new(), Turns::new(2), Told::default());
    let (first, _first_result) = request('a', 1, &told);
    let (second, second_result) = request('b', 2, &told);
    turns.submit(Lane::Fetch, Arc::clone(&first)).unwrap();
    turns.submit(Lane::Fetch, Arc::clone(&second)).unwrap();
    let refused = turns.submit(Lane::Fetch, request('c', 1, &told).0);
    assert_eq!(refused, Err(SubmitErrorKind::Busy));
    turns.submit(Lane::Publish, request('d', 1, &told).0).unwrap();
    // A waiting thread takes all of the first.
    bench.run(Arc::clone(&first).take().unwrap().piece);
    turns.submit(Lane::Fetch, request('c', 1, &told).0).unwrap();
    assert!(!first.revoke(), "it was begun");
    // One piece left of the second is one request in the queue.
    bench.run(Arc::clone(&second).take().unwrap().piece);
    assert_eq!(turns.submit(Lane::Fetch, request('e', 1, &told).0), Err(SubmitErrorKind::Busy));
    turns.end();
    assert_eq!(turns.submit(Lane::Fetch, request('f', 1, &told).0), Err(SubmitErrorKind::Closed));
    while let Some(piece) = turns.next(Serves::Copies) {
        bench.run(piece);
    }
    assert_eq!(names(&told), "abbcd");
    assert_eq!(second_result.try_recv().unwrap(), [0, 1]);
}

#[test]
fn a_revoked_request_is_never_begun_and_a_begun_one_goes_on() {
    let (bench, told) = (Bench::new(), Told::default());
    let (revoked, result) = request('r', 2, &told);
    assert!(revoked.revoke() && !revoked.revoke());
    assert!(revoked.take().is_none());
    assert!(result.try_recv().is_err());
    let (begun, result) = request('b', 2, &told);
    let first = Arc::clone(&begun).take().unwrap();
    assert!(first.more && !begun.revoke());
    let second = Arc::clone(&begun).take().unwrap();
    assert!(!second.more && begun.is_taken_up());
    // The other way round: the results are in the order of the pieces.
    bench.run(second.piece);
    assert!(result.try_recv().is_err(), "one is under way (ASYNC-P2)");
    bench.run(first.piece);
    assert_eq!(result.try_recv().unwrap(), [0, 1]);
}

#[test]
fn a_piece_that_panics_ends_the_request_when_no_other_is_under_way() {
    let bench = Bench::new();
    let (tell, result) = oneshot::channel::<()>();
    let work = |_: &desk::Desk<'_>, number: usize, (): ()| assert!(number > 0, "on purpose");
    let request: Arc<dyn Request> =
        Arc::new(InPieces::new(VecDeque::from([(); 3]), work, |_| (), tell));
    let first = Arc::clone(&request).take().unwrap();
    let second = Arc::clone(&request).take().unwrap();
    bench.run(first.piece);
    assert!(request.is_taken_up(), "what was not begun is dropped");
    assert_eq!(result.try_recv(), Err(oneshot::TryRecvError::Empty), "ASYNC-P2");
    bench.run(second.piece);
    assert_eq!(result.try_recv(), Err(oneshot::TryRecvError::Disconnected));
}

/// ASYNC-Q3: whichever thread is woken, no piece lies while another thread sleeps.
#[test]
fn every_idle_thread_gets_a_piece() {
    let turns = Arc::new(Turns::new(8));
    let at_once = 3;
    let (entered, enters) = mpsc::channel();
    let gate = Arc::new(std::sync::Barrier::new(at_once + 1));
    let bench = Bench::new();
    thread::scope(|scope| {
        for serves in [Serves::Copies, Serves::FetchesOnly, Serves::Copies] {
            let (turns, entered, gate) = (Arc::clone(&turns), entered.clone(), Arc::clone(&gate));
            scope.spawn(move || {
                while let Some(piece) = turns.next(serves) {
                    entered.send(()).unwrap();
                    gate.wait();
                    drop(piece);
                }
            });
        }
        for rounds in 0..20 {
            let told = Told::default();
            // One request of three pieces, and three of one.
            let pieces = if rounds % 2 == 0 { vec![3] } else { vec![1; 3] };
            for count in pieces {
                turns.submit(Lane::Fetch, request('x', count, &told).0).unwrap();
            }
            for _ in 0..at_once {
                enters.recv_timeout(Duration::from_secs(30)).expect("a thread sleeps");
            }
            gate.wait();
        }
        turns.end();
    });
    drop(bench);
}

/// Bytes whose thread says that it is there, and waits for a word before it reads them. It may close the
/// pool then.
struct Gate {
    there: mpsc::Sender<()>,
    open: Mutex<mpsc::Receiver<()>>,
    closes: Option<AsyncPool>,
}

impl Source for Gate {
    fn parts(&self) -> Vec<&[u8]> {
        let _ = self.there.send(());
        let _ = self.open.lock().unwrap().recv();
        if let Some(pool) = &self.closes {
            pool.close();
        }
        vec![&[7; BLOCK_BYTES]]
    }
}

fn gated(
    number: u8,
    closes: Option<AsyncPool>,
) -> (NewBlock<Gate>, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((there, is_there), (open, opened)) = (mpsc::channel(), mpsc::channel());
    let bytes = Gate { there, open: Mutex::new(opened), closes };
    (NewBlock { hash: block(number).hash, depth: 0, bytes }, is_there, open)
}

/// A pool whose only thread that copies is at a gate until the sender says a word.
fn busy(path: &Path) -> (AsyncPool, AsyncSession, mpsc::Sender<()>, Completion<Published<Gate>>) {
    let threads = AsyncOptions::new().with_copy_threads(1).with_fetch_threads(0);
    let pool = AsyncPool::attach(path, 0, &threads).unwrap();
    let session = pool.session(options()).unwrap();
    let (gate, is_there, open) = gated(200, None);
    let publish = session.publish(vec![gate]).unwrap();
    is_there.recv_timeout(Duration::from_secs(60)).unwrap();
    (pool, session, open, publish)
}

#[test]
fn the_thread_that_waits_does_what_nobody_has_begun() {
    let (_folder, path) = region();
    let (pool, session, open, blocked) = busy(&path);
    let published = session.publish((0..20).map(block).collect()).unwrap().wait().unwrap();
    assert_eq!(published.report.unwrap().published(), 20);
    assert_eq!(published.blocks, (0..20).map(block).collect::<Vec<_>>());
    let hashes: Vec<_> = (0..20).map(|number| block(number).hash).collect();
    let found = session.lookup(hashes).unwrap().wait().unwrap().unwrap().into_blocks();
    let mut fetch = session.fetch(found, vec![vec![0; BLOCK_BYTES]; 20]).unwrap();
    // A thread that waits for so long at most leaves the work to the pool's, which is busy.
    assert!(fetch.wait_timeout(Duration::from_millis(1)).unwrap().is_none());
    assert!(fetch.share().work(), "one piece");
    assert!(!fetch.cancel(), "it was begun");
    assert!(fetch.poll().unwrap().is_none());
    let fetched = fetch.wait().unwrap();
    assert_eq!(fetched.report.unwrap().valid_blocks(), 20);
    for (number, bytes) in (0..).zip(&fetched.destinations) {
        assert_eq!(*bytes, block(number).bytes.concat());
    }
    open.send(()).unwrap();
    assert!(blocked.wait().unwrap().report.is_ok());
    pool.close();
}

#[test]
fn a_waiting_thread_may_close_the_pool_that_it_works_for() {
    let (_folder, path) = region();
    let (pool, session, open, blocked) = busy(&path);
    let (closer, _is_there, word) = gated(201, Some(pool.clone()));
    word.send(()).unwrap();
    let publish = session.publish(vec![closer]).unwrap();
    // The call that closes returns at once: this thread works, and cannot wait for its own end.
    assert_eq!(publish.wait().unwrap().report.unwrap().published(), 1);
    assert_eq!(pool.check_open(), Err(OpenError::Closed));
    open.send(()).unwrap();
    assert!(blocked.wait().unwrap().report.is_ok());
    assert!(soon(|| mappings(&path) == 0), "the process never leaves the pool");
    let (tell, receiver) = oneshot::channel();
    let work = |_: &desk::Desk<'_>, _: usize, (): ()| ();
    let late = Arc::new(InPieces::new(VecDeque::from([()]), work, |_| (), tell));
    let late: Completion<()> =
        Completion::new(receiver, late, Some(Arc::clone(&pool.running.guest)));
    assert!(!late.share().work(), "the desk is gone with the pool");
}

/// Several pieces of one request, at both desks: a prefix ends where its first block is missing.
#[test]
fn what_comes_of_pieces_is_what_came_of_the_whole() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let mut wrong: Vec<_> = (0..12).map(block).collect();
    wrong[9].bytes = vec![vec![1]];
    let refused = session.publish(wrong).unwrap().wait().unwrap();
    assert!(refused.report.unwrap_err().to_string().contains("parts of block 9"));
    let outcomes = session.publish((0..20).map(block).collect()).unwrap().wait().unwrap();
    let outcomes = outcomes.report.unwrap().outcomes().to_vec();
    assert_eq!(outcomes, vec![PublishOutcome::Published; 20], "nothing of the refused one");
    let hashes: Vec<_> = (0..20).map(|number| block(number).hash).collect();
    let found = session.lookup(hashes).unwrap().wait().unwrap().unwrap().into_blocks();
    for ends_at in [0, 3, 4, 11, 19] {
        let mut blocks = found.clone();
        // Another slot: not the block.
        blocks[ends_at].handle = found[(ends_at + 1) % 20].handle;
        let fetched = session.fetch(blocks, vec![vec![0; BLOCK_BYTES]; 20]).unwrap();
        let fetched = fetched.wait().unwrap();
        let report = fetched.report.unwrap();
        assert_eq!((report.valid_blocks(), report.stop().is_some()), (ends_at, true));
        assert_eq!(fetched.destinations.len(), 20, "buffers come back");
        for (number, bytes) in (0..).zip(&fetched.destinations[..ends_at]) {
            assert_eq!(*bytes, block(number).bytes.concat());
        }
    }
    // Whichever of the two is longer, and wherever the pieces end: a piece has four blocks.
    for (blocks, buffers) in [(20, 19), (20, 4), (5, 4), (4, 5), (1, 0), (0, 1), (20, 21)] {
        let to = vec![vec![0; BLOCK_BYTES]; buffers];
        let uneven = session.fetch(found[..blocks].to_vec(), to).unwrap().wait().unwrap();
        let refused = uneven.report.expect_err("it is not fetched in part").to_string();
        let says = format!("{blocks} blocks are to be fetched into {buffers}");
        assert!(refused.contains(&says), "{refused}");
        assert_eq!(uneven.destinations.len(), buffers, "buffers come back");
    }
}

/// Bytes of a block, or a destination, that panics when a thread asks for its parts.
struct Panics(bool, Vec<u8>);

impl Source for Panics {
    fn parts(&self) -> Vec<&[u8]> {
        assert!(!self.0, "on purpose");
        vec![&self.1]
    }

    fn block_bytes(&self) -> u64 {
        self.1.len() as u64
    }
}

impl Destination for Panics {
    fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        assert!(!self.0, "on purpose");
        vec![&mut self.1]
    }

    fn block_bytes(&mut self) -> u64 {
        self.1.len() as u64
    }
}

/// A panic in the middle of one request costs that request, and nothing of those around it.
#[test]
fn a_panic_in_one_piece_costs_its_request_alone() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let panics = |number: u8| {
        let bytes = Panics(number == 9, vec![number; BLOCK_BYTES]);
        NewBlock { hash: block(number).hash, depth: u32::from(number), bytes }
    };
    assert!(session.publish((0..20).map(panics).collect()).unwrap().wait().is_err());
    let published = session.publish((0..20).map(block).collect()).unwrap().wait().unwrap();
    assert_eq!(published.report.unwrap().available(), 20, "no block is being written for ever");
    let hashes: Vec<_> = (0..20).map(|number| block(number).hash).collect();
    let found = session.lookup(hashes).unwrap().wait().unwrap().unwrap().into_blocks();
    let to = (0..20).map(|number| Panics(number == 13, vec![0; BLOCK_BYTES])).collect();
    assert!(session.fetch(found.clone(), to).unwrap().wait().is_err());
    let fetched = session.fetch(found, vec![vec![0; BLOCK_BYTES]; 20]).unwrap().wait().unwrap();
    assert_eq!(fetched.report.unwrap().valid_blocks(), 20);
    pool.close();
    assert_eq!(mappings(&path), 0, "a thread or the desk was lost");
}

#[test]
fn nothing_is_a_request_too() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    let published = session.publish(Vec::<NewBlock<Vec<Vec<u8>>>>::new()).unwrap().wait().unwrap();
    assert!(published.report.unwrap().outcomes().is_empty());
    let fetched = session.fetch(Vec::new(), Vec::<Vec<u8>>::new()).unwrap().wait().unwrap();
    assert_eq!(fetched.report.unwrap().valid_blocks(), 0);
    let found = session.lookup(Vec::new()).unwrap().wait().unwrap().unwrap();
    assert!(found.blocks().is_empty());
}

/// Requests of 65,536 blocks of 64 KiB are 512 pieces each: what comes behind them waits for one of each.
#[test]
fn a_short_request_waits_for_one_piece_of_each_long_one() {
    let (bench, turns, told) = (Bench::new(), Turns::new(8), Told::default());
    let long: Vec<_> = ['a', 'b', 'c'].map(|name| request(name, 512, &told)).into();
    for (long, _) in &long {
        turns.submit(Lane::Fetch, Arc::clone(long)).unwrap();
    }
    for _ in 0..300 {
        bench.run(turns.next(Serves::FetchesOnly).unwrap());
    }
    let (short, result) = request('s', 1, &told);
    turns.submit(Lane::Fetch, short).unwrap();
    for _ in 0..4 {
        bench.run(turns.next(Serves::Copies).unwrap());
    }
    assert_eq!(result.try_recv().unwrap(), [0]);
    assert!(!long[0].0.revoke(), "begun, so it goes on");
    turns.end();
    while let Some(piece) = turns.next(Serves::Copies) {
        bench.run(piece);
    }
    for (_, result) in long {
        assert_eq!(result.try_recv().unwrap(), (0..512).collect::<Vec<_>>());
    }
}
