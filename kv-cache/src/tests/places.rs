//! Processes that leave, and the next processes in their places of the registry (HOST-N1 in
//! `cxl_shm`'s `host/places.rs`): members with a cache and without one.

use super::*;
use crate::reclaim_dead_processes;
use crate::upkeep::Watermarks;

/// What every process of a host does now and then.
fn look_after(caches: &[&TestCache<'_>], clock: &impl Clock) {
    for cache in caches {
        cache.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        cache.reclaim_unfinished(clock);
        reclaim_dead_processes(cache.member(), clock);
    }
}

fn is_held(reader: &TestCache<'_>, handle: Handle) -> bool {
    let reader_words = reader.areas().own_reader_words(reader.member().area());
    reader_words.own(reader.member().fabric(), handle.owner(), handle.slot()).held
}

#[test]
fn what_a_process_left_is_freed_whichever_process_takes_its_place() {
    for place_is_wanted in [false, true] {
        let rig = Rig::new(2, 32, 16);
        on_two_hosts(&rig, |a, b, clock| {
            let handle = publish(a, clock, 1);
            let leaves = rig.join(1);
            let place = leaves.process();
            {
                let cache = Cache::attach(&leaves, clock).unwrap();
                std::mem::forget(hold(&cache, clock, 1).unwrap());
                std::mem::forget(reserve(&cache, clock, 2));
            }
            assert_eq!(leaves.leave(), LeaveOutcome::OthersRemain);
            // A thread that sends heartbeats, a lock manager, or a program that has no cache.
            let without_a_cache = place_is_wanted.then(|| rig.join(1));
            look_after(&[b], clock);
            assert!(!is_held(b, handle), "who left holds it; place wanted: {place_is_wanted}");
            publish(b, clock, 2);
            assert!(find_and_fetch(a, 2));
            drop(without_a_cache);
            assert_eq!(rig.join(1).process(), place, "nothing names it any more");
        });
    }
}

#[test]
fn a_late_release_takes_no_hold_of_another_process() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let leaves = rig.join(1);
        let place = leaves.process();
        let (late, process_state) = {
            let cache = Cache::attach(&leaves, clock).unwrap();
            (hold(&cache, clock, 1).unwrap(), Arc::clone(cache.process_state()))
        };
        // The thread ends; its process continues, and has the right to the block still.
        assert_eq!(leaves.leave(), LeaveOutcome::OthersRemain);
        look_after(&[b], clock);
        let heir = rig.join(1);
        assert_eq!(heir.process(), place);
        let ours = Cache::attach(&heir, clock).unwrap();
        let held = hold(&ours, clock, 1).unwrap();
        drop(late);
        let beside = rig.join(1);
        let other_thread = Cache::attach_beside(&beside, clock, process_state).unwrap();
        other_thread.release(clock, Vec::new());
        assert!(is_held(b, handle));
        assert_eq!(a.evict(clock, None, usize::MAX), 0, "it is held");
        assert!(find_and_fetch(&ours, 1));
        ours.release(clock, vec![held]);
        assert!(!is_held(b, handle));
    });
}

#[test]
fn a_chunk_that_was_being_given_back_takes_payload_again_whichever_process_comes() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let handle = publish(a, clock, 1);
        let chunk = a.areas().layout().chunk_of(open(a, 1, handle).unwrap().payload()).unwrap();
        let leaves = rig.join(0);
        {
            // It panics between the first step and the last, and is unwound.
            let cache = Cache::attach(&leaves, clock).unwrap();
            let process = leaves.process();
            cache.locked(clock, |heap| heap.directory.set_closing(Some((chunk, process))));
        }
        assert_eq!(leaves.leave(), LeaveOutcome::OthersRemain);
        let without_a_cache = rig.join(0);
        look_after(&[a], clock);
        assert_eq!(a.locked(clock, |heap| heap.directory.closing()), None);
        drop(without_a_cache);
    });
}
