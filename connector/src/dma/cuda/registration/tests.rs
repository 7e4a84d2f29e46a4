//! Registrations, with a stand-in for the driver that knows which copies are under way.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const PIECE: u64 = 2 << 20;

/// A driver that notes what would hurt a caller of the real one.
#[derive(Debug, Default)]
struct StandIn {
    state: Mutex<State>,
    /// Pieces whose registration waits until the test says so.
    gate: Mutex<Option<Gate>>,
}

#[derive(Debug)]
struct Gate {
    piece: Extent,
    /// Tries that do not wait, before the one that does.
    passes: u32,
    reached: Sender<()>,
    opened: Receiver<()>,
}

impl Gate {
    /// Whether this try to register `piece` is the one that waits.
    fn is_at(&mut self, piece: Extent) -> bool {
        let is_at = self.piece == piece && self.passes == 0;
        self.passes = self.passes.saturating_sub(u32::from(self.piece == piece));
        is_at
    }
}

#[derive(Debug, Default)]
struct State {
    /// Offset and length of each piece.
    registered: BTreeMap<u64, u64>,
    /// Copies under way, by pieces.
    under_way: BTreeMap<u64, u32>,
    /// Most pieces at once.
    most: usize,
    registrations: u32,
    /// Threads that registered.
    threads: BTreeSet<String>,
    /// Bytes that it registers at most; `None`: all.
    room_bytes: Option<u64>,
    refuses_to_unregister: bool,
    panics: bool,
    mistakes: Vec<String>,
}

impl Registrar for Arc<StandIn> {
    fn register(&self, piece: Extent) -> Result<(), String> {
        let gate = lock(&self.gate).take_if(|gate| gate.is_at(piece));
        if let Some(gate) = gate {
            gate.reached.send(()).unwrap();
            gate.opened.recv().unwrap();
        }
        let mut state = lock(&self.state);
        state.threads.insert(format!("{:?}", std::thread::current().id()));
        assert!(!state.panics, "a registration that panics");
        let bytes = state.registered.values().sum::<u64>() + piece.bytes();
        if state.room_bytes.is_some_and(|room| bytes > room) {
            return Err("no room".into());
        }
        if state.registered.insert(piece.offset(), piece.bytes()).is_some() {
            state.mistakes.push(format!("registered twice: {piece:?}"));
        }
        state.registrations += 1;
        state.most = state.most.max(state.registered.len());
        Ok(())
    }

    fn unregister(&self, piece: Extent) -> Result<(), String> {
        let mut state = lock(&self.state);
        assert!(!state.panics, "the end of a registration that panics");
        if state.refuses_to_unregister {
            return Err("still there".into());
        }
        if state.under_way.get(&piece.offset()).is_some_and(|copies| *copies > 0) {
            state.mistakes.push(format!("unregistered under a copy: {piece:?}"));
        }
        if state.registered.remove(&piece.offset()).is_none() {
            state.mistakes.push(format!("unregistered, and was not registered: {piece:?}"));
        }
        Ok(())
    }
}

impl StandIn {
    fn begin_copy(&self, piece: u64) {
        let mut state = lock(&self.state);
        if !state.registered.contains_key(&(piece * PIECE)) {
            state.mistakes.push(format!("a copy of piece {piece}, which is not registered"));
        }
        *state.under_way.entry(piece * PIECE).or_default() += 1;
    }

    fn end_copy(&self, piece: u64) {
        *lock(&self.state).under_way.get_mut(&(piece * PIECE)).unwrap() -= 1;
    }

    fn mistakes(&self) -> Vec<String> {
        lock(&self.state).mistakes.clone()
    }

    fn registered(&self) -> Vec<u64> {
        lock(&self.state).registered.keys().map(|offset| offset / PIECE).collect()
    }
}

/// A pool of so many pieces, of which so many are registered at once.
fn pool(pieces: u64, limit: u64) -> (Arc<StandIn>, Arc<Registrations<Arc<StandIn>>>) {
    let driver = Arc::new(StandIn::default());
    let pieces = Pieces::new(pieces * PIECE, PIECE);
    let pool = Registrations::new(Arc::clone(&driver), pieces, limit * PIECE);
    (driver, Arc::new(pool))
}

fn extents(pieces: &[u64]) -> impl Iterator<Item = Extent> {
    pieces.iter().map(|piece| Extent::new(piece * PIECE + 64, 4096).unwrap())
}

