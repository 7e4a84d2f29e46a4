//! Eviction: room without end, in the right order, whatever happens meanwhile.

use super::*;
use crate::heap::Quota;
use crate::upkeep::Watermarks;
use crate::{BlockKey, HeapUse};

/// As [`publish`], of a block so deep in its prefix.
fn publish_at(cache: &TestCache<'_>, clock: &impl Clock, number: u8, depth: u32) -> Handle {
    let spec = BlockSpec { depth, ..spec(number) };
    publish_for(cache, clock, &Namespace::default(), spec, number)
}

fn publish_for(
    cache: &TestCache<'_>,
    clock: &impl Clock,
    namespace: &Namespace,
    spec: BlockSpec,
    number: u8,
) -> Handle {
    let reserved = cache.reserve_for(clock, namespace, &[spec], CHUNK_TIMEOUT_MS).remove(0);
    let Reservation::Writing(block) = reserved else { panic!("block {number}: {reserved:?}") };
    let bytes: Vec<u8> =
        content(number).into_iter().cycle().take(usize::try_from(spec.bytes).unwrap()).collect();
    store(cache, block.payload(), &bytes);
    cache.commit(clock, vec![(block, checksum(&bytes))]).remove(0).unwrap().handle
}

fn evict(owner: &TestCache<'_>, clock: &impl Clock, want: usize) -> u64 {
    owner.evict(clock, None, want)
}

fn there(cache: &TestCache<'_>, numbers: impl IntoIterator<Item = u8>) -> Vec<u8> {
    numbers.into_iter().filter(|number| find(cache, *number).is_some()).collect()
}

#[test]
fn publishing_without_end_never_fails() {
    // More descriptors than payload slots, and the other way round.
    for slots in [256, 32] {
        let rig = Rig::new(2, slots, 64);
        on_two_hosts(&rig, |a, b, clock| {
            let mut refused = 0;
            for round in 0..3u32 {
                for number in 0..=255u8 {
                    let spec = BlockSpec { key: far_key(round, number), ..spec(number) };
                    publish_for(a, clock, &Namespace::default(), spec, number);
                    if number % 16 == 0 {
                        b.sync();
                    }
                }
                refused += a.process_state().metrics().refused;
            }
            assert_eq!(refused, 0);
            let metrics = a.process_state().metrics();
            assert_eq!(metrics.published_blocks, 768);
            let HeapUse { blocks, .. } = a.heap_use(clock);
            assert_eq!(metrics.evicted_blocks, 768 - blocks);
            assert_eq!(metrics.sweeps, 1, "the directory was never in doubt");
            // The newest are there, and right.
            let found = b.lookup(&[far_key(2, 255)]);
            let block = found.blocks()[0];
            let wanted = Wanted { key: block.key, ..wanted(255, block.handle) };
            let ticket = b.open(&[wanted]).remove(0).unwrap();
            assert_eq!(load(b, ticket.payload()), content(255));
        });
    }
}

fn far_key(round: u32, number: u8) -> BlockKey {
    let mut hash = [number; 32];
    hash[..4].copy_from_slice(&round.to_le_bytes());
    KeySpace::new(MODEL, Namespace::default(), BLOCK_BYTES).key(&BlockHash::new(hash))
}

#[test]
fn leaves_go_before_their_ancestors_and_old_prefixes_before_new_ones() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        for first in [10, 20] {
            for depth in 0..4 {
                publish_at(a, clock, first + depth, u32::from(depth));
            }
        }
        let all = || (10..14).chain(20..24);
        assert_eq!(evict(a, clock, 2), 2);
        assert_eq!(there(b, all()), [10, 11, 20, 21, 22, 23]);
        assert_eq!(evict(a, clock, 3), 3);
        assert_eq!(there(b, all()), [20, 21, 22]);
    });
}

