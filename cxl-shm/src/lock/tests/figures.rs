//! What is counted of locks, for people.

use super::*;
use crate::host::{Behind, LockFigures, LockKind};
use crate::lock::LockError;

fn programs(process: &Process) -> LockFigures {
    process.lock_figures(LockKind::Programs)
}

#[test]
fn a_lock_that_nobody_has_is_no_wait() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let one = bed.process(0, 4);
        for _ in 0..3 {
            drop(bed.acquire(&one));
        }
        let LockFigures { took, behind_host, behind_rack, passed, timed_out } = programs(&one);
        assert_eq!(took.count(), 3, "{protocol}");
        assert_eq!([behind_host, behind_rack, passed, timed_out], [0; 4], "{protocol}");
        let others = LockKind::ALL
            .into_iter()
            .filter(|kind| kind.is_between_hosts() && *kind != LockKind::Programs);
        for kind in others {
            assert_eq!(one.lock_figures(kind), LockFigures::default(), "{kind:?}");
        }
    }
}

#[test]
fn who_waits_for_a_thread_of_the_host_is_counted_with_the_time() {
    for protocol in PROTOCOLS {
        // A lock that was used for long is not passed on.
        for (held_us, passed) in [(0, 1), (5000, 0)] {
            let bed = Bed::new(protocol);
            let [one, two] = [4, 6].map(|pid| bed.process(0, pid));
            let guard = bed.acquire(&one);
            let before = programs(&one);
            let mut waits = two.begin_shared(LOCK, &bed.clock);
            assert!(waits.poll().unwrap().is_none(), "{protocol}: held");
            bed.clock.us.set(bed.clock.us.get() + held_us);
            drop(guard);
            let looks = (0..8).find_map(|look| {
                let had = waits.poll().unwrap();
                if had.is_none() {
                    bed.clock.pause(0);
                }
                had.map(|_| look)
            });
            let figures = programs(&one);
            assert_eq!(figures, programs(&two), "of all processes of the host");
            assert_eq!(figures.took.count(), before.took.count() + 1, "{protocol}");
            let took_us = figures.took.sum_us - before.took.sum_us;
            assert_eq!(took_us, held_us + 1000 * looks.expect("it is free"), "{protocol}");
            assert_eq!((figures.behind_host, figures.behind_rack), (1, 0), "{protocol}");
            assert_eq!((figures.passed, figures.timed_out), (passed, 0), "{protocol}");
        }
    }
}

/// Under `arbitrated` a host does not see who is before it, but for how long it waits.
#[test]
fn who_waits_for_another_host_is_counted_where_it_is_seen() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let [here, there] = [0, 1].map(|host| bed.process(host, 4));
        let guard = bed.acquire(&there);
        let mut waits = here.begin_shared(LOCK, &bed.clock);
        for _ in 0..20 {
            assert!(waits.poll().unwrap().is_none(), "{protocol}: held");
            bed.clock.pause(0);
        }
        drop(guard);
        let had = (0..8).find_map(|_| {
            bed.clock.pause(0);
            waits.poll().unwrap()
        });
        assert!(had.is_some(), "{protocol}");
        let figures = programs(&here);
        let seen = u64::from(protocol == LockProtocol::Bakery);
        let waits = Behind::ALL.map(|behind| figures.waits(behind));
        assert_eq!((waits, figures.passed), ([0, seen], 0), "{protocol}");
        assert_eq!(figures.took.count(), 1);
        assert!(figures.took.sum_us >= 20_000, "{protocol}: {figures:?}");
        assert_eq!(programs(&there).waits(Behind::Rack), 0, "it was first");
    }
}

#[test]
fn a_time_out_is_counted_and_no_acquisition() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let [one, two] = [4, 6].map(|pid| bed.process(0, pid));
        let guard = bed.acquire(&one);
        let before = programs(&one);
        let refused = two.lock_shared(LOCK, &bed.clock, 30).map(drop);
        assert!(matches!(refused, Err(LockError::TimedOut { .. })), "{refused:?}");
        // Who does not want to wait, or gives up, waits for no time-out.
        assert!(two.try_lock_shared(LOCK, &bed.clock).unwrap().is_none());
        let given_up = two.lock_shared_while(LOCK, &bed.clock, 30, || false);
        assert!(given_up.unwrap().is_none());
        let figures = programs(&one);
        assert_eq!(figures, LockFigures { timed_out: 1, ..before }, "{protocol}");
        drop(guard);
    }
}

#[test]
fn waits_for_a_host_lock_are_counted_too() {
    let bed = Bed::without_manager(LockProtocol::Bakery);
    let [one, two] = [4, 6].map(|pid| bed.process(0, pid));
    let heap = || one.lock_figures(LockKind::Heap);
    let before = heap();
    let guard = one.lock_heap(&bed.clock);
    let mut free = before;
    free.took.add(0);
    assert_eq!(heap(), free, "no wait, and no time");
    let until_ms = bed.clock.now_ms() + 10;
    assert!(two.lock_host_until(HostLockName::Heap, &bed.clock, until_ms).is_none());
    assert_eq!(heap(), LockFigures { timed_out: 1, ..free });
    // Released after 3 ms.
    let mut held = Some(guard);
    let clock = HandClock::with(1, |pause| {
        if pause == 3 {
            held.take();
        }
    });
    drop(two.lock_heap(&clock));
    let mut waited = LockFigures { timed_out: 1, behind_host: 1, ..free };
    waited.took.add(3000);
    assert_eq!(heap(), waited);
}
