//! Blocks published on one host and fetched on another.

use super::*;
use crate::BlockKey;

#[test]
fn a_block_is_found_and_fetched_on_another_host() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        assert_eq!(find(b, 1), None);
        for number in 1..=10 {
            publish(a, clock, number);
        }
        let keys: Vec<_> = (1..=12).map(key).collect();
        let found = b.lookup(&keys);
        assert_eq!(found.blocks().len(), 10);
        for (number, block) in (1..).zip(found.blocks()) {
            assert_eq!(block.key, key(number));
            assert_eq!(fetch(b, number, block.handle), Ok(()));
        }
        // The publisher finds them too, by its own log.
        assert_eq!(a.lookup(&keys), found);

        let (published, fetched) = (a.process_state().metrics(), b.process_state().metrics());
        assert_eq!((published.published_blocks, published.chunks_added), (10, 2));
        assert_eq!(published.published_bytes, 10 * BLOCK_BYTES);
        assert_eq!((fetched.fetched_blocks, fetched.fetched_bytes), (10, 10 * BLOCK_BYTES));
        assert_eq!((fetched.lookup_blocks, fetched.lookup_hits), (13, 10));
        assert_eq!((fetched.log_entries, fetched.replica_blocks), (10, 10));
        assert_eq!(fetched.rescans, 0, "the log said it all");
        assert_eq!(fetched.all_misses().map(|(_, count)| count).sum::<u64>(), 0);
    });
}

#[test]
fn a_prefix_ends_at_the_first_block_that_is_missing() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        for number in [1, 2, 4] {
            publish(a, clock, number);
        }
        let keys = [1, 2, 3, 4].map(key);
        assert_eq!(b.lookup(&keys).blocks().len(), 2);
        assert_eq!(b.lookup(&keys[2..]).blocks().len(), 0);
        assert_eq!(b.lookup(&[]).blocks().len(), 0);
    });
}

#[test]
fn a_block_is_invisible_until_it_is_committed() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let block = reserve(a, clock, 1);
        let handle = block.descriptor.handle;
        assert_eq!(find(a, 1), None);
        assert_eq!(find(b, 1), None);
        // A reader that guesses the handle sees, freshly, that the block is being written
        // (EVICT-H2).
        assert_eq!(open(b, 1, handle), Err(Miss::NotReady));
        assert_eq!(b.segment(handle.owner()).unwrap().probe(b.member().fabric(), key(1)), None);
        let bytes = content(1);
        store(a, block.payload(), &bytes);
        a.commit(clock, vec![(block, checksum(&bytes))]).remove(0).unwrap();
        // That process does not believe in the block it tried too early; others do.
        assert_eq!(find(b, 1), None);
        assert_eq!(find(a, 1), Some(handle));
    });
}

#[test]
fn any_host_can_search_a_segment_with_loads_alone() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=10).map(|number| publish(a, clock, number)).collect();
        a.retire(clock, &handles[..3]);
        let segment = b.segment(a.member().node()).unwrap();
        for (number, handle) in (1..=10).zip(handles) {
            let found = segment.probe(b.member().fabric(), key(number));
            let expected = (number > 3).then_some(handle);
            assert_eq!(found.map(|block| block.handle), expected, "block {number}");
            let Some(Descriptor { state, payload, checksum: sum, .. }) = found else {
                continue;
            };
            assert_eq!((state, payload.bytes()), (BlockState::Ready, BLOCK_BYTES));
            assert_eq!(sum, checksum(&content(number)));
        }
        assert_eq!(segment.probe(b.member().fabric(), key(99)), None);
    });
}

#[test]
fn a_retired_block_is_a_miss_and_forgotten() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        let handle = find(b, 1).unwrap();
        assert_eq!(fetch(b, 1, handle), Ok(()));
        assert_eq!(b.retire(clock, &[handle]), 0, "only the owner removes");
        assert_eq!(a.retire(clock, &[handle, handle]), 1);
        assert_eq!(a.retire(clock, &[handle]), 0);
        assert_eq!(fetch(b, 1, handle), Err(Miss::Absent));
        assert_eq!((find(a, 1), find(b, 1)), (None, None));

        // The same descriptor's next block is another one.
        let next = publish(a, clock, 1);
        assert_eq!((next.slot(), next.generation()), (handle.slot(), handle.generation() + 1));
        assert_eq!(fetch(b, 1, handle), Err(Miss::StaleGeneration));
        assert_eq!(find(b, 1), Some(next), "a stale failure does not hide the new block");
        assert_eq!(fetch(b, 1, next), Ok(()));
    });
}

#[test]
fn a_removal_is_announced_to_who_never_fetched() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        assert_eq!(find(b, 1), Some(handle));
        a.retire(clock, &[handle]);
        assert_eq!(find(b, 1), None);
        assert_eq!(b.process_state().metrics().replica_blocks, 0);
    });
}

