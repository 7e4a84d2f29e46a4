//! Prefetches, on a simulated rack of two hosts. The test is the agent of both. The first host has blocks
//! 3 to 6 on its drive, and 1, 2 and 5 in the pool.

use kv_cache::RestoreOutcome;
use kv_cache::tier::AskedRestore;

use super::restore_tests::{Agent, follow, sleep, with_drives};
use super::tests::{Pair, TestSession, hashes, on_two_hosts, options, publish};
use super::*;
use crate::options::RestoreOptions;

const WAIT_MS: u64 = 60_000;

fn wait(ms: u64) -> RestoreOptions {
    RestoreOptions::new(std::time::Duration::from_millis(ms))
}

/// What was taken up: asked, under way, in the pool, not asked and why.
fn told(prefetch: &Prefetch) -> (usize, usize, usize, usize, Option<PrefetchStop>) {
    let (not_asked, stop) = (prefetch.not_asked(), prefetch.stop());
    (prefetch.asked(), prefetch.under_way(), prefetch.in_pool(), not_asked, stop)
}

/// Asked, restored, late, refused, cancelled; used, joined, full.
fn counts(session: &TestSession<'_, '_>) -> ([u64; 5], [u64; 3]) {
    let metrics = session.metrics();
    let ended = [
        metrics.prefetch_asked_blocks,
        metrics.prefetch_restored_blocks,
        metrics.prefetch_late_blocks,
        metrics.prefetch_refused_blocks,
        metrics.prefetch_cancelled_blocks,
    ];
    let under_way = ended[0] - ended[1..].iter().sum::<u64>();
    assert_eq!(session.poll_prefetches().unwrap() as u64, under_way, "a block ends once");
    let uses = [
        metrics.prefetch_used_blocks,
        metrics.prefetch_joined_blocks,
        metrics.prefetch_full_blocks,
    ];
    assert!(uses[0] <= ended[1]);
    (ended, uses)
}

fn restore(pair: &Pair<'_, '_>, agent: &Agent<'_>, (number, asked): (u8, AskedRestore)) {
    assert_eq!(publish(&pair.session(0, options()), [number]).published(), 1);
    agent.answer(asked, RestoreOutcome::Restored);
}

fn numbers(asked: &[(u8, AskedRestore)]) -> Vec<u8> {
    asked.iter().map(|it| it.0).collect()
}

#[test]
fn blocks_behind_the_prefix_of_the_pool_are_there_when_they_are_looked_up() {
    with_drives(|pair, session, owner, _| {
        let prefetch = session.prefetch(&hashes(1..=9), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&prefetch), (3, 0, 3, 3, Some(PrefetchStop::Absent)));
        let asked = owner.asked();
        assert_eq!(numbers(&asked), [3, 4, 6], "in the order of the prompt");
        assert!(asked.iter().all(|it| it.1.request.unwrap().ahead));
        assert_eq!(session.metrics().held_blocks, 0);
        asked.into_iter().for_each(|it| restore(pair, owner, it));
        assert_eq!(session.poll_prefetches().unwrap(), 0);
        assert_eq!(counts(session), ([3, 3, 0, 0, 0], [0, 0, 0]));
        let report = session.lookup_and_restore(&hashes(1..=9), wait(WAIT_MS)).unwrap();
        assert_eq!((report.held().len(), report.on_drives(), report.stop()), (6, 0, None));
        assert_eq!(owner.asked(), [], "nothing is left to ask for");
        assert_eq!(counts(session), ([3, 3, 0, 0, 0], [3, 0, 0]));
        drop(session.lookup_and_hold(&hashes(1..=9)).unwrap());
        assert_eq!(counts(session).1, [3, 0, 0], "a block is useful once");
    });
}

#[test]
fn a_lookup_waits_for_the_requests_of_a_prefetch() {
    with_drives(|pair, session, owner, _| {
        let first = session.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        let second = session.prefetch(&hashes(1..=4), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&second), (0, 2, 2, 0, None));
        let mut waits = session.begin_restore(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let asked = owner.asked();
        assert_eq!(numbers(&asked), [3, 4, 6], "each is asked for once");
        // The engine has the request now. A prefetch that is taken back takes nothing from the lookup.
        session.cancel_prefetch(&first).unwrap();
        session.cancel_prefetch(&second).unwrap();
        session.cancel_prefetch(&second).unwrap();
        let requests: Vec<_> = asked.iter().map(|it| it.1).collect();
        assert_eq!(owner.cancelled(&requests), [false; 3]);
        asked.into_iter().for_each(|it| restore(pair, owner, it));
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.restored(), report.stop()), (6, 3, None));
        assert_eq!(counts(session), ([3, 0, 0, 0, 3], [0, 3, 0]));
    });
}

