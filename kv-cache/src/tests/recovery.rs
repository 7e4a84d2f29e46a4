//! Deaths: of a process anywhere, of a host, and what is found afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::HeapUse;
use crate::heap::{Directory, SlotSize};
use crate::reclaim_dead_processes;

#[test]
fn what_a_dead_process_was_writing_is_freed() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        let other = rig.join(0);
        let writing = {
            let cache = Cache::attach(&other, clock).unwrap();
            let block = reserve(&cache, clock, 2);
            publish(&cache, clock, 3);
            block
        };
        let ours = reserve(a, clock, 4);
        assert_eq!(a.reap(clock), 0, "it lives");
        assert_eq!(a.heap_use(clock).blocks, 4);

        rig.kill(&other);
        std::mem::forget(writing);
        assert_eq!(a.member().gone_processes().len(), 1);
        assert_eq!(reclaim_dead_processes(a.member(), clock), 1);
        assert_eq!(a.member().gone_processes(), [], "struck off");
        assert_eq!(reclaim_dead_processes(a.member(), clock), 0);
        assert_eq!(a.heap_use(clock).blocks, 3);
        // What it had published stays; what others are writing too.
        for number in [1, 3] {
            assert!(find_and_fetch(b, number));
        }
        store(a, ours.payload(), &content(4));
        assert!(a.commit(clock, vec![(ours, checksum(&content(4)))])[0].is_ok());
        publish(a, clock, 2);
        for number in [2, 4] {
            assert!(find_and_fetch(b, number));
        }
    });
}

#[test]
fn a_block_that_was_taken_away_cannot_be_committed() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let other = rig.join(0);
        let cache = Cache::attach(&other, clock).unwrap();
        let block = reserve(&cache, clock, 2);
        // Wrongly believed dead: the block goes to somebody else.
        rig.kill(&other);
        assert_eq!(a.reap(clock), 1);
        let next = publish(a, clock, 2);
        let error = cache.commit(clock, vec![(block, 0)]).remove(0).unwrap_err();
        let CommitError::TakenAway { block } = error else { panic!("{error}") };
        assert_eq!(block.key(), key(2));
        drop(block);
        cache.abort(clock, Vec::new());
        assert_eq!(find(b, 2), Some(next));
        assert!(find_and_fetch(b, 2), "the one who lost it did not free it");
    });
}

#[test]
fn the_next_process_of_a_host_frees_what_the_last_one_left() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let other = rig.join(0);
        let slot = other.process();
        let cache = Cache::attach(&other, clock).unwrap();
        std::mem::forget(reserve(&cache, clock, 1));
        drop(cache);
        assert_eq!(other.leave(), LeaveOutcome::OthersRemain);
        assert_eq!(a.heap_use(clock).blocks, 1);
        let next = rig.join(0);
        assert_ne!(next.process(), slot, "a block names it");
        let cache = Cache::attach(&next, clock).unwrap();
        assert_eq!(cache.heap_use(clock).blocks, 0);
        assert_eq!(rig.join(0).process(), slot);
    });
}

#[test]
fn a_death_under_the_lock_is_swept_up() {
    death_under_the_lock(SimulatedRack::sticky(2, REGION_BYTES));
}

/// A process dies in the middle of everything. Also run with flushes and fences removed.
pub(super) fn death_under_the_lock(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=3).map(|number| publish(a, clock, number)).collect();
        let reading = open(b, 3, find(b, 3).unwrap()).unwrap();
        let before = a.heap_use(clock);

        let other = rig.join(0);
        let cache = Cache::attach(&other, clock).unwrap();
        let complete = reserve(&cache, clock, 4);
        store(&cache, complete.payload(), &content(4));
        std::mem::forget(other.lock_heap(clock));
        // A payload is taken, and no descriptor says so.
        let directory = Directory::new(other.application(), cache.geometry(), *other.layout());
        assert!(directory.take_payload(slot_size(), BLOCK_BYTES, |_| false).is_some());
        // A block is complete, and nobody was told.
        let (state, checksum) = (BlockState::Ready, checksum(&content(4)));
        let handle = complete.descriptor.handle;
        rewrite(&cache, handle, |block| Descriptor { state, checksum, ..block });
        std::mem::forget(complete);
        // Whether a block leaves is being considered, and somebody holds it.
        let state = BlockState::Evicting;
        rewrite(&cache, handles[2], |block| Descriptor { state, ..block });
        rig.kill(&other);

        let sweeps = a.process_state().metrics().sweeps;
        let after = HeapUse { blocks: 4, free_bytes: before.free_bytes - 8192, ..before };
        assert_eq!(a.heap_use(clock), after);
        assert_eq!(a.process_state().metrics().sweeps, sweeps + 1);
        for number in 1..=4 {
            assert!(find_and_fetch(b, number), "block {number}");
        }
        assert!(b.hold(clock, &[wanted(3, handles[2])], HOLD_MS)[0].is_ok(), "it is READY again");
        a.retire(clock, &handles[2..]);
        // Its payload is somebody else's by now.
        let reused = (5..=9).map(|number| {
            let block = reserve(a, clock, number);
            let payload = block.payload();
            store(a, payload, &content(number));
            std::mem::forget(block);
            payload
        });
        let reused: Vec<_> = reused.collect();
        assert!(reused.contains(&reading.payload()));
        assert_eq!(b.close(&[(reading, None)]), [Err(Miss::Changed)]);
    });
}

