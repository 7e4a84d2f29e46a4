//! Segments of several tables: a node uses the next when those before it are full enough.

use super::*;
use crate::upkeep::Watermarks;

const SLOTS: u32 = 64;
const SHARE: u32 = 8;
/// Of 64 KiB each, for 8 blocks.
const BLOCKS: u8 = 40;

fn rig(nodes: u16, rack: SimulatedRack) -> Rig {
    Rig::shared(rack, nodes, SLOTS, SHARE, 16)
}

fn tables_in_use(cache: &TestCache<'_>, clock: &impl Clock) -> usize {
    cache.locked(clock, |heap| heap.directory.tables_in_use())
}

#[test]
fn a_node_uses_more_tables_as_it_needs_them_and_all_of_its_blocks_are_found() {
    for rack in
        [SimulatedRack::sticky(2, REGION_BYTES), SimulatedRack::adversarial(2, REGION_BYTES, 7)]
    {
        let rig = rig(2, rack);
        on_two_hosts(&rig, |a, b, clock| {
            assert_eq!(tables_in_use(a, clock), 1);
            let mut used = Vec::new();
            for number in 1..=BLOCKS {
                publish(a, clock, number);
                used.push(tables_in_use(a, clock));
                assert!(find_and_fetch(b, number), "block {number}");
            }
            // Tables of 8, 8, 16 and 32 slots, three quarters of which are used.
            let expected = [(6, 1), (7, 2), (12, 2), (13, 3), (24, 3), (25, 4), (40, 4)];
            for (blocks, tables) in expected {
                assert_eq!(used[blocks - 1], tables, "of {blocks} blocks");
            }
            // A host that comes late scans what is in use, and finds all.
            let late = rig.join(1);
            let late = Cache::attach(&late, clock).unwrap();
            for number in 1..=BLOCKS {
                assert!(find_and_fetch(&late, number), "block {number}");
                let segment = b.segment(a.member().node()).unwrap();
                assert!(segment.probe(b.member().fabric(), key(number)).is_some());
            }
            assert_eq!(a.heap_use(clock).blocks, u64::from(BLOCKS));
            assert_eq!(a.process_state().metrics().evicted_for_descriptors, 0);
        });
    }
}

/// A host that searches and a tool that scans, each of which has the line in its caches that says
/// how many tables are in use, as it was before.
pub(super) fn tables_seen_by_others(rack: SimulatedRack) {
    let rig = rig(2, rack);
    on_two_hosts(&rig, |a, b, clock| {
        let segment = b.segment(a.member().node()).unwrap();
        for number in 1..=14 {
            publish(a, clock, number);
            assert!(segment.probe(b.member().fabric(), key(number)).is_some(), "block {number}");
            let mut blocks = 0;
            segment.scan(&rig.rack.host(2), |_, content| {
                blocks += u8::from(matches!(content, Ok(SlotContent::Block(_))));
            });
            assert_eq!(blocks, number);
        }
    });
}

#[test]
fn new_blocks_go_to_the_first_table_with_room() {
    let rig = rig(2, SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=20).map(|number| publish(a, clock, number)).collect();
        assert!(handles[..6].iter().all(|handle| handle.slot() < SHARE));
        assert!(handles[6..].iter().all(|handle| handle.slot() >= SHARE));
        a.retire(clock, &handles[..3]);
        for number in 21..=23 {
            assert!(publish(a, clock, number).slot() < SHARE);
        }
        a.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        for number in 4..=23 {
            assert!(find_and_fetch(b, number), "block {number}");
        }
        assert_eq!(find(b, 2), None);
    });
}

