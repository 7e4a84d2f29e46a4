//! Memory with bytes that no host wrote: eviction and sweep end, and miss no block.

use super::*;
use crate::format::{LogEntry, LogKind};
use crate::upkeep::Watermarks;

/// Operations after which a test that should have ended has not.
const OPERATIONS: u64 = 1 << 20;

/// The descriptor of a block of this node gets lost.
fn damage(cache: &TestCache<'_>, handle: Handle) {
    let host = cache.member().fabric();
    let line = cache.segment(handle.owner()).unwrap().range(handle.slot());
    host.rack().flip_bit(line.start().bytes() + 36, 5);
    // Not what our caches still hold of it.
    host.refresh(line);
}

fn evict(cache: &TestCache<'_>, clock: &impl Clock) -> u64 {
    cache.evict(clock, None, usize::MAX)
}

/// Publishes block 1 again and again: three blocks in one slot.
fn third_block(cache: &TestCache<'_>, clock: &impl Clock) -> Handle {
    for _ in 0..2 {
        let handle = publish(cache, clock, 1);
        cache.retire(clock, &[handle]);
    }
    publish(cache, clock, 1)
}

fn generation_of_tombstone(cache: &TestCache<'_>, handle: Handle) -> u32 {
    let segment = cache.segment(handle.owner()).unwrap();
    match segment.cached(cache.member().fabric(), handle.slot()) {
        Ok(SlotContent::Free { generation, .. }) => generation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_that_cannot_be_read_does_not_keep_eviction_going() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let handles: Vec<_> = (1..=4).map(|number| publish(a, clock, number)).collect();
        // It is in the order.
        a.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        damage(a, handles[1]);
        let sweeps = a.process_state().metrics().sweeps;
        rig.rack.limit_operations(OPERATIONS);
        assert_eq!(evict(a, clock), 3);
        assert_eq!(a.heap_use(clock).blocks, 0, "the next to take the lock sweeps it away");
        let metrics = a.process_state().metrics();
        assert_eq!((metrics.sweeps, metrics.spared_held), (sweeps + 1, 0));
        assert_eq!(publish(a, clock, 2).generation(), handles[1].generation() + 1);
    });
}

#[test]
fn a_log_entry_of_a_slot_that_is_not_there_is_passed_over() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        publish(a, clock, 1);
        let stray = |kind| LogEntry { kind, key: key(2).index(), slot: 32, generation: 1 };
        a.locked(clock, |heap| {
            heap.log.append(heap.fabric(), &[LogKind::Published, LogKind::Removed].map(stray));
        });
        publish(a, clock, 3);
        assert_eq!(evict(a, clock), 2);
    });
}

#[test]
fn a_sweep_goes_on_from_the_generation_of_a_line_that_it_cannot_read() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = third_block(a, clock);
        publish(a, clock, 2);
        damage(a, handle);
        a.locked(clock, |heap| heap.doubt());
        assert_eq!(a.heap_use(clock).blocks, 1);
        assert_eq!(generation_of_tombstone(a, handle), 3);
        assert_eq!(publish(a, clock, 1), Handle::new(handle.owner(), handle.slot(), 4));
        assert!(find_and_fetch(b, 1) && find_and_fetch(b, 2));
    });
}

#[test]
fn a_later_life_goes_on_from_a_generation_that_was_never_heard_of() {
    let rig = Rig::new(2, 32, 16);
    let (first, second) = (rig.join(0), rig.join(1));
    let handle = {
        let clock = rig.serve(&[&first, &second]);
        let b = Cache::attach(&second, &clock).unwrap();
        let handle = third_block(&b, &clock);
        publish(&b, &clock, 2);
        damage(&b, handle);
        handle
    };
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    let again = rig.join(1);
    let clock = rig.serve(&[&first, &again]);
    let b = Cache::attach(&again, &clock).unwrap();
    assert!(generation_of_tombstone(&b, handle) > handle.generation() + 1000);
    assert_ne!(publish(&b, &clock, 1), handle);
    assert!(find_and_fetch(&b, 1) && find_and_fetch(&b, 2));
}
