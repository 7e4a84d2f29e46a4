//! Requests, queues and the desk of waiting threads under shuttle: the same sources, with threads and
//! locks that are scheduled at random. Callers submit, cancel, forget and wait; pieces are lost as if
//! they had panicked; the pool is closed at any moment.
//!
//! Each rule that a mutant breaks is missed within as many schedules as those in which it is kept.

#[expect(clippy::duplicate_mod, reason = "compiled once more, with what shuttle schedules")]
#[path = "guest.rs"]
mod guest;
#[expect(clippy::duplicate_mod, reason = "compiled once more, with what shuttle schedules")]
#[path = "request.rs"]
mod request;
#[expect(clippy::duplicate_mod, reason = "compiled once more, with what shuttle schedules")]
#[path = "turns.rs"]
mod turns;

/// As the real one, by shuttle.
mod sync {
    use std::cell::Cell;

    pub(super) use super::super::sync::Mutant;
    pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(super) use shuttle::thread;

    thread_local! {
        /// Shuttle runs all threads of a schedule on one.
        static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn breaks(mutant: Mutant) -> bool {
        BROKEN.get() == Some(mutant)
    }

    pub(super) fn break_rule(mutant: Option<Mutant>) {
        BROKEN.set(mutant);
    }
}

mod desk {
    use std::marker::PhantomData;

    /// What pieces are done with, of which they need nothing here.
    pub(super) struct Desk<'p>(pub(super) PhantomData<&'p ()>);
}

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::SubmitErrorKind;
use desk::Desk;
use guest::{Guest, Works};
use request::{InPieces, Piece, Request};
use sync::{Mutant, break_rule};
use turns::{Lane, Serves, Turns};

const SCHEDULES: usize = 1500;
const PCT_DEPTH: usize = 3;
const CALLERS: usize = 3;
const DEPTH: usize = 2;

/// One in `n`.
fn one_in(n: u32) -> bool {
    thread_rng().gen_range(0..n) == 0
}

fn work_on(piece: Piece) {
    if one_in(10) {
        // As one that panics: it has no result.
        drop(piece);
    } else {
        piece(&Desk(PhantomData));
    }
}

struct Place;

impl Works for Place {
    fn work_on(&self, piece: Piece) {
        work_on(piece);
    }
}

/// What the caller gave to one request.
#[derive(Default)]
struct Buffers {
    /// Pieces that use it now.
    in_use: AtomicUsize,
    /// How often each piece was copied.
    copied: [AtomicUsize; 3],
}

impl Buffers {
    fn copy(&self, number: usize, piece: usize) -> usize {
        assert_eq!(number, piece, "pieces are taken in order (ASYNC-P1)");
        self.in_use.fetch_add(1, Ordering::SeqCst);
        thread::yield_now();
        assert_eq!(self.copied[piece].fetch_add(1, Ordering::SeqCst), 0, "copied twice");
        self.in_use.fetch_sub(1, Ordering::SeqCst);
        piece
    }

    fn are_free(&self) {
        assert_eq!(self.in_use.load(Ordering::SeqCst), 0, "told while in use (ASYNC-P2)");
    }

    fn copies(&self) -> usize {
        self.copied.iter().map(|copied| copied.load(Ordering::SeqCst)).sum()
    }
}

/// A process: its queues, and what was put into them.
struct Process {
    turns: Turns,
    guest: Guest<Place>,
    /// Of the queue that is looked at: what it took.
    taken_in: Mutex<Vec<Arc<dyn Request>>>,
}

impl Process {
    fn new() -> Arc<Self> {
        let (turns, guest) = (Turns::new(DEPTH), Guest::new(Place));
        Arc::new(Self { turns, guest, taken_in: Mutex::new(Vec::new()) })
    }

    fn start(self: &Arc<Self>, serves: Serves) -> thread::JoinHandle<()> {
        let process = Arc::clone(self);
        thread::spawn(move || {
            while let Some(piece) = process.turns.next(serves) {
                work_on(piece);
            }
        })
    }