#[test]
fn what_was_used_on_any_host_gets_another_round() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        for number in 1..=6 {
            publish_at(a, clock, number, 0);
        }
        // The owner has looked at all reader words before, so that its caches hold them.
        let held = hold(b, clock, 6).unwrap();
        evict(a, clock, 0);
        let slots: Vec<_> = (1..=6).map(|number| find(a, number).unwrap().slot()).collect();
        let now_ms = clock.now_ms();
        a.locked(clock, |heap| {
            heap.look_at_reader_words(&mut crate::evict::HoldWatch::default(), &slots, now_ms)
        });
        b.release(clock, vec![held]);
        assert!(find_and_fetch(b, 1) && find_and_fetch(a, 3));
        b.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        a.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        assert_eq!(evict(a, clock, 3), 3);
        assert_eq!(there(b, 1..=6), [1, 3, 6]);
        // Another round, not for ever.
        assert_eq!(evict(a, clock, 3), 3);
        assert_eq!(there(b, 1..=6), [0; 0]);
    });
}

#[test]
fn an_order_that_was_never_kept_is_made_from_what_is_there() {
    let rig = Rig::new(2, 64, 8);
    on_two_hosts(&rig, |a, b, clock| {
        // More than the log remembers; another process of the host evicts.
        for number in 0..20 {
            publish_at(a, clock, number, u32::from(number % 5));
        }
        let other = rig.join(0);
        let cache = Cache::attach(&other, clock).unwrap();
        assert_eq!(evict(&cache, clock, 4), 4);
        assert_eq!(there(b, 0..12), [0, 1, 2, 5, 6, 7, 10, 11], "leaves of what is old");
        // And the first one finds out, whatever it knew.
        assert_eq!(evict(a, clock, 64), 16);
        assert_eq!(a.heap_use(clock).blocks, 0);
        assert_eq!(there(b, 0..20), [0; 0]);
    });
}

#[test]
fn a_namespace_over_its_quota_gives_first() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let (greedy, modest) = (Namespace::new("greedy", b""), Namespace::new("modest", b""));
        assert_ne!(greedy.tag(), modest.tag());
        // A slot takes two pages.
        a.set_quota(clock, &greedy, Some(Quota::Bytes(3 * 8192))).unwrap();
        a.set_quota(clock, &modest, Some(Quota::Percent(50))).unwrap();
        for number in 0..3 {
            publish_for(a, clock, &modest, spec(number), number);
        }
        for number in 10..13 {
            publish(a, clock, number);
        }
        for number in 20..25 {
            publish_for(a, clock, &greedy, spec(number), number);
        }
        let all = || (0..3).chain(10..13).chain(20..25);
        // What is over its quota, though it is the newest; then what has none; then the rest.
        assert_eq!(evict(a, clock, 2), 2);
        assert_eq!(there(b, all()), [0, 1, 2, 10, 11, 12, 22, 23, 24]);
        assert_eq!(evict(a, clock, 3), 3);
        assert_eq!(there(b, all()), [0, 1, 2, 22, 23, 24]);
        a.set_quota(clock, &greedy, None).unwrap();
        assert_eq!(evict(a, clock, 3), 3);
        assert_eq!(there(b, all()), [0, 1, 2]);
        assert_eq!(evict(a, clock, 9), 3);
    });
}

#[test]
fn between_the_watermarks_it_happens_in_the_background() {
    let rig = Rig::new(2, 256, 256);
    on_two_hosts(&rig, |a, b, clock| {
        let marks = Watermarks::new(90, 75).unwrap();
        let most = u8::try_from(a.member().layout().chunks() * 8).unwrap();
        for number in 0..most {
            publish(a, clock, number);
        }
        let done = a.upkeep(clock, marks, CHUNK_TIMEOUT_MS);
        let left = u64::from(most) * 750 / 1000;
        assert_eq!(done.evicted_blocks, u64::from(most) - left);
        assert_eq!(a.heap_use(clock).blocks, left);
        assert_eq!(a.upkeep(clock, marks, CHUNK_TIMEOUT_MS).evicted_blocks, 0);
        // The publishes after it find room.
        for number in 0..10 {
            publish(a, clock, 200 + number);
        }
        assert_eq!(a.process_state().metrics().evictions_inline, 0);
        assert!(find_and_fetch(b, 209));
    });
}

