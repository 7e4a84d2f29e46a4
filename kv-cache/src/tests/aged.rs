//! Counters that are near their ends: heads of logs, ticks, generations, numbers of holds.

use super::*;
use crate::upkeep::Watermarks;

/// Where heads of logs begin: in both halves of what a tick can say, and just before each end.
const HEADS: [u64; 8] = [
    100,
    (1 << 31) - 6,
    1 << 31,
    (1 << 31) + 100,
    (1 << 32) - 6,
    (1 << 32) - 1,
    1 << 32,
    (9 << 32) + (1 << 31) + 7,
];

fn upkeep(caches: &[&TestCache<'_>], clock: &impl Clock) {
    for cache in caches {
        cache.upkeep(clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
    }
}

#[test]
fn a_use_counts_wherever_the_log_is() {
    for head in HEADS {
        let rig = Rig::new(2, 32, 64);
        rig.age(head, 1);
        on_two_hosts(&rig, |a, b, clock| {
            for number in 1..=4 {
                publish(a, clock, number);
            }
            (0..3).for_each(|_| assert!(find_and_fetch(b, 1)));
            upkeep(&[b, a], clock);
            assert_eq!(b.process_state().metrics().told_uses, 1, "head {head}");
            assert_eq!(a.evict(clock, None, 3), 3, "head {head}");
            assert!(find(b, 1).is_some(), "the only one that was used goes, head {head}");
            // Once, and not for ever.
            publish(a, clock, 5);
            assert_eq!(a.evict(clock, None, 1), 1);
            assert!(find(b, 1).is_none() && find(b, 5).is_some(), "head {head}");
        });
    }
}

#[test]
fn blocks_that_were_never_used_go_in_the_order_of_their_arrival() {
    for head in HEADS {
        let rig = Rig::new(2, 32, 64);
        rig.age(head, 1);
        on_two_hosts(&rig, |a, b, clock| {
            for number in 1..=6 {
                publish(a, clock, number);
                upkeep(&[a, b], clock);
            }
            for gone in 1..=6 {
                assert_eq!(a.evict(clock, None, 1), 1);
                let there = (1..=6).find(|number| find(b, *number).is_some());
                assert_eq!(there, (gone < 6).then_some(gone + 1), "head {head}");
            }
        });
    }
}

#[test]
fn the_oldest_of_a_crowded_place_goes_wherever_the_log_is() {
    for head in HEADS {
        let rig = Rig::new(2, 8, 64);
        rig.age(head, 1);
        on_two_hosts(&rig, |a, b, clock| {
            for number in 1..=4 {
                publish(a, clock, number);
            }
            let now_ms = clock.now_ms();
            assert!(a.locked(clock, |heap| heap.evict_for(
                &mut a.process_state().order(),
                now_ms,
                key(9)
            )));
            let there: Vec<_> = (1..=4).filter(|number| find(b, *number).is_some()).collect();
            assert_eq!(there, [2, 3, 4], "head {head}");
        });
    }
}

#[test]
fn generations_and_numbers_of_holds_go_round() {
    let rig = Rig::new(2, 8, 8);
    rig.age(u64::from(u32::MAX) - 9, u32::MAX - 2);
    on_two_hosts(&rig, |a, b, clock| {
        let mut slots = HashSet::new();
        for round in 0..8 {
            let handle = publish(a, clock, 1);
            slots.insert(handle.slot());
            assert_ne!(handle.generation(), 0, "that of a slot that nobody has heard of");
            assert_eq!(find(b, 1), Some(handle), "round {round}");
            let held = hold(b, clock, 1).unwrap();
            assert_eq!(a.evict(clock, None, 1), 0, "it is held, round {round}");
            assert_eq!(fetch(b, 1, handle), Ok(()));
            b.release(clock, vec![held]);
            assert_eq!(a.evict(clock, None, 1), 1);
            assert_eq!(find(b, 1), None);
            assert!(matches!(fetch(b, 1, handle), Err(Miss::Evicted | Miss::Absent)));
        }
        assert_eq!(slots.len(), 1, "one slot has had all of them");
    });
}

#[test]
fn a_lost_generation_is_replaced_by_a_newer_one_also_where_they_went_round() {
    let rig = Rig::new(2, 32, 16);
    rig.age(5, u32::MAX - 1);
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let torn;
    {
        let a = Cache::attach(&first, &clock).unwrap();
        // A slot that has gone round, and one whose line is damaged while nobody runs.
        (0..3).for_each(|_| {
            let handle = publish(&a, &clock, 1);
            a.retire(&clock, &[handle]);
        });
        torn = (2..9).map(|number| publish(&a, &clock, number)).last().unwrap();
        assert_eq!(torn.generation(), u32::MAX);
    }
    let line = Cache::attach(&second, &clock).unwrap().segment(first.node()).unwrap();
    drop(clock);
    rig.kill(&first);
    rig.rack.crash(0);
    rig.rack.flip_bit(line.range(torn.slot()).start().bytes() + 36, 5);
    let again = rig.join(0);
    let clock = rig.serve(&[&second, &again]);
    let a = Cache::attach(&again, &clock).unwrap();
    let next = publish(&a, &clock, 8);
    assert_eq!(next.slot(), torn.slot());
    assert!(crate::format::is_newer(next.generation(), torn.generation()), "{next:?}");
}