/// Has the registration of `piece` wait, after so many tries of it: the driver says when it does, and
/// is told to continue.
fn wait_at(driver: &StandIn, piece: Extent, passes: u32) -> (Receiver<()>, Sender<()>) {
    let (reached, is_reached) = channel();
    let (open, opened) = channel();
    *lock(&driver.gate) = Some(Gate { piece, passes, reached, opened });
    (is_reached, open)
}

/// Copies to a piece of each call, as its pins say that it may.
fn copy(driver: &StandIn, pool: &Arc<Registrations<Arc<StandIn>>>, pieces: &[u64]) {
    let pins = pool.pin(extents(pieces)).unwrap();
    pieces.iter().for_each(|piece| driver.begin_copy(*piece));
    pieces.iter().for_each(|piece| driver.end_copy(*piece));
    drop(pins);
}

#[test]
fn copies_of_threads_reach_registered_pieces_within_the_limit() {
    let (driver, pool) = pool(16, 4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (driver, pool) = (&driver, &pool);
            scope.spawn(move || {
                for round in 0..200 {
                    let first = (thread * 5 + round * 7) % 16;
                    copy(driver, pool, &[first, (first + round) % 16]);
                }
            });
        }
    });
    assert_eq!(driver.mistakes(), [""; 0]);
    assert!(driver.registered().len() <= 4, "{:?}", driver.registered());
    let state = lock(&driver.state);
    assert!(state.most <= 8, "no more than the limit and what calls under way need");
    let figures = *lock(pool.figures());
    assert_eq!(figures.registrations, u64::from(state.registrations));
    assert_eq!(figures.registered_bytes, state.registered.len() as u64 * PIECE);
    assert!(figures.unregistrations > 0 && figures.refused == 0);
}

#[test]
fn a_pin_that_ends_before_its_copy_is_noticed() {
    // The control of the test above: a caller that does not keep CUDA-R1.
    let (driver, pool) = pool(4, 1);
    let pins = pool.pin(extents(&[0])).unwrap();
    driver.begin_copy(0);
    drop(pins);
    copy(&driver, &pool, &[1]);
    driver.end_copy(0);
    let mistakes = driver.mistakes();
    assert!(matches!(&mistakes[..], [one] if one.contains("under a copy")), "{mistakes:?}");
}

#[test]
fn what_nobody_could_wait_for_stays_registered() {
    let (driver, pool) = pool(4, 1);
    let pins = Arc::new(pool.pin(extents(&[0])).unwrap());
    driver.begin_copy(0);
    std::mem::forget(Arc::clone(&pins));
    drop(pins);
    copy(&driver, &pool, &[1, 2]);
    assert_eq!((driver.registered(), driver.mistakes()), (vec![0], vec![]));
    drop(pool);
    assert_eq!((driver.registered(), driver.mistakes()), (vec![0], vec![]));
}

#[test]
fn a_call_above_the_limit_gets_all_it_needs_and_is_counted() {
    let (driver, pool) = pool(8, 2);
    copy(&driver, &pool, &[0]);
    copy(&driver, &pool, &[1, 2, 3, 4, 5]);
    assert_eq!(driver.mistakes(), [""; 0]);
    assert_eq!(driver.registered(), [4, 5], "what is above the limit went with the pins");
    let figures = *lock(pool.figures());
    assert_eq!((figures.registrations, figures.unregistrations), (6, 4));
    assert_eq!(figures.over_limit, 3);
}

#[test]
fn no_piece_goes_for_others_that_the_same_call_needs() {
    let (driver, pool) = pool(4, 2);
    for pieces in [&[1][..], &[2], &[0, 1]] {
        copy(&driver, &pool, pieces);
    }
    assert_eq!((driver.registered(), driver.mistakes()), (vec![0, 1], vec![]));
    assert_eq!(lock(&driver.state).registrations, 3, "piece 1 stayed");
}

#[test]
fn a_piece_is_registered_once_for_all_that_wait_for_it_and_no_others_wait() {
    let (driver, pool) = pool(4, 4);
    let (is_reached, open) = wait_at(&driver, pool.pieces.extent(0), 0);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| copy(&driver, &pool, &[0, 2]));
        is_reached.recv().unwrap();
        let second = scope.spawn(|| copy(&driver, &pool, &[0]));
        // While the driver works on piece 0.
        copy(&driver, &pool, &[1]);
        assert_eq!(driver.registered(), [1]);
        open.send(()).unwrap();
        first.join().unwrap();
        second.join().unwrap();
    });
    assert_eq!((driver.registered(), driver.mistakes()), (vec![0, 1, 2], vec![]));
    assert_eq!(lock(&driver.state).registrations, 3);
}

