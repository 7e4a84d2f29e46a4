//! Threads of a host that died, or were stopped, while they waited for a lock.

use super::*;

/// The processes of a host die while many of their threads wait for a lock that is free.
#[test]
fn a_free_lock_is_had_at_once_however_many_dead_wait_for_it() {
    for protocol in PROTOCOLS {
        let bed = Bed::new(protocol);
        let lives = bed.process(0, 4);
        for pid in 200..250 {
            let waits = bed.process(0, pid);
            std::mem::forget(waits.begin_shared(LOCK, &bed.clock));
            std::mem::forget(waits);
            bed.kill(pid);
        }
        let before_ms = bed.clock.now_ms();
        drop(bed.acquire(&lives));
        let waited_ms = bed.clock.now_ms() - before_ms;
        assert!(waited_ms < 50, "{protocol}: {waited_ms} ms");
    }
}

/// As above, for the lock of the heap of the host.
#[test]
fn a_free_host_lock_is_had_at_once_however_many_dead_wait_for_it() {
    let bed = Bed::new(LockProtocol::Bakery);
    let lives = bed.process(0, 4);
    for pid in 200..250 {
        let waits = bed.process(0, pid);
        let queue = waits.node_handle().tier().host_queue(HostLockName::Heap);
        let _ = queue.enter(waits.token());
        std::mem::forget(waits);
        bed.kill(pid);
    }
    let before_ms = bed.clock.now_ms();
    drop(lives.lock_heap(&bed.clock));
    let waited_ms = bed.clock.now_ms() - before_ms;
    assert!(waited_ms < 50, "{waited_ms} ms");
}

/// A debugger stops a process that waits for a lock between hosts. Its host is refused that lock no
/// longer than it takes to notice that.
#[test]
fn a_stopped_waiter_keeps_a_lock_from_nobody_and_is_first_when_it_goes_on() {
    for protocol in PROTOCOLS {
        // The lock is free, or the stopped one is passed it.
        for passed in [false, true] {
            let bed = Bed::new(protocol);
            let [stopped, lives, late] = [4, 6, 8].map(|pid| bed.process(0, pid));
            let guard = passed.then(|| bed.acquire(&lives));
            let mut waits = stopped.begin_shared(LOCK, &bed.clock);
            drop(guard);
            let before_ms = bed.clock.now_ms();
            drop(bed.acquire(&lives));
            let waited_ms = bed.clock.now_ms() - before_ms;
            assert!(waited_ms < 60, "{protocol}: {waited_ms} ms");
            let guard = bed.acquire(&lives);
            assert!(waits.poll().unwrap().is_none(), "{protocol}: held");
            let mut next = late.begin_shared(LOCK, &bed.clock);
            drop(guard);
            assert!(next.poll().unwrap().is_none(), "{protocol}: it came later");
            let mut had = (0..8).find_map(|_| {
                bed.clock.pause(0);
                waits.poll().unwrap()
            });
            assert!(had.take().is_some(), "{protocol}: it goes on");
        }
    }
}