#[test]
fn a_joined_block_that_comes_is_useful() {
    with_drives(|pair, session, owner, _| {
        let prefetch = session.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        let mut waits = session.begin_restore(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        owner.asked().into_iter().for_each(|it| restore(pair, owner, it));
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.restored()), (6, 3));
        // Nothing has taken the answers for the prefetch yet.
        session.cancel_prefetch(&prefetch).unwrap();
        assert_eq!(counts(session), ([3, 3, 0, 0, 0], [3, 3, 0]));
    });
}

#[test]
fn a_lookup_with_less_time_asks_itself() {
    with_drives(|pair, session, owner, _| {
        let _kept = session.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        let mut waits = session.begin_restore(&hashes(1..=6), wait(WAIT_MS / 2)).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let asked = owner.asked();
        assert_eq!(numbers(&asked), [3, 4, 6, 3, 4, 6]);
        let ahead: Vec<_> = asked.iter().map(|it| it.1.request.unwrap().ahead).collect();
        assert_eq!(ahead, [true, true, true, false, false, false]);
        for (number, asked) in asked.into_iter().rev() {
            let found = publish(&pair.session(0, options()), [number]);
            assert_eq!(found.available(), 1);
            owner.answer(asked, RestoreOutcome::Restored);
        }
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!(report.held().len(), 6);
        session.poll_prefetches().unwrap();
        assert_eq!(counts(session), ([3, 3, 0, 0, 0], [3, 3, 0]));
    });
}

#[test]
fn a_refused_prefetch_costs_a_lookup_nothing() {
    with_drives(|pair, session, owner, _| {
        let _kept = session.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        let mut waits = session.begin_restore(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        let asked = owner.asked();
        owner.answer(asked[0].1, RestoreOutcome::TooLate);
        owner.answer(asked[1].1, RestoreOutcome::Busy);
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let again = owner.asked();
        assert_eq!(numbers(&again), [3, 4], "the lookup asks for these itself");
        assert!(again.iter().all(|it| !it.1.request.unwrap().ahead));
        again.into_iter().chain([asked[2]]).for_each(|it| restore(pair, owner, it));
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.stop()), (6, None));
        session.poll_prefetches().unwrap();
        assert_eq!(counts(session).0, [3, 1, 1, 1, 0]);
    });
}

#[test]
fn a_prefetch_that_is_taken_back_is_not_restored() {
    with_drives(|_, session, owner, _| {
        let first = session.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        let second = session.prefetch(&hashes(1..=3), wait(WAIT_MS)).unwrap();
        let asked: Vec<_> = owner.asked().into_iter().map(|it| it.1).collect();
        session.cancel_prefetch(&first).unwrap();
        assert_eq!(owner.cancelled(&asked), [false, true, true], "another wants block 3");
        assert_eq!(counts(session).0, [3, 0, 0, 0, 2]);
        session.cancel_prefetch(&second).unwrap();
        assert_eq!(owner.cancelled(&asked), [true; 3]);
        assert_eq!(counts(session).0, [3, 0, 0, 0, 3]);
    });
}

#[test]
fn a_prefetch_ends_with_its_time() {
    with_drives(|pair, session, owner, _| {
        let prefetch = session.prefetch(&hashes(1..=6), wait(40)).unwrap();
        assert_eq!(prefetch.asked(), 3);
        let asked: Vec<_> = owner.asked().into_iter().map(|it| it.1).collect();
        assert!(asked.iter().all(|it| it.request.unwrap().wait_ms <= 40));
        sleep(pair, 40);
        assert_eq!(session.poll_prefetches().unwrap(), 0);
        assert_eq!(owner.cancelled(&asked), [true; 3]);
        assert_eq!(counts(session).0, [3, 0, 3, 0, 0]);
        let none = session.prefetch(&hashes(1..=6), wait(0)).unwrap();
        assert_eq!(told(&none), (0, 0, 2, 4, Some(PrefetchStop::NoWait)));
        assert_eq!(owner.asked(), []);
    });
}

