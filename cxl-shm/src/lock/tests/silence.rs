//! A silent lock manager is waited for once, not at each request.

use super::*;
use crate::lock::LockError;
use crate::node::SUSPECT_MS;

fn waited_ms(bed: &Bed, process: &Process) -> (u64, LockError) {
    let before_ms = bed.clock.now_ms();
    let refused = process.lock_shared(LOCK, &bed.clock, 60_000).unwrap_err();
    (bed.clock.now_ms() - before_ms, refused)
}

#[test]
fn a_silence_is_remembered_by_the_host_until_the_manager_moves() {
    let bed = Bed::new(LockProtocol::Arbitrated);
    let (first, second) = (bed.process(0, 2), bed.process(0, 4));
    drop(bed.acquire(&first));
    let mut manager = bed.stop_manager();
    let (waited, refused) = waited_ms(&bed, &first);
    assert!(waited >= SUSPECT_MS, "a silence of {waited} ms is none");
    assert!(matches!(refused, LockError::ManagerSilent { .. }), "{refused}");
    for process in [&first, &second] {
        let (waited, refused) = waited_ms(&bed, process);
        assert!(waited < 20, "waited {waited} ms for a manager that is known to be silent");
        assert!(matches!(refused, LockError::ManagerSilent { .. }), "{refused}");
        let tried = process.try_lock_shared(LOCK, &bed.clock).unwrap_err();
        assert!(matches!(tried, LockError::ManagerSilent { .. }), "{tried}");
    }
    // It moves again: nobody is refused any more.
    manager();
    bed.clock.others.borrow_mut().push(manager);
    drop(bed.acquire(&second));
    // And a next silence is found out anew.
    let _manager = bed.stop_manager();
    let (waited, _) = waited_ms(&bed, &second);
    assert!(waited >= SUSPECT_MS, "{waited} ms");
}

#[test]
fn that_there_is_no_manager_is_remembered_until_there_is_one() {
    let bed = Bed::without_manager(LockProtocol::Arbitrated);
    let (first, second) = (bed.process(0, 2), bed.process(0, 4));
    assert_eq!(waited_ms(&bed, &first).1, LockError::NoManager);
    let (waited, refused) = waited_ms(&bed, &second);
    assert_eq!(refused, LockError::NoManager);
    assert!(waited < 20, "waited {waited} ms for a manager that never was");
    bed.start_manager();
    drop(bed.acquire(&second));
}

/// A process that is paused while it waits, and everything else with it, has watched no silence
/// (BEAT-G0).
#[test]
fn the_pause_of_a_waiter_is_no_silence_of_the_manager() {
    let bed = Bed::new(LockProtocol::Arbitrated);
    let (first, second) = (bed.process(0, 2), bed.process(0, 4));
    drop(bed.acquire(&first));
    let mut manager = bed.stop_manager();
    let mut waits = first.begin_shared(LOCK, &bed.clock);
    let mut poll = |times| {
        for _ in 0..times {
            let polled = waits.poll();
            assert!(matches!(polled, Ok(None)), "{:?}", polled.map(|guard| guard.is_some()));
            bed.clock.pause(0);
        }
    };
    poll(100);
    bed.clock.us.set(bed.clock.us.get() + 10 * 1000 * SUSPECT_MS);
    poll(100);
    drop(waits);
    assert_eq!(first.node_handle().tier().silence(), 0, "nothing is remembered for the host");
    manager();
    bed.clock.others.borrow_mut().push(manager);
    drop(bed.acquire(&second));
}

/// On a machine that is short of processors a waiter polls seldom, and still watches.
#[test]
fn a_waiter_that_polls_seldom_notices_a_silence() {
    let bed = Bed::new(LockProtocol::Arbitrated);
    let first = bed.process(0, 2);
    drop(bed.acquire(&first));
    let _manager = bed.stop_manager();
    let mut waits = first.begin_shared(LOCK, &bed.clock);
    let from_ms = bed.clock.now_ms();
    let noticed = (0..1000).find_map(|_| {
        let refused = waits.poll().err();
        bed.clock.us.set(bed.clock.us.get() + 20_000);
        refused
    });
    assert!(matches!(noticed, Some(LockError::ManagerSilent { .. })), "{noticed:?}");
    let waited_ms = bed.clock.now_ms() - from_ms;
    assert!((SUSPECT_MS..2 * SUSPECT_MS).contains(&waited_ms), "{waited_ms} ms");
}
