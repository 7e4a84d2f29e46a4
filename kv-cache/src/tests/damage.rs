//! Damaged memory: payload, descriptors, logs.

use super::*;

/// Where the line of a descriptor is in the region.
fn line_of(cache: &TestCache<'_>, handle: Handle) -> u64 {
    let segment = cache.segment(handle.owner()).unwrap();
    segment.range(handle.slot()).start().bytes()
}

#[test]
fn a_damaged_payload_is_a_miss_and_the_block_can_be_published_again() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let payload = open(b, 1, handle).unwrap().payload();
        rig.rack.flip_bit(payload.offset() + 4321, 3);
        assert_eq!(fetch(b, 1, find(b, 1).unwrap()), Err(Miss::Checksum));
        assert!(Miss::Checksum.is_damage());
        assert_eq!(b.process_state().metrics().misses(Miss::Checksum), 1);
        assert_eq!(find(b, 1), None, "quarantined: not offered again");

        // Another host's copy, or a new one of the owner's, is believed again.
        let copy = publish(b, clock, 1);
        assert_eq!(find(b, 1), Some(copy));
        assert_eq!(fetch(b, 1, copy), Ok(()));
        assert_eq!(a.retire(clock, &[handle]), 1);
        b.retire(clock, &[copy]);
        let again = publish(a, clock, 1);
        assert_eq!(find(b, 1), Some(again));
        assert_eq!(fetch(b, 1, again), Ok(()));
    });
}

#[test]
fn a_quarantine_outlives_a_rescan() {
    let rig = Rig::new(2, 32, 8);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let payload = open(b, 1, find(b, 1).unwrap()).unwrap().payload();
        rig.rack.flip_bit(payload.offset(), 0);
        assert_eq!(fetch(b, 1, handle), Err(Miss::Checksum));
        for number in 2..=10 {
            publish(a, clock, number);
        }
        assert_eq!(find(b, 1), None);
        assert!(find_and_fetch(b, 10));
        assert_eq!(b.process_state().metrics().rescans, 1);
    });
}

#[test]
fn a_damaged_descriptor_is_a_miss() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        for byte in [0, 4, 8, 30, 36, 56, 60] {
            let handle = publish(a, clock, 1);
            rig.rack.flip_bit(line_of(a, handle) + byte, 1);
            assert_eq!(fetch(b, 1, find(b, 1).unwrap()), Err(Miss::Torn), "byte {byte}");
            a.retire(clock, &[handle]);
        }
        let handle = publish(a, clock, 1);
        let ticket = open(b, 1, find(b, 1).unwrap()).unwrap();
        rig.rack.flip_bit(line_of(a, handle) + 24, 7);
        assert_eq!(b.close(&[(ticket, None)]), [Err(Miss::Changed)]);
    });
}

#[test]
fn a_damaged_descriptor_of_our_own_costs_only_its_block() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let free_bytes = |cache: &TestCache<'_>| cache.heap_use(clock).free_bytes;
        let (first, second) = (publish(a, clock, 1), publish(a, clock, 2));
        let before = free_bytes(a);
        rig.rack.flip_bit(line_of(a, first) + 33, 0);
        // Not what our caches still hold of it.
        a.member()
            .fabric()
            .refresh(LineRange::one(a.segment(first.owner()).unwrap().range(first.slot()).start()));
        assert_eq!(fetch(a, 1, find(a, 1).unwrap()), Err(Miss::Torn));
        assert_eq!(a.retire(clock, &[first]), 1);
        // The payload could not be told from the descriptor: the next to take the lock sweeps.
        assert_eq!(free_bytes(a), before + 8192);
        assert_eq!(a.process_state().metrics().sweeps, 2, "one at the attach, one now");
        assert_eq!(find(b, 2), Some(second));
        assert!(find_and_fetch(b, 2));
        let again = publish(a, clock, 1);
        assert_eq!(again.generation(), first.generation() + 1);
        assert!(find_and_fetch(b, 1));
    });
}

#[test]
fn a_damaged_log_only_costs_a_scan() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        let log =
            crate::format::Areas::new(*a.member().layout(), a.geometry()).log(a.member().node());
        let first = log.ranges(0, 1).next().unwrap().start();
        rig.rack.flip_bit(first.bytes() + 3, 5);
        assert!(find_and_fetch(b, 1));
        let metrics = b.process_state().metrics();
        assert_eq!((metrics.log_entries, metrics.rescans), (0, 1));
    });
}