    /// One request of one to three pieces, and what its caller does with it.
    fn call(&self, lane: Lane) {
        let pieces: VecDeque<usize> = (0..thread_rng().gen_range(1..=3)).collect();
        let (count, buffers) = (pieces.len(), Arc::new(Buffers::default()));
        let (tell, told) = oneshot::channel();
        let (copies, ended) = (Arc::clone(&buffers), Arc::clone(&buffers));
        let work = move |_: &Desk<'_>, number, piece| copies.copy(number, piece);
        let join = move |results: Vec<usize>| {
            ended.are_free();
            results
        };
        let request = Arc::new(InPieces::new(pieces, work, join, tell));
        let shared: Arc<dyn Request> = Arc::<InPieces<_, _, _, _>>::clone(&request);
        let submit = || self.turns.submit(lane, Arc::clone(&shared));
        let by_caller = count == 1 && one_in(2);
        let begun = if by_caller { self.guest.begin(&shared, submit) } else { submit() };
        match begun {
            Ok(()) => {}
            Err(SubmitErrorKind::Busy | SubmitErrorKind::Closed) => {
                assert_eq!(request.give_back().len(), count, "what was refused is whole");
                return;
            }
            Err(other) => panic!("{other}"),
        }
        if lane == Lane::Publish {
            self.took(&shared);
        }
        if one_in(4) {
            let revoked = shared.revoke();
            assert!(!revoked || buffers.copies() == 0, "revoked after it was begun");
            if revoked {
                return;
            }
        }
        // Some transfers are forgotten.
        if one_in(6) {
            return;
        }
        if one_in(2) {
            while self.guest.work_on(&shared) {
                assert!(!self.guest.is_this_thread(), "it has gone from the desk");
            }
        }
        match shuttle::future::block_on(told) {
            Ok(results) => {
                assert_eq!(results, (0..count).collect::<Vec<_>>(), "every piece, once");
                assert_eq!(buffers.copies(), count);
            }
            // A piece was lost.
            Err(_) => assert!(buffers.copies() < count, "complete, and not told"),
        }
        buffers.are_free();
    }

    /// ASYNC-Q2, of one queue.
    fn took(&self, request: &Arc<dyn Request>) {
        let mut taken_in = self.taken_in.lock().unwrap();
        taken_in.push(Arc::clone(request));
        taken_in.retain(|request| !request.is_taken_up());
        assert!(taken_in.len() <= DEPTH, "{} wait", taken_in.len());
    }
}

/// Callers, two threads that copy, and a pool that is closed at any moment.
fn callers() {
    let process = Process::new();
    let threads = [Serves::Copies, Serves::FetchesOnly].map(|serves| process.start(serves));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let process = Arc::clone(&process);
            let lane = if caller == 0 { Lane::Fetch } else { Lane::Publish };
            thread::spawn(move || (0..2).for_each(|_| process.call(lane)))
        })
        .collect();
    let closes_early = one_in(3);
    if !closes_early {
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        process.turns.end();
    } else {
        process.turns.end();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(process.guest.end().is_some(), "it ends once");
    assert!(process.guest.end().is_none());
}

/// Two fetches that come at once, each of which ends only when the other has begun: both threads have
/// to be woken (ASYNC-Q3).
fn two_that_need_each_other() {
    let turns = Arc::new(Turns::new(DEPTH));
    let threads = [Serves::Copies, Serves::FetchesOnly].map(|serves| {
        let turns = Arc::clone(&turns);
        thread::spawn(move || {
            while let Some(piece) = turns.next(serves) {
                piece(&Desk(PhantomData));
            }
        })
    });
    let begun = Arc::new((Mutex::new(0), Condvar::new()));
    let told = [0; 2].map(|_| {
        let (tell, told) = oneshot::channel();
        let begun = Arc::clone(&begun);
        let work = move |_: &Desk<'_>, _, ()| {
            let (count, both) = &*begun;
            let mut count = count.lock().unwrap();
            *count += 1;
            both.notify_all();
            while *count < 2 {
                count = both.wait(count).unwrap();
            }
        };
        let request = InPieces::new(VecDeque::from([()]), work, |_| (), tell);
        turns.submit(Lane::Fetch, Arc::new(request)).unwrap();
        told
    });
    for told in told {
        shuttle::future::block_on(told).unwrap();
    }
    turns.end();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn explore(mutant: Option<Mutant>) {
    break_rule(mutant);
    shuttle::check_random(callers, SCHEDULES);
    shuttle::check_pct(callers, SCHEDULES, PCT_DEPTH);
    shuttle::check_random(two_that_need_each_other, SCHEDULES);
}

#[test]
fn no_piece_is_lost_or_done_twice() {
    explore(None);
}

#[test]
fn every_broken_rule_is_noticed() {
    for mutant in [
        Mutant::NumbersFirst,
        Mutant::TellsEarly,
        Mutant::RevokesBegun,
        Mutant::HasNoDepth,
        Mutant::WakesNoOther,
        Mutant::LeftToNoThread,
        Mutant::EndsInSilence,
    ] {
        // On a thread of its own: shuttle leaves what a schedule that failed had going.
        let noticed = std::thread::spawn(move || explore(Some(mutant))).join().is_err();
        assert!(noticed, "{mutant:?} went unnoticed");
    }
}