#[test]
fn what_the_driver_refuses_is_tried_again_in_the_room_of_an_idle_piece() {
    let (driver, pool) = pool(8, 8);
    lock(&driver.state).room_bytes = Some(2 * PIECE);
    for piece in [0, 1, 2, 3, 0] {
        copy(&driver, &pool, &[piece]);
    }
    assert_eq!((driver.registered(), driver.mistakes()), (vec![0, 3], vec![]));
    assert_eq!(lock(pool.figures()).refused, 0);
}

#[test]
fn what_the_driver_refuses_with_all_pieces_in_use_is_refused_and_counted() {
    let (driver, pool) = pool(8, 8);
    lock(&driver.state).room_bytes = Some(2 * PIECE);
    let pins = pool.pin(extents(&[0, 1])).unwrap();
    let refused = pool.pin(extents(&[0, 2])).unwrap_err();
    assert_eq!(refused, "no room");
    let figures = *lock(pool.figures());
    assert_eq!((figures.refused, figures.registered_bytes), (1, 2 * PIECE));
    drop(pins);
    // What the call that was refused had pinned is idle as well.
    copy(&driver, &pool, &[3, 4]);
    assert_eq!((driver.registered(), driver.mistakes()), (vec![3, 4], vec![]));
    let again: Vec<bool> = (0..3).map(|_| pool.pin(extents(&[2])).is_ok()).collect();
    assert_eq!(again, [false, false, true], "asked for again after a while");
}

#[test]
fn room_that_another_call_took_is_made_again() {
    let (driver, pool) = pool(8, 8);
    lock(&driver.state).room_bytes = Some(2 * PIECE);
    copy(&driver, &pool, &[0]);
    copy(&driver, &pool, &[1]);
    let (is_reached, open) = wait_at(&driver, pool.pieces.extent(5), 1);
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| pool.pin(extents(&[5])).map(drop));
        // The driver has refused piece 5, and piece 0 is unregistered for it.
        is_reached.recv().unwrap();
        copy(&driver, &pool, &[6]);
        open.send(()).unwrap();
        assert_eq!(refused.join().unwrap(), Err("no room".into()));
    });
    copy(&driver, &pool, &[7]);
    assert_eq!((driver.registered(), driver.mistakes()), (vec![6, 7], vec![]));
}

#[test]
fn room_that_was_too_small_is_made_again() {
    let driver = Arc::new(StandIn::default());
    let short = PIECE / 2;
    let pieces = Pieces::new(4 * PIECE + short, PIECE);
    let pool = Arc::new(Registrations::new(Arc::clone(&driver), pieces, u64::MAX));
    lock(&driver.state).room_bytes = Some(2 * PIECE + short);
    let pins = pool.pin(extents(&[0, 1])).unwrap();
    copy(&driver, &pool, &[4]);
    assert_eq!(pool.pin(extents(&[2])).map(drop), Err("no room".into()), "4 is not as long");
    drop(pins);
    copy(&driver, &pool, &[3]);
    assert_eq!((driver.registered(), driver.mistakes()), (vec![1, 3], vec![]));
}

#[test]
fn pieces_find_room_again_where_the_driver_has_less_than_before() {
    let (driver, pool) = pool(32, 32);
    lock(&driver.state).room_bytes = Some(3 * PIECE);
    (0..3).for_each(|piece| copy(&driver, &pool, &[piece]));
    // Another process takes as much as two pieces.
    lock(&driver.state).room_bytes = Some(PIECE);
    let served = (3..32).filter(|piece| pool.pin(extents(&[*piece])).is_ok());
    // Pieces 3, 6 and 11 got the room of one each; those between got none.
    assert_eq!(served.collect::<Vec<_>>(), (11..32).collect::<Vec<_>>());
    assert_eq!((driver.registered(), driver.mistakes()), (vec![31], vec![]));
}

#[test]
fn what_cannot_be_unregistered_stays_and_is_used() {
    let (driver, pool) = pool(4, 1);
    copy(&driver, &pool, &[0]);
    lock(&driver.state).refuses_to_unregister = true;
    copy(&driver, &pool, &[1]);
    copy(&driver, &pool, &[0, 1]);
    assert_eq!((driver.registered(), driver.mistakes()), (vec![0, 1], vec![]));
    let figures = *lock(pool.figures());
    assert_eq!((figures.registered_bytes, figures.unregistrations), (2 * PIECE, 0));
    assert_eq!(lock(&driver.state).registrations, 2);
}

