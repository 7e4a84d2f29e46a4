//! Running out of space, and getting it back.

use super::orphan::{ORPHAN, Off, declare_dead, is_recovered};
use super::*;
use crate::{Refusal, heap::SlotSize};
use cxl_shm::chunk::AllocateError;
use cxl_shm::layout::CHUNK_LOCK;
use cxl_shm::lock::LockError;

#[test]
fn a_dropped_or_aborted_block_gives_its_space_back() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        drop(reserve(a, clock, 1));
        let unused = a.heap_use(clock);
        assert_eq!((unused.blocks, unused.free_bytes), (0, 64 << 10));
        let (first, second) = (reserve(a, clock, 1), reserve(a, clock, 2));
        assert_eq!(a.heap_use(clock).free_bytes, 48 << 10);
        a.abort(clock, vec![first, second]);
        assert_eq!(a.heap_use(clock), unused);
        assert_eq!(a.process_state().metrics().aborted_blocks, 3);
        assert_eq!(find(b, 1), None);
        // A freed slot can be reserved again, as another generation.
        assert_eq!(publish(a, clock, 1).generation(), 3);
        assert!(find_and_fetch(b, 1));
    });
}

#[test]
fn a_full_pool_makes_room_and_refuses_what_is_held() {
    let rig = Rig::new(2, 256, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let chunks = a.member().layout().chunks();
        let most = u8::try_from(chunks * 8).unwrap();
        let handles: Vec<_> = (0..most).map(|number| publish(a, clock, number)).collect();
        let refused = b.reserve(clock, &[spec(250), spec(251)], CHUNK_TIMEOUT_MS);
        for reservation in &refused {
            let Reservation::Refused(Refusal::NoChunk(error)) = reservation else {
                panic!("{reservation:?}");
            };
            assert!(matches!(error, AllocateError::Exhausted { own: 0, .. }), "{error}");
        }
        assert_eq!(b.process_state().metrics().refused, 2);
        assert_eq!(a.heap_use(clock).free_bytes, 0);
        a.retire(clock, &handles[3..5]);
        let there: Vec<_> = (0..most).filter(|number| !(3..5).contains(number)).collect();
        let keep: Vec<_> = there.iter().skip(1).map(|number| hold(b, clock, *number)).collect();
        assert!(keep.iter().all(Result::is_ok));
        let specs: Vec<_> = (250..254).map(spec).collect();
        let partly = a.reserve(clock, &specs, CHUNK_TIMEOUT_MS);
        let written = partly.iter().filter(|one| matches!(one, Reservation::Writing(_))).count();
        assert_eq!(written, 3, "two slots were free, one block is not held");
        assert!(matches!(partly[3], Reservation::Refused(Refusal::NoChunk(_))), "{:?}", partly[3]);
        assert_eq!(a.process_state().metrics().evicted_blocks, 1);
        assert_eq!(find(b, there[0]), None);
        for number in &there[1..] {
            assert!(find_and_fetch(b, *number), "block {number} is held");
        }
    });
}

#[test]
fn without_a_lock_manager_publishing_goes_on_while_there_are_slots() {
    let rig = Rig::new(2, 32, 16);
    let (first, second) = (rig.join(0), rig.join(1));
    let (a, b, clock);
    {
        let served = rig.serve(&[&first, &second]);
        a = Cache::attach(&first, &served).unwrap();
        publish(&a, &served, 1);
    }
    // The manager has stopped.
    clock = rig.rack.clock(0);
    b = Cache::attach(&second, &clock).unwrap();
    for number in 2..=8 {
        publish(&a, &clock, number);
        assert!(find_and_fetch(&b, number));
    }
    // There is room in the region, and nobody who grants it. A batch waits for that once, and then
    // evicts what this node has; the last block of it too many is refused.
    let held: Vec<_> = (2..=8).map(|number| hold(&b, &clock, number).unwrap()).collect();
    let began_ms = clock.now_ms();
    let outcomes = a.reserve(&clock, &[spec(9), spec(10)], CHUNK_TIMEOUT_MS);
    let waited_ms = clock.now_ms() - began_ms;
    assert!(waited_ms < 2 * CHUNK_TIMEOUT_MS, "it waited for {waited_ms} ms");
    assert!(matches!(outcomes[0], Reservation::Writing(_)), "{outcomes:?}");
    let Reservation::Refused(Refusal::NoChunk(AllocateError::Lock(error))) = &outcomes[1] else {
        panic!("{outcomes:?}");
    };
    let waited = matches!(error, LockError::TimedOut { .. } | LockError::ManagerSilent { .. });
    assert!(waited, "{error}");
    assert_eq!(a.process_state().metrics().evicted_blocks, 1);
    assert_eq!(find(&b, 1), None);
    assert!(find_and_fetch(&b, 8));
    // The silence ends no publish for as long as something can be evicted.
    b.release(&clock, held);
    drop(outcomes);
    for number in 11..=40 {
        publish(&a, &clock, number);
        assert!(find_and_fetch(&b, number));
    }
}