#[test]
fn blocks_of_another_size_make_room_by_the_chunk() {
    let rig = Rig::new(1, 256, 64);
    let member = rig.join(0);
    let clock = rig.serve(&[&member]);
    let a = Cache::attach(&member, &clock).unwrap();
    let most = u8::try_from(member.layout().chunks() * 8).unwrap();
    for number in 0..most {
        publish(&a, &clock, number);
    }
    // One chunk cannot be emptied: what is in it is held.
    let held = hold(&a, &clock, 0).unwrap();
    for number in 0..30 {
        let spec = BlockSpec { bytes: 40_000, ..spec(200 + number) };
        publish_for(&a, &clock, &Namespace::default(), spec, 200 + number);
    }
    assert_eq!(a.process_state().metrics().refused, 0);
    assert!(a.process_state().metrics().chunks_returned > 0);
    assert!(find_and_fetch(&a, 0), "it was held");
    drop(held);
    assert_eq!(rig.rack.conflicts(), []);
}

#[test]
fn chunks_go_to_the_node_that_has_none() {
    let rig = Rig::new(2, 256, 64);
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let (a, b) = (Cache::attach(&first, &clock).unwrap(), Cache::attach(&second, &clock).unwrap());
    let chunks = first.layout().chunks();
    let most = u8::try_from(chunks * 8).unwrap();
    for number in 0..most {
        publish(&a, &clock, number);
    }
    // Used lately: the last chunk.
    for number in most - 8..most {
        assert!(find_and_fetch(&a, number));
    }
    assert_eq!(a.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS).chunks_returned, 0);

    // The other one asks while it waits, and the first answers.
    let asking = Answering { below: &clock, owner: &a, answered: Cell::new(false) };
    let block = b.reserve(&asking, &[spec(250)], CHUNK_TIMEOUT_MS).remove(0);
    assert!(matches!(block, Reservation::Writing(_)), "{block:?}");
    assert_eq!((first.owned_chunks().len(), second.owned_chunks().len()), (chunks as usize - 1, 1));
    assert_eq!(a.process_state().metrics().chunks_returned, 1);
    drop(block);
    // Whatever has gone with the chunk is said to be gone.
    let left = there(&b, 0..most);
    assert!(left.len() <= usize::from(most) - 8 && left.iter().all(|it| find_and_fetch(&b, *it)));
    assert_eq!(rig.rack.conflicts(), []);
}

/// A clock on which the owner of all chunks does its upkeep while somebody waits.
struct Answering<'a, 'm> {
    below: &'a ServingClock<'m>,
    owner: &'a TestCache<'m>,
    answered: Cell<bool>,
}

impl Clock for Answering<'_, '_> {
    fn now_ms(&self) -> u64 {
        self.below.now_ms()
    }

    fn pause(&self, tries: u32) {
        self.below.pause(tries);
        if self.owner.member().chunks_requested() > 0 && !self.answered.replace(true) {
            self.owner.upkeep(self.below, Watermarks::default(), CHUNK_TIMEOUT_MS);
        }
    }
}

#[test]
fn a_chunk_that_was_being_given_back_is_used_on_or_is_gone() {
    for given in [false, true] {
        let rig = Rig::new(2, 64, 64);
        on_two_hosts(&rig, |a, b, clock| {
            publish(a, clock, 1);
            let (chunk, _) = a.member().owned_chunks()[0];
            let other = rig.join(0);
            // It died when the chunk was closed, or when it was given back and not yet forgotten.
            a.locked(clock, |heap| heap.directory.set_closing(Some((chunk, other.process()))));
            if given {
                let handle = find(a, 1).unwrap();
                a.retire(clock, &[handle]);
                other.free_chunk(clock, CHUNK_TIMEOUT_MS, chunk).unwrap();
            }
            let before = reserve(a, clock, 2);
            assert_ne!(a.member().layout().chunk_of(before.payload()), Some(chunk), "EVICT-V7");
            a.abort(clock, vec![before]);
            rig.kill(&other);
            crate::reclaim_dead_processes(a.member(), clock);
            a.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
            for number in 2..12 {
                publish(a, clock, number);
                assert!(find_and_fetch(b, number));
            }
            assert_eq!(there(b, [1]).is_empty(), given);
            let owned = a.member().owned_chunks().len() as u64;
            let HeapUse { blocks, free_bytes, .. } = a.heap_use(clock);
            assert_eq!(blocks * 8192 + free_bytes, owned * CHUNK_BYTES, "given: {given}");
        });
    }
}

