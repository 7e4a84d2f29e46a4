//! Readers that fall behind.

use super::*;
use crate::format::{LogEntry, LogKind};

#[test]
fn an_overrun_log_means_a_scan_and_nothing_is_lost() {
    let rig = Rig::new(2, 32, 8);
    on_two_hosts(&rig, |a, b, clock| {
        let handles: Vec<_> = (1..=8).map(|number| publish(a, clock, number)).collect();
        assert_eq!(find(b, 1), Some(handles[0]));
        assert_eq!(b.process_state().metrics().rescans, 0, "exactly a ring behind is not too far");
        let more: Vec<_> = (9..=17).map(|number| publish(a, clock, number)).collect();
        a.retire(clock, &handles[..2]);
        assert_eq!((find(b, 1), find(b, 2)), (None, None));
        for (number, handle) in (3..=17).zip(handles[2..].iter().chain(&more)) {
            assert_eq!(find(b, number), Some(*handle));
            assert_eq!(fetch(b, number, *handle), Ok(()));
        }
        let metrics = b.process_state().metrics();
        assert_eq!((metrics.rescans, metrics.replica_blocks), (1, 15));
    });
}

#[test]
fn one_batch_longer_than_the_log_is_found_by_a_scan() {
    let rig = Rig::new(2, 32, 8);
    on_two_hosts(&rig, |a, b, clock| {
        let specs: Vec<_> = (1..=12).map(spec).collect();
        let blocks = a.reserve(clock, &specs, CHUNK_TIMEOUT_MS).into_iter().zip(1..);
        let blocks = blocks.map(|(reservation, number)| {
            let Reservation::Writing(block) = reservation else { panic!("{reservation:?}") };
            store(a, block.payload(), &content(number));
            (block, checksum(&content(number)))
        });
        let blocks = blocks.collect();
        assert!(a.commit(clock, blocks).iter().all(Result::is_ok));
        for number in 1..=12 {
            assert!(find_and_fetch(b, number), "block {number}");
        }
        assert_eq!(b.process_state().metrics().rescans, 1);
    });
}

#[test]
fn who_attaches_late_finds_everything() {
    let rig = Rig::new(3, 32, 8);
    on_two_hosts(&rig, |a, b, clock| {
        for number in 1..=12 {
            publish(if number % 2 == 0 { a } else { b }, clock, number);
        }
        let third = rig.join(2);
        let c = Cache::attach(&third, clock).unwrap();
        let metrics = c.process_state().metrics();
        assert_eq!((metrics.rescans, metrics.replica_blocks), (2, 12), "its own is empty");
        for number in 1..=12 {
            assert!(find_and_fetch(&c, number), "block {number}");
        }
    });
}

#[test]
fn a_slot_that_is_reused_many_times_has_one_entry() {
    let rig = Rig::new(2, 32, 8);
    on_two_hosts(&rig, |a, b, clock| {
        for round in 0..30 {
            let handle = publish(a, clock, round);
            if round % 3 == 0 {
                assert!(find_and_fetch(b, round));
            }
            a.retire(clock, &[handle]);
        }
        let last = publish(a, clock, 99);
        assert_eq!(find(b, 99), Some(last));
        assert_eq!(b.process_state().metrics().replica_blocks, 1);
    });
}

#[test]
fn the_replica_stays_small() {
    // A full segment, as far as it is ever filled, in every node.
    let geometry = CacheGeometry::new(1 << 16, 8).unwrap();
    let region = Geometry {
        region_bytes: 1 << 28,
        nodes: 4,
        locks: LOCKS,
        chunk_bytes: CHUNK_BYTES,
        area_lines: geometry.area_lines(4),
        host_words: 0,
    };
    let layout = cxl_shm::layout::Layout::new(region).unwrap();
    let mut replica = crate::replica::Replica::new(crate::format::Areas::new(layout, geometry));
    let blocks: u32 = (1 << 16) * 3 / 4;
    for node in layout.nodes() {
        for slot in 0..blocks {
            let mut hash = [0; 32];
            hash[..4].copy_from_slice(&slot.to_le_bytes());
            hash[4..6].copy_from_slice(&node.0.to_le_bytes());
            let key =
                KeySpace::new(MODEL, Namespace::default(), BLOCK_BYTES).key(&BlockHash::new(hash));
            let entry =
                LogEntry { kind: LogKind::Published, key: key.index(), slot, generation: 1 };
            replica.follow(node, &entry);
            assert_eq!(replica.find(key), Some(Handle::new(node, slot, 1)));
        }
    }
    assert_eq!(replica.blocks(), 4 * blocks as usize);
    let bytes_a_block = replica.bytes() as f64 / replica.blocks() as f64;
    assert!(bytes_a_block < 48.0, "{bytes_a_block}");
}
