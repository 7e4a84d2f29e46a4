//! Every interleaving of few requests: the same source with the words of loom. Askers ask, poll and look at
//! their places; the server takes, fills, drops, and ends.

#[expect(clippy::duplicate_mod, reason = "compiled once more, with the words of loom")]
#[expect(unreachable_pub, reason = "public in the other compilation")]
#[path = "protocol.rs"]
mod protocol;

/// As the real one, by loom.
mod sync {
    use std::cell::Cell;

    pub(super) use super::super::sync::Mutant;
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicU64 as Word, Ordering};

    thread_local! {
        /// Loom runs all threads of an execution on one.
        static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn breaks(mutant: Mutant) -> bool {
        BROKEN.get() == Some(mutant)
    }

    pub(super) fn break_rule(mutant: Option<Mutant>) {
        BROKEN.set(mutant);
    }
}

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use protocol::{Asked, AskerWords, Outcome, Request, Ring, Server, Ticket};
use sync::{Mutant, break_rule};

/// What the server does with each request that it takes.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Fill,
    Miss,
    Drop,
    /// Fills what it took after it has ended.
    FillLate,
}

/// An asker: its request, the place of the request, and what the server did.
#[derive(Default)]
struct Asker {
    /// Loom misses no two accesses at once.
    place: UnsafeCell<()>,
    was_taken: AtomicBool,
    was_filled: AtomicBool,
}

/// What the threads of one execution share.
struct Shared {
    ring: Arc<Ring>,
    words: AskerWords,
    askers: Vec<Asker>,
}

fn request_of(asker: usize) -> Request {
    Request { block: asker as u64 + 10, place: asker as u64 }
}

/// Asks, and polls a few times. The ticket when there was no answer by then.
fn ask(shared: &Shared, number: usize) -> Option<Ticket> {
    let place = &shared.askers[number].place;
    place.with_mut(|_| ());
    let Ok(mut ticket) = shared.ring.ask(&shared.words, request_of(number)) else {
        // The other asker has the slot. The place is free: nothing was asked.
        place.with_mut(|_| ());
        return None;
    };
    for _ in 0..2 {
        ticket = poll(shared, number, ticket)?;
        thread::yield_now();
    }
    Some(ticket)
}

/// Polls, and uses the place where there is an answer.
fn poll(shared: &Shared, number: usize, ticket: Ticket) -> Option<Ticket> {
    let outcome = match shared.ring.poll(&shared.words, ticket) {
        Ok(outcome) => outcome,
        Err(again) => return Some(again),
    };
    let asker = &shared.askers[number];
    asker.place.with_mut(|_| ());
    let was = |what: &AtomicBool| what.load(Ordering::SeqCst);
    assert_eq!(outcome == Outcome::Filled, was(&asker.was_filled), "{outcome:?}");
    assert_eq!(outcome == Outcome::Closed, !was(&asker.was_taken), "{outcome:?}");
    None
}

fn fill(shared: &Shared, asked: Asked) {
    let asker = &shared.askers[usize::try_from(asked.request().place).unwrap()];
    asker.place.with_mut(|_| ());
    assert!(!asker.was_filled.swap(true, Ordering::SeqCst), "filled twice");
    asked.filled();
}

/// Looks for requests a few times and ends.
fn serve(shared: &Shared, mut server: Server, plan: Plan) {
    let mut late = Vec::new();
    for _ in 0..3 {
        if let Some(asked) = server.take() {
            let request = asked.request();
            let number = usize::try_from(request.place).unwrap();
            assert_eq!(request, request_of(number), "half a request (RING-R1)");
            let was_taken = &shared.askers[number].was_taken;
            assert!(!was_taken.swap(true, Ordering::SeqCst), "taken twice");
            match plan {
                Plan::Fill => fill(shared, asked),
                Plan::Miss => asked.missed(),
                Plan::Drop => drop(asked),
                Plan::FillLate => late.push(asked),
            }
        }
        thread::yield_now();
    }
    drop(server);
    late.into_iter().for_each(|asked| fill(shared, asked));
}

/// All interleavings of two askers and a server. Whether all rules were kept in all of them.
fn holds(slots: usize, plan: Plan, broken: Option<Mutant>) -> bool {
    break_rule(broken);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        model.check(move || {
            let (ring, server, words) = Ring::new(slots);
            let askers = (0..2).map(|_| Asker::default()).collect();
            let shared = Arc::new(Shared { ring, words, askers });
            let askers = [0, 1].map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || ask(&shared, number))
            });
            serve(&shared, server, plan);
            for (number, asker) in askers.into_iter().enumerate() {
                let left = asker.join().unwrap().and_then(|ticket| poll(&shared, number, ticket));
                assert!(left.is_none(), "no answer, and not closed (RING-R5)");
            }
        });
    }));
    break_rule(None);
    outcome.is_ok()
}

#[test]
fn every_interleaving_keeps_the_rules() {
    for plan in [Plan::Fill, Plan::Miss, Plan::Drop, Plan::FillLate] {
        assert!(holds(1, plan, None), "one slot, {plan:?}");
        assert!(holds(2, plan, None), "two slots, {plan:?}");
    }
}

#[test]
fn every_broken_rule_is_missed() {
    for (mutant, slots, plan) in [
        (Mutant::SharesTickets, 1, Plan::Fill),
        (Mutant::AsksFirst, 1, Plan::Fill),
        (Mutant::AsksRelaxed, 1, Plan::Fill),
        (Mutant::IsNeverFull, 1, Plan::Fill),
        (Mutant::BelievesAnyLap, 1, Plan::Fill),
        (Mutant::AnswersRelaxed, 1, Plan::Fill),
        (Mutant::DropsInSilence, 1, Plan::Drop),
        (Mutant::ClosesEarly, 1, Plan::FillLate),
        (Mutant::LooksOnce, 1, Plan::Fill),
    ] {
        assert!(!holds(slots, plan, Some(mutant)), "{mutant:?} is not noticed");
    }
}