#[test]
fn searches_stay_short_however_much_was_evicted() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        for round in 0..20 {
            (0..40).for_each(|number| {
                let spec = BlockSpec { key: far_key(round, number), ..spec(number) };
                publish_for(a, clock, &Namespace::default(), spec, number);
            });
            let left = evict(a, clock, 64);
            assert!(left > 0);
        }
        assert_eq!(a.heap_use(clock).blocks, 0);
        let segment = b.segment(a.member().node()).unwrap();
        segment.scan(b.member().fabric(), |slot, content| {
            let ends = matches!(
                content,
                Ok(SlotContent::Blank | SlotContent::Free { ends_search: true, .. })
            );
            assert!(ends, "slot {slot}: {content:?}");
        });
        // And nothing is lost to a search that ends too soon.
        for number in 0..40 {
            publish(a, clock, number);
        }
        let handles: Vec<_> = (0..40).step_by(3).map(|number| find(a, number).unwrap()).collect();
        a.retire(clock, &handles);
        for number in 0..40 {
            let found = segment.probe(b.member().fabric(), key(number));
            assert_eq!(found.is_some(), number % 3 != 0, "block {number}");
            let again = a.reserve(clock, &[spec(number)], CHUNK_TIMEOUT_MS).remove(0);
            assert_eq!(matches!(again, Reservation::AlreadyThere), number % 3 != 0);
        }
    });
}

#[test]
fn the_copy_of_the_first_owner_is_the_one_that_is_used() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let (ours, theirs) = (reserve(a, clock, 1), reserve(b, clock, 1));
        for (cache, block) in [(b, theirs), (a, ours)] {
            let bytes = content(1);
            store(cache, block.payload(), &bytes);
            cache.commit(clock, vec![(block, checksum(&bytes))]).remove(0).unwrap();
        }
        for cache in [a, b] {
            assert_eq!(find(cache, 1).map(|handle| handle.owner().0), Some(0));
        }
        evict(a, clock, 1);
        for cache in [a, b] {
            assert_eq!(find(cache, 1).map(|handle| handle.owner().0), Some(1));
            assert!(find_and_fetch(cache, 1));
        }
    });
}

#[test]
fn misses_tell_why() {
    let rig = Rig::new(2, 32, 16);
    let (first, second) = (rig.join(0), rig.join(1));
    let (evicted, writing, spilled);
    {
        let clock = rig.serve(&[&first, &second]);
        let a = Cache::attach(&first, &clock).unwrap();
        let b = Cache::attach(&second, &clock).unwrap();
        evicted = publish(&b, &clock, 1);
        evict(&b, &clock, 1);
        assert_eq!(open(&a, 1, evicted), Err(Miss::Evicted));
        spilled = publish(&b, &clock, 2);
        let payload = Extent::new(0, BLOCK_BYTES).unwrap();
        rewrite(&b, spilled, |it| Descriptor { state: BlockState::Spilled, payload, ..it });
        assert_eq!(open(&a, 2, spilled), Err(Miss::Spilled));
        let block = reserve(&b, &clock, 3);
        writing = block.descriptor.handle;
        std::mem::forget(block);
        assert_eq!(open(&a, 3, writing), Err(Miss::NotReady));
        // What failed once is not tried again, though it may be good by now.
        rewrite(&b, writing, |it| Descriptor { state: BlockState::Ready, ..it });
        assert_eq!(open(&a, 3, writing), Err(Miss::Quarantined));
        rewrite(&b, writing, |it| Descriptor { state: BlockState::Writing, ..it });
    }
    rig.kill(&second);
    rig.rack.crash(1);
    let again = rig.join(1);
    let clock = rig.serve(&[&first, &again]);
    let a = Cache::attach(&first, &clock).unwrap();
    assert_eq!(open(&a, 3, writing), Err(Miss::OwnerDead), "its owner has another life");
    drop(clock);
    assert_eq!(again.leave(), LeaveOutcome::NodeLeft);
    assert_eq!(open(&a, 2, spilled), Err(Miss::OwnerDead), "nobody can read that drive");
    assert_eq!(a.process_state().metrics().misses(Miss::OwnerDead), 2);
}
