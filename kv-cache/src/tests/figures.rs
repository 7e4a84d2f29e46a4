//! What the processes of a host have counted together, and what is in the pool.

use super::recovery::slot_size;
use super::*;
use crate::{Histogram, Latency, Metrics};

/// What came less what left is what is there.
fn check(cache: &TestCache<'_>, clock: &impl Clock, there: u64) -> Metrics {
    cache.locked(clock, |_| ());
    let sums = cache.host_figures().metrics();
    let came = sums.published_blocks + sums.promoted_blocks + sums.found_blocks;
    let bytes = sums.published_bytes + sums.promoted_bytes + sums.found_bytes;
    assert_eq!(came - sums.removed_blocks, there, "{sums:?}");
    assert_eq!(bytes - sums.removed_bytes, there * BLOCK_BYTES, "{sums:?}");
    let now = cache.occupancy(clock);
    assert_eq!((now.ready_blocks, now.writing_blocks), (there, 0));
    assert_eq!(now.used_bytes, there * slot_size().bytes());
    assert_eq!(now.free_bytes, cache.heap_use(clock).free_bytes);
    sums
}

#[test]
fn blocks_that_came_less_those_that_left_are_there() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=6).map(|number| publish(a, clock, number)).collect();
        check(a, clock, 6);
        assert_eq!(a.retire(clock, &handles[..2]), 2);
        assert_eq!(a.evict(clock, None, 1), 1);
        drop(reserve(a, clock, 9));
        let block = reserve(a, clock, 10);
        store(a, block.payload(), &content(10));
        let restored = a.commit_restored(clock, vec![(block, checksum(&content(10)))]);
        assert!(restored[0].is_ok());
        let sums = check(a, clock, 4);
        assert_eq!((sums.published_blocks, sums.promoted_blocks), (6, 1));
        assert_eq!((sums.removed_blocks, sums.evicted_blocks), (3, 1));
        assert_eq!(a.process_state().metrics().published_blocks, 6);
        assert!(find_and_fetch(b, 10));
        assert_eq!(b.host_figures().metrics().fetched_blocks, 1);
        assert_eq!(b.host_figures().metrics().published_blocks, 0, "a word of another host");
        assert_eq!(a.host_figures().metrics().fetched_blocks, 0);
    });
}

#[test]
fn a_process_that_died_stays_in_the_sums() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let other = rig.join(0);
        let cache = Cache::attach(&other, clock).unwrap();
        for number in 1..=3 {
            publish(&cache, clock, number);
        }
        cache.took(Latency::Publish, 0, clock);
        // A block is complete, and its process dies before it has counted that.
        let complete = reserve(&cache, clock, 4);
        store(&cache, complete.payload(), &content(4));
        let (state, checksum) = (BlockState::Ready, checksum(&content(4)));
        let handle = complete.descriptor.handle;
        std::mem::forget(other.lock_heap(clock));
        rewrite(&cache, handle, |block| Descriptor { state, checksum, ..block });
        std::mem::forget(complete);
        rig.kill(&other);
        let sums = check(a, clock, 4);
        assert_eq!((sums.published_blocks, sums.found_blocks), (3, 1));
        let publishes: Histogram = a.host_figures().latencies(Latency::Publish);
        assert_eq!((publishes.count(), a.process_state().metrics().published_blocks), (1, 0));
        a.retire(clock, &[handle]);
        check(a, clock, 3);
    });
}

#[test]
fn a_host_that_joins_anew_finds_its_blocks() {
    let rig = Rig::new(2, 32, 16);
    let (first, second) = (rig.join(0), rig.join(1));
    {
        let clock = rig.serve(&[&first, &second]);
        let cache = Cache::attach(&second, &clock).unwrap();
        for number in 1..=3 {
            publish(&cache, &clock, number);
        }
        assert_eq!(check(&cache, &clock, 3).found_blocks, 0);
    }
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    let again = rig.join(1);
    let clock = rig.serve(&[&first, &again]);
    let cache = Cache::attach(&again, &clock).unwrap();
    assert_eq!(check(&cache, &clock, 3).found_blocks, 3);
}
