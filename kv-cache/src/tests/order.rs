//! The order of eviction of a segment that takes several looks, beside others that publish.

use super::*;
use crate::upkeep::Watermarks;

/// Four parts of a first look at all slots.
const SLOTS: u32 = 16_384;
const PARTS: u32 = 4;
const REGION: u64 = 16 << 20;
const SMALL: u64 = 64;

fn small(number: u32) -> BlockSpec {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    let key = KeySpace::new(MODEL, Namespace::default(), SMALL).key(&BlockHash::new(hash));
    BlockSpec { key, bytes: SMALL, depth: 0 }
}

/// Publishes small blocks, whose bytes nobody asks for. Returns those that there was room for.
fn publish_small(
    cache: &TestCache<'_>,
    clock: &impl Clock,
    numbers: std::ops::Range<u32>,
) -> Vec<Handle> {
    let specs: Vec<_> = numbers.map(small).collect();
    let reserved = cache.reserve(clock, &specs, CHUNK_TIMEOUT_MS);
    let blocks = reserved.into_iter().filter_map(|reserved| match reserved {
        Reservation::Writing(block) => Some((block, 0)),
        Reservation::AlreadyThere | Reservation::Refused(_) => None,
    });
    let blocks = blocks.collect();
    cache.commit(clock, blocks).into_iter().map(|ready| ready.unwrap().handle).collect()
}

/// A host of two processes. What `disturb` does, the second does before each call of the first.
fn calls_until_the_order_is_made(
    entries: u32,
    mut disturb: impl FnMut(&TestCache<'_>, &ServingClock<'_>, u32),
) -> u32 {
    let rack = SimulatedRack::sticky(1, REGION);
    let rig = Rig::sized(rack, REGION, 1, SLOTS, entries);
    let (first, second) = (rig.join(0), rig.join(0));
    let clock = rig.serve(&[&first, &second]);
    let publisher = Cache::attach(&second, &clock).unwrap();
    publish_small(&publisher, &clock, 0..64);
    let late = Cache::attach(&first, &clock).unwrap();
    (1..=64)
        .find(|call| {
            disturb(&publisher, &clock, *call);
            late.locked(&clock, |heap| late.process_state().order().follow(heap))
        })
        .expect("it is never made")
}

#[test]
fn an_order_is_made_beside_one_who_publishes_all_the_time() {
    assert_eq!(calls_until_the_order_is_made(64, |_, _, _| ()), PARTS, "nobody publishes");
    for at_once in [1, 40, 100] {
        let made = calls_until_the_order_is_made(64, |publisher, clock, call| {
            // More than the ring holds, too.
            publish_small(publisher, clock, 1000 * call..1000 * call + at_once);
        });
        assert_eq!(made, PARTS, "{at_once} between two calls");
    }
}

#[test]
fn an_order_survives_a_sweep() {
    let made = calls_until_the_order_is_made(64, |publisher, clock, _| {
        publisher.locked(clock, |heap| heap.doubt());
        publisher.locked(clock, |_| ());
    });
    assert_eq!(made, PARTS);
}

#[test]
fn who_comes_late_to_a_full_pool_makes_room_beside_a_publisher() {
    let rack = SimulatedRack::sticky(1, REGION);
    let rig = Rig::sized(rack, REGION, 1, SLOTS, 64);
    let (first, second) = (rig.join(0), rig.join(0));
    let clock = rig.serve(&[&first, &second]);
    let publisher = Cache::attach(&second, &clock).unwrap();
    let mut next = 0;
    while publisher.process_state().metrics().evicted_blocks == 0 {
        publish_small(&publisher, &clock, next..next + 64);
        next += 64;
    }
    let late = Cache::attach(&first, &clock).unwrap();
    // The publisher is at it before each of its calls.
    let mut evicted = 0;
    for _ in 0..PARTS + 2 {
        publish_small(&publisher, &clock, next..next + 64);
        next += 64;
        late.upkeep(&clock, Watermarks::new(50, 40).unwrap(), CHUNK_TIMEOUT_MS);
        evicted += late.evict(&clock, None, 8);
    }
    assert!(evicted > 0, "it never has an order");
    let before = late.process_state().metrics().refused;
    assert_eq!(publish_small(&late, &clock, next + 1000..next + 1008).len(), 8);
    assert_eq!(late.process_state().metrics().refused, before);
}

#[test]
fn what_came_last_goes_last_also_for_who_came_late() {
    let rig = Rig::new(2, 64, 16);
    on_two_hosts(&rig, |a, b, clock| {
        for number in 1..=30 {
            publish(a, clock, number);
        }
        let late = rig.join(0);
        let cache = Cache::attach(&late, clock).unwrap();
        // The ring has the last 16 blocks, which the order takes in one by one.
        assert_eq!(cache.evict(clock, None, 22), 22);
        let there: Vec<_> = (1..=30).filter(|number| find(b, *number).is_some()).collect();
        assert_eq!(there, (23..=30).collect::<Vec<_>>());
        assert_eq!(cache.evict(clock, None, 4), 4);
        let there: Vec<_> = (1..=30).filter(|number| find(b, *number).is_some()).collect();
        assert_eq!(there, [27, 28, 29, 30]);
    });
}