#[test]
fn the_next_life_knows_the_blocks_of_all_tables() {
    let rig = rig(2, SimulatedRack::sticky(2, REGION_BYTES));
    let (first, second) = (rig.join(0), rig.join(1));
    {
        let clock = rig.serve(&[&first, &second]);
        let a = Cache::attach(&first, &clock).unwrap();
        (1..=30).for_each(|number| assert!(publish(&a, &clock, number).slot() < SLOTS));
    }
    rig.kill(&first);
    rig.rack.crash(0);
    let again = rig.join(0);
    let clock = rig.serve(&[&again, &second]);
    let a = Cache::attach(&again, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    assert_eq!((a.heap_use(&clock).blocks, tables_in_use(&a, &clock)), (30, 4));
    for number in 1..=30 {
        assert!(find_and_fetch(&b, number), "block {number}");
    }
    publish(&a, &clock, 31);
    assert!((1..=31).all(|number| find_and_fetch(&b, number)));
    assert_eq!(rig.rack.conflicts(), []);
}

#[test]
fn a_death_before_the_first_block_of_a_table_does_no_harm() {
    let rig = rig(2, SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        (1..=6).for_each(|number| assert!(publish(a, clock, number).slot() < SHARE));
        // A process published that the second table is in use, and died.
        let other = rig.join(0);
        let word = a.areas().own_tables_word(other.area());
        word.publish(other.fabric(), crate::format::used_word(2));
        std::mem::forget(other.lock_heap(clock));
        rig.kill(&other);
        publish(a, clock, 7);
        assert_eq!(tables_in_use(a, clock), 2);
        assert!((1..=7).all(|number| find_and_fetch(b, number)));
    });
}

#[test]
fn a_table_that_a_dead_host_had_begun_to_use_keeps_its_generations() {
    for seed in 0..20 {
        let rack = match seed {
            0 => SimulatedRack::sticky(2, REGION_BYTES),
            _ => SimulatedRack::adversarial(2, REGION_BYTES, seed),
        };
        let rig = rig(2, rack);
        let (first, second) = (rig.join(0), rig.join(1));
        let handle = {
            let clock = rig.serve(&[&first, &second]);
            let a = Cache::attach(&first, &clock).unwrap();
            (1..=6).for_each(|number| assert!(publish(&a, &clock, number).slot() < SHARE));
            let block = reserve(&a, &clock, 7);
            let handle = block.descriptor.handle;
            std::mem::forget(block);
            handle
        };
        rig.kill(&first);
        rig.rack.crash(0);
        let again = rig.join(0);
        let clock = rig.serve(&[&again, &second]);
        let a = Cache::attach(&again, &clock).unwrap();
        assert_eq!(tables_in_use(&a, &clock), 2);
        let next = publish(&a, &clock, 7);
        assert_eq!((next.slot(), next.generation()), (handle.slot(), handle.generation() + 1));
    }
}

#[test]
fn blocks_that_share_a_reader_word_are_held_together_and_never_less() {
    let rig = rig(2, SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=BLOCKS).map(|number| publish(a, clock, number)).collect();
        let same_word =
            |one: &Handle, other: &Handle| (one.slot() ^ other.slot()).is_multiple_of(SHARE);
        let beyond = handles.iter().position(|handle| handle.slot() >= 32).unwrap();
        let number = u8::try_from(beyond + 1).unwrap();
        let held = hold(b, clock, number).unwrap();
        let shared = handles.iter().filter(|handle| same_word(handle, &handles[beyond])).count();
        assert!(shared > 1);
        while a.evict(clock, None, usize::MAX) > 0 {}
        assert_eq!(a.heap_use(clock).blocks, shared as u64, "the held one is among these");
        assert!(find_and_fetch(b, number));
        // Another hold on the same word outlasts this one.
        let others = (1..=BLOCKS).find(|other| *other != number && find(b, *other).is_some());
        let other = hold(b, clock, others.unwrap()).unwrap();
        b.release(clock, vec![held]);
        while a.evict(clock, None, usize::MAX) > 0 {}
        assert!(find_and_fetch(b, others.unwrap()));
        b.release(clock, vec![other]);
        while a.evict(clock, None, usize::MAX) > 0 {}
        assert_eq!(a.heap_use(clock).blocks, 0);
    });
}

#[test]
fn evicting_for_want_of_descriptors_is_counted_by_name() {
    let rig = Rig::new(2, 8, 16);
    on_two_hosts(&rig, |a, _, clock| {
        for number in 1..=7 {
            publish(a, clock, number);
        }
        let metrics = a.process_state().metrics();
        assert_eq!((metrics.evicted_blocks, metrics.evicted_for_descriptors), (1, 1));
    });
}