#[test]
fn prefetches_leave_half_of_the_ring_to_lookups() {
    on_two_hosts(|pair| {
        let mut agents = [Agent::begin(pair, 0), Agent::begin(pair, 1)];
        agents[0].announce(1..=30);
        follow(pair, &mut agents);
        let [owner, _] = &mut agents;
        let session = pair.session(1, options());
        let prefetch = session.prefetch(&hashes(1..=20), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&prefetch), (20, 0, 0, 0, None));
        let asked = owner.asked();
        assert_eq!(numbers(&asked), [1, 2, 3, 4], "the ring has eight lines");
        let mut waits = session.begin_restore(&hashes(21..=24), wait(WAIT_MS)).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let of_lookup = owner.asked();
        assert_eq!(numbers(&of_lookup), [21, 22, 23, 24]);
        // What was not asked for yet, the next lookup asks for itself.
        asked.into_iter().chain(of_lookup).for_each(|it| restore(pair, owner, it));
        assert!(session.poll_restore(&mut waits).unwrap().is_some());
        let mut waits = session.begin_restore(&hashes(5..=6), wait(WAIT_MS)).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let of_lookup = owner.asked();
        assert_eq!(numbers(&of_lookup), [5, 6]);
        of_lookup.into_iter().for_each(|it| restore(pair, owner, it));
        assert!(session.poll_restore(&mut waits).unwrap().is_some());
        // The others follow in their order, as the first ones are answered.
        let mut next = 7;
        while session.poll_prefetches().unwrap() > 0 {
            for it in owner.asked() {
                assert_eq!(it.0, next);
                restore(pair, owner, it);
                next += 1;
            }
        }
        assert_eq!(next, 21);
        assert_eq!(counts(&session).0, [20, 18, 2, 0, 0]);
    });
}

#[test]
fn prefetches_of_a_process_have_a_bound() {
    with_drives(|pair, _, owner, _| {
        let block_bytes = options().block_bytes();
        let shared = Arc::new(Prefetches::of_share(4 * 2 * block_bytes));
        let other = pair.session(1, options()).sharing(&shared);
        let prefetch = other.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&prefetch), (2, 0, 3, 1, Some(PrefetchStop::Full)));
        assert_eq!(counts(&other), ([2, 0, 0, 0, 0], [0, 0, 1]), "block 5 is in the pool");
        owner.asked().into_iter().for_each(|it| restore(pair, owner, it));
        assert_eq!(other.poll_prefetches().unwrap(), 0);
        // They have the room until they are used.
        let prefetch = other.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&prefetch), (0, 0, 5, 1, Some(PrefetchStop::Full)));
        assert_eq!(other.lookup(&hashes(1..=6)).unwrap().blocks().len(), 5);
        let prefetch = other.prefetch(&hashes(1..=6), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&prefetch), (1, 0, 5, 0, None));
        other.cancel_prefetch(&prefetch).unwrap();
        // Or until their time is over.
        let late = other.prefetch(&hashes(1..=6), wait(40)).unwrap();
        assert_eq!(late.asked(), 1);
        owner.asked().into_iter().for_each(|it| {
            owner.answer(it.1, RestoreOutcome::Restored);
        });
        assert_eq!(other.poll_prefetches().unwrap(), 0);
        assert!(shared.is_busy());
        sleep(pair, 40);
        other.poll_prefetches().unwrap();
        assert!(!shared.is_busy());
    });
}

#[test]
fn an_agent_that_stops_ends_its_prefetches() {
    on_two_hosts(|pair| {
        let mut agents = [Agent::begin(pair, 0), Agent::begin(pair, 1)];
        agents[0].announce([1, 2]);
        follow(pair, &mut agents);
        let [owner, mut other] = agents;
        let session = pair.session(1, options());
        assert_eq!(session.prefetch(&hashes([1, 2]), wait(WAIT_MS)).unwrap().asked(), 2);
        owner.stop();
        other.sync(pair);
        assert_eq!(session.poll_prefetches().unwrap(), 0);
        assert_eq!(counts(&session).0, [2, 0, 0, 2, 0]);
        let absent = session.prefetch(&hashes([1, 2]), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&absent), (0, 0, 0, 2, Some(PrefetchStop::Absent)));
        other.stop();
        let none = session.prefetch(&hashes([1, 2]), wait(WAIT_MS)).unwrap();
        assert_eq!(told(&none), (0, 0, 0, 2, Some(PrefetchStop::NoAgent)));
    });
}