#[test]
fn a_chunk_lock_that_others_hold_is_waited_for_once_in_a_call() {
    let rig = Rig::new(3, 256, 16);
    let wall = rig.rack.clock(0);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&first, &second, &third]);
        publish(&Cache::attach(&second, &clock).unwrap(), &clock, 1);
    }
    rig.kill(&second);
    let clock = rig.serve(&[&first, &third]);
    declare_dead(&rig, &clock, &wall, ORPHAN, Off, is_recovered);
    let a = Cache::attach(&first, &clock).unwrap();
    // The vacant node has one chunk, and the first node all others. Nothing of it can be evicted.
    let last = u8::try_from((first.layout().chunks() - 1) * 8).unwrap() + 1;
    let writing: Vec<_> = (2..=last).map(|number| reserve(&a, &clock, number)).collect();
    let held = third.lock_shared(CHUNK_LOCK, &clock, CHUNK_TIMEOUT_MS).unwrap();
    let began_ms = clock.now_ms();
    let outcomes = a.reserve(&clock, &[spec(250)], CHUNK_TIMEOUT_MS);
    let waited_ms = clock.now_ms() - began_ms;
    assert!(waited_ms < CHUNK_TIMEOUT_MS * 3 / 2, "it waited for {waited_ms} ms");
    let Reservation::Refused(Refusal::NoChunk(AllocateError::Lock(error))) = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert!(matches!(error, LockError::TimedOut { .. }), "{error}");
    // With the lock the chunk of the vacant node is had.
    drop(held);
    let outcomes = a.reserve(&clock, &[spec(250)], CHUNK_TIMEOUT_MS);
    assert!(matches!(outcomes[0], Reservation::Writing(_)), "{outcomes:?}");
    drop(writing);
}

#[test]
fn a_full_segment_makes_room_and_reuses_its_tombstones() {
    let rig = Rig::new(2, 8, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=6).map(|number| publish(a, clock, number)).collect();
        let held: Vec<_> = (1..=6).map(|number| hold(b, clock, number).unwrap()).collect();
        let refused = a.reserve(clock, &[spec(7)], CHUNK_TIMEOUT_MS);
        let expected = Refusal::SegmentFull { blocks: 6, slots: 8 };
        assert!(matches!(&refused[0], Reservation::Refused(found) if *found == expected));
        for round in 0..5 {
            a.retire(clock, &[publish_or(&handles, a, clock, round)]);
            let handle = publish(a, clock, 100 + round);
            assert!(find_and_fetch(b, 100 + round), "round {round}");
            a.retire(clock, &[handle]);
            assert_eq!(a.heap_use(clock).blocks, 5);
        }
        for number in 2..=6 {
            assert!(find_and_fetch(b, number));
        }
        b.release(clock, held);
        for number in 60..90 {
            publish(a, clock, number);
            assert!(find_and_fetch(b, number));
            assert!(a.heap_use(clock).blocks <= 6);
        }
    });
}

/// The first block in round 0, one that is published for it in later rounds.
fn publish_or(handles: &[Handle], cache: &TestCache<'_>, clock: &impl Clock, round: u8) -> Handle {
    if round == 0 { handles[0] } else { publish(cache, clock, 50 + round) }
}

#[test]
fn blocks_of_several_sizes_live_in_chunks_of_their_own() {
    let rig = Rig::new(2, 64, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let sizes = [1, 4096, 4097, 65536, 5000, 65536];
        let specs = (1..).zip(sizes).map(|(number, bytes)| BlockSpec { bytes, ..spec(number) });
        let specs: Vec<_> = specs.collect();
        let reserved = a.reserve(clock, &specs, CHUNK_TIMEOUT_MS);
        let mut payloads = Vec::new();
        for (reservation, bytes) in reserved.iter().zip(sizes) {
            let Reservation::Writing(block) = reservation else { panic!("{reservation:?}") };
            let payload = block.payload();
            assert_eq!(payload.bytes(), bytes);
            assert!(payload.offset().is_multiple_of(4096), "payload starts on a page (MEM-M6)");
            assert!(a.member().layout().chunk_of(payload).is_some());
            payloads.push(Extent::new(payload.offset(), bytes.next_multiple_of(4096)).unwrap());
        }
        payloads.sort_by_key(|payload| payload.offset());
        assert!(payloads.windows(2).all(|pair| pair[0].end() <= pair[1].offset()));
        assert_eq!(a.member().owned_chunks().len(), 4, "one for each size of slot, two for 64 KiB");
    });
}

#[test]
fn impossible_lengths_are_refused() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        for bytes in [0, CHUNK_BYTES + 1, 1 << 32, u64::MAX] {
            let refused = a.reserve(clock, &[BlockSpec { bytes, ..spec(1) }], CHUNK_TIMEOUT_MS);
            let expected = Refusal::Length { bytes, most_bytes: CHUNK_BYTES };
            assert!(matches!(&refused[0], Reservation::Refused(found) if *found == expected));
        }
        assert_eq!(a.member().owned_chunks().len(), 0);
    });
}

#[test]
fn purposes_name_slots_or_are_not_ours() {
    let size = SlotSize::for_block(5000, CHUNK_BYTES).unwrap();
    assert_eq!(SlotSize::from_purpose(size.purpose(), CHUNK_BYTES), Some(size));
    assert_eq!(SlotSize::from_purpose(0, CHUNK_BYTES), None);
    assert_eq!(SlotSize::from_purpose(size.purpose() & !0xffff_ffff, CHUNK_BYTES), None);
    assert_eq!(SlotSize::from_purpose(size.purpose() | 0xffff, CHUNK_BYTES), None);
}