pub(super) fn slot_size() -> SlotSize {
    SlotSize::for_block(BLOCK_BYTES, CHUNK_BYTES).unwrap()
}

#[test]
fn a_panic_under_the_lock_is_swept_up() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        let before = a.heap_use(clock);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            a.locked(clock, |heap| {
                assert!(heap.directory.take_payload(slot_size(), BLOCK_BYTES, |_| false).is_some());
                panic!("in the middle");
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(a.heap_use(clock), before);
        assert!(find_and_fetch(b, 1));
    });
}

#[test]
fn a_chunk_that_its_allocator_never_used_is_found() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let other = rig.join(0);
        other.allocate_chunk(clock, CHUNK_TIMEOUT_MS, slot_size().purpose()).unwrap();
        rig.kill(&other);
        assert_eq!(a.heap_use(clock).free_bytes, 0);
        a.reap(clock);
        assert_eq!(a.heap_use(clock).free_bytes, 64 << 10);
        a.reap(clock);
        assert_eq!(a.heap_use(clock).free_bytes, 64 << 10);
        // Chunks of another kind are left alone.
        a.member().allocate_chunk(clock, CHUNK_TIMEOUT_MS, 5).unwrap();
        a.reap(clock);
        assert_eq!(a.heap_use(clock).free_bytes, 64 << 10);
    });
}

#[test]
fn a_host_that_comes_back_finds_what_it_had_published() {
    for crash in [false, true] {
        let rig = Rig::new(2, 32, 16);
        let (first, second) = (rig.join(0), rig.join(1));
        let clock = rig.serve(&[&first, &second]);
        let a = Cache::attach(&first, &clock).unwrap();
        let lost = rig.join(1);
        let handles: Vec<_> = {
            let b = Cache::attach(&second, &clock).unwrap();
            let handles = (1..=5).map(|number| publish(&b, &clock, number)).collect();
            std::mem::forget(reserve(&b, &clock, 6));
            std::mem::forget(reserve(&Cache::attach(&lost, &clock).unwrap(), &clock, 7));
            handles
        };
        assert!(find_and_fetch(&a, 1));
        drop(clock);
        if crash {
            rig.kill(&second);
            rig.kill(&lost);
            rig.rack.crash(1);
        } else {
            lost.leave();
            assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
        }
        // Whichever process dies, published blocks stay readable.
        assert!(find_and_fetch(&a, 2));

        let again = rig.join(1);
        let clock = rig.serve(&[&first, &again]);
        let b = Cache::attach(&again, &clock).unwrap();
        assert_eq!(again.incarnation().0, 2);
        let metrics = b.process_state().metrics();
        assert_eq!((metrics.sweeps, metrics.reclaimed_blocks), (1, 2), "crash: {crash}");
        assert_eq!(b.heap_use(&clock).blocks, 5);
        assert_eq!(b.heap_use(&clock).free_bytes, 24 << 10);
        for (number, handle) in (1..=5).zip(&handles) {
            for cache in [&a, &b] {
                assert_eq!(find(cache, number), Some(*handle), "crash: {crash}");
                assert_eq!(fetch(cache, number, *handle), Ok(()));
            }
        }
        // They are its own again: it can remove them, and use their space.
        assert_eq!(b.retire(&clock, &handles[..2]), 2);
        assert_eq!(find(&a, 1), None);
        for number in 6..=10 {
            publish(&b, &clock, number);
            assert!(find_and_fetch(&a, number), "crash: {crash}");
        }
        assert_eq!(again.owned_chunks().len(), 1, "no further chunk was needed");
    }
}

#[test]
fn a_host_tier_without_words_for_the_cache_is_refused() {
    let rig = Rig::new(2, 32, 16);
    let clock = rig.rack.clock(0);
    let memory =
        rig.rack.host_memory(0, HostTier::words_of(&Geometry { host_words: 8, ..rig.geometry }));
    let member = TestMember::join(
        rig.rack.host(0),
        memory,
        0,
        &HostIdentity::simulated(0),
        ProcessIdentity::new(1, 1),
        rig.deaths.clone(),
        &clock,
    );
    let error = Cache::attach(&member.unwrap(), &clock).unwrap_err();
    assert!(matches!(error, crate::AttachError::HostTier { words: 8, .. }), "{error}");
}