#[test]
fn nobody_waits_for_a_call_of_the_driver_that_panicked() {
    let (driver, pool) = pool(4, 1);
    copy(&driver, &pool, &[0]);
    lock(&driver.state).panics = true;
    let panicked = catch_unwind(AssertUnwindSafe(|| pool.pin(extents(&[1])).is_err()));
    lock(&driver.state).panics = false;
    // What is being changed would be waited for.
    let wishes = [0, 1].map(|piece| lock(&pool.table).pin(piece));
    assert_eq!(wishes, [Wish::Pinned, Wish::Refused("the call panicked".into())]);
    assert!(panicked.unwrap(), "a refusal for who asked");
    let figures = *lock(pool.figures());
    assert_eq!((figures.refused, figures.registered_bytes), (1, PIECE));
}

#[test]
fn nothing_is_registered_when_the_pool_has_ended() {
    let (driver, pool) = pool(4, 4);
    copy(&driver, &pool, &[0, 1, 3]);
    let figures = Arc::clone(pool.figures());
    drop(pool);
    assert_eq!((driver.registered(), driver.mistakes()), (vec![], vec![]));
    let figures = *lock(&figures);
    assert_eq!((figures.registered_bytes, figures.unregistrations), (0, 3));
}

#[test]
fn a_copy_of_a_piece_without_a_pin_is_refused() {
    let (_driver, pool) = pool(4, 4);
    let pins = pool.pin(extents(&[1])).unwrap();
    let piece = usize::try_from(PIECE).unwrap();
    let runs = pins.runs(PIECE, piece).collect::<Vec<_>>();
    assert_eq!(runs, [(PIECE, piece)]);
    let beyond = || pins.runs(PIECE, piece + 1).count();
    let refused = catch_unwind(AssertUnwindSafe(beyond));
    assert!(refused.is_err(), "piece 2 is not pinned");
}

#[test]
fn a_pool_is_registered_ahead_as_far_as_the_limit_allows() {
    for (limit, expected) in [(3, vec![0, 1, 2]), (9, vec![0, 1, 2, 3, 4])] {
        let (driver, pool) = pool(5, limit);
        let seen = Mutex::new(Vec::new());
        pool.register_ahead(threads(3), |done| lock(&seen).push(done)).unwrap();
        assert_eq!((driver.registered(), driver.mistakes()), (expected.clone(), vec![]));
        assert_eq!(*lock(&seen), (1..=expected.len() as u64).collect::<Vec<_>>());
        assert_eq!(lock(pool.figures()).unregistrations, 0);
    }
}

#[test]
fn what_is_refused_ahead_ends_it_with_the_reason() {
    let (driver, pool) = pool(8, 8);
    lock(&driver.state).room_bytes = Some(0);
    let seen = Mutex::new(Vec::new());
    let refused = pool.register_ahead(threads(2), |done| lock(&seen).push(done));
    assert_eq!(refused, Err("no room".into()));
    assert!(lock(&seen).is_empty());
    assert!(lock(pool.figures()).refused <= 2, "one a thread");
}

#[test]
fn registering_ahead_ends_when_the_driver_has_no_room_for_more() {
    let (driver, pool) = pool(8, 8);
    lock(&driver.state).room_bytes = Some(3 * PIECE);
    let refused = pool.register_ahead(threads(1), |_| ());
    assert_eq!(refused, Err("it has no room for more".into()));
    assert_eq!((driver.registered(), driver.mistakes()), (vec![1, 2, 3], vec![]));
}

fn threads(count: usize) -> AheadThreads<'static> {
    AheadThreads { count, ..AheadThreads::anywhere() }
}

#[test]
fn threads_that_register_ahead_are_bound_and_their_caller_is_not() {
    use std::thread::current;
    let (driver, pool) = pool(4, 4);
    let begun = Mutex::new(BTreeSet::new());
    let begin = || {
        lock(&begun).insert(format!("{:?}", current().id()));
    };
    pool.register_ahead(AheadThreads { count: 2, begin: &begin }, |_| ()).unwrap();
    assert_eq!(driver.registered(), [0, 1, 2, 3]);
    let begun = lock(&begun);
    assert_eq!(begun.len(), 2);
    assert!(!begun.contains(&format!("{:?}", current().id())), "it would stay bound");
    assert!(lock(&driver.state).threads.is_subset(&begun), "one that had not begun registered");
}