#[test]
fn the_second_look_notices_what_happened_during_the_copy() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        // Only removed, without and with its payload taken by the next block.
        for reused in [false, true] {
            let handle = publish(a, clock, 1);
            let ticket = open(b, 1, handle).unwrap();
            a.retire(clock, &[handle]);
            if reused {
                let next = reserve(a, clock, 2);
                assert_eq!(next.payload(), ticket.payload());
                store(a, next.payload(), &content(2));
                let checksum = checksum(&content(2));
                a.commit(clock, vec![(next, checksum)]).remove(0).unwrap();
            }
            // Where no checksum is computed, nothing else would notice.
            assert_eq!(b.close(&[(ticket, None)]), [Err(Miss::Changed)]);
        }
        assert_eq!(b.process_state().metrics().misses(Miss::Changed), 2);
    });
}

#[test]
fn a_block_that_is_considered_for_removal_is_still_good() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let set_state = |state| rewrite(a, handle, |block| Descriptor { state, ..block });
        // EVICT-H2: at the first look, at the second, and back.
        let ticket = open(b, 1, handle).unwrap();
        set_state(BlockState::Evicting);
        assert_eq!(b.close(&[(ticket, None)]), [Ok(())]);
        let ticket = open(b, 1, handle).unwrap();
        set_state(BlockState::Ready);
        assert_eq!(b.close(&[(ticket, None)]), [Ok(())]);
        let ticket = open(b, 1, handle).unwrap();
        set_state(BlockState::Writing);
        assert_eq!(b.close(&[(ticket, None)]), [Err(Miss::Changed)]);
    });
}

#[test]
fn foreign_blocks_are_misses() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        // Of another model, or of other tokens.
        let colliding = |number: u8| BlockKey::new(key(number).index(), key(number).witness() ^ 1);
        let wrong = [
            (Miss::WrongKey, wanted(9, publish(a, clock, 1))),
            (Miss::KeyCollision, Wanted { key: colliding(2), ..wanted(2, publish(a, clock, 2)) }),
            (Miss::WrongLength, Wanted { bytes: 4096, ..wanted(3, publish(a, clock, 3)) }),
        ];
        for (number, (reason, foreign)) in (1..).zip(wrong) {
            assert_eq!(b.open(&[foreign]), [Err(reason)]);
            assert_eq!(b.process_state().metrics().misses(reason), 1);
            // Nothing is wrong with the block: another reader gets it.
            assert!(find_and_fetch(b, number), "{reason}");
            assert_eq!(b.open(&[foreign]), [Err(reason)]);
            assert!(find_and_fetch(b, number), "{reason}");
        }
        let (node, slots) = (a.member().node(), a.geometry().descriptor_slots());
        let outside = [
            Handle::new(node, slots, 1),
            Handle::new(node, u32::MAX, 1),
            Handle::new(cxl_shm::units::NodeId(2), 0, 1),
        ];
        for handle in outside {
            assert_eq!(open(b, 1, handle), Err(Miss::Malformed));
            assert_eq!(a.retire(clock, &[handle]), 0);
        }
    });
}

#[test]
fn a_block_is_published_once() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        // In one batch, and while it is being written.
        let mut batch = a.reserve(clock, &[spec(1), spec(1)], CHUNK_TIMEOUT_MS);
        assert!(matches!(batch.remove(1), Reservation::AlreadyThere));
        let Reservation::Writing(block) = batch.remove(0) else { panic!("the first is written") };
        let again = a.reserve(clock, &[spec(1)], CHUNK_TIMEOUT_MS);
        assert!(matches!(again[..], [Reservation::AlreadyThere]));
        // Two hosts may write the same block at once, which costs space and nothing else.
        let theirs = publish(b, clock, 1);
        let bytes = content(1);
        store(a, block.payload(), &bytes);
        let ours = a.commit(clock, vec![(block, checksum(&bytes))]).remove(0).unwrap().handle;
        for cache in [a, b] {
            let handle = find(cache, 1).unwrap();
            assert!([ours, theirs].contains(&handle));
            assert_eq!(fetch(cache, 1, handle), Ok(()));
            assert_eq!(cache.process_state().metrics().replica_blocks, 2);
        }
        // Once it is announced nobody writes it again.
        for cache in [a, b] {
            let again = cache.reserve(clock, &[spec(1)], CHUNK_TIMEOUT_MS);
            assert!(matches!(again[..], [Reservation::AlreadyThere]));
        }
        // When one copy goes the other is found.
        a.retire(clock, &[ours]);
        assert_eq!(find(b, 1), Some(theirs));
        assert_eq!(find(a, 1), Some(theirs));
    });
}

#[test]
fn threads_of_a_process_share_what_it_knows() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        assert!(find(b, 1).is_some());
        let thread = rig.join(1);
        let beside = Cache::attach_beside(&thread, clock, Arc::clone(b.process_state())).unwrap();
        assert!(find_and_fetch(&beside, 1));
        assert_eq!(b.process_state().metrics().fetched_blocks, 1);
        assert_eq!(b.process_state().metrics().log_entries, 1, "read once for both");
    });
}
