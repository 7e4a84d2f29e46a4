//! Threads of a host that died while they waited for a lock.

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
        let queue = waits.seat().tier().host_queue(HostLockName::Heap);
        let _ = queue.enter(waits.token());
        std::mem::forget(waits);
        bed.kill(pid);
    }
    let before_ms = bed.clock.now_ms();
    drop(lives.lock_heap(&bed.clock));
    let waited_ms = bed.clock.now_ms() - before_ms;
    assert!(waited_ms < 50, "{waited_ms} ms");
}
