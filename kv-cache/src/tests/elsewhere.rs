//! Handles that no lookup of this process gave: of another region, of before a format, of anywhere.

use super::*;
use crate::MatchedBlock;

/// As `handle`, with another generation.
fn later(handle: Handle, by: u32) -> Handle {
    Handle::new(handle.owner(), handle.slot(), handle.generation().wrapping_add(by))
}

#[test]
fn a_handle_from_elsewhere_costs_a_miss_and_no_more() {
    for by in [1, 1 << 20, (1 << 31) - 1, 1 << 31, u32::MAX - 3] {
        for holds in [false, true] {
            let rig = Rig::new(2, 8, 8);
            on_two_hosts(&rig, |a, b, clock| {
                let handle = publish(a, clock, 1);
                let elsewhere = wanted(1, later(handle, by));
                if holds {
                    let held = b.hold(clock, &[elsewhere], HOLD_MS).remove(0);
                    assert_eq!(held.unwrap_err(), HoldError::Miss(Miss::StaleGeneration));
                    b.release(clock, Vec::new());
                } else {
                    assert_eq!(b.open(&[elsewhere]), [Err(Miss::StaleGeneration)]);
                }
                assert_eq!(find(b, 1), Some(handle), "{by} more; holds: {holds}");
                assert_eq!(fetch(b, 1, handle), Ok(()));
                // Also what comes next in that slot, by the log and by a scan.
                for _ in 0..20 {
                    let handle = find(a, 1).unwrap();
                    a.retire(clock, &[handle]);
                    let next = publish(a, clock, 1);
                    assert_eq!(find(b, 1), Some(next), "{by} more; holds: {holds}");
                }
            });
        }
    }
}

#[test]
fn a_name_that_is_not_that_of_the_block_says_nothing_about_the_block() {
    let rig = Rig::new(2, 8, 8);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        assert_eq!(find(b, 1), Some(handle));
        assert_eq!(b.open(&[wanted(2, handle)]), [Err(Miss::WrongKey)]);
        assert_eq!(find(b, 1), Some(handle));
        assert_eq!(fetch(b, 1, handle), Ok(()));
    });
}

#[test]
fn bytes_of_anything_blind_nobody() {
    let rig = Rig::new(2, 8, 8);
    on_two_hosts(&rig, |a, b, clock| {
        // Blank slots, tombstones and blocks.
        for number in 1..=4 {
            publish(a, clock, number);
        }
        a.retire(clock, &[find(a, 4).unwrap()]);
        let mut state = 7u64;
        for _ in 0..2000 {
            let mut bytes = [0; MatchedBlock::BYTES];
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = state.to_le_bytes()[6];
            }
            // A node and a slot that there are.
            bytes[24] &= 1;
            bytes[25] = 0;
            (bytes[26], bytes[27], bytes[28], bytes[29]) = (bytes[26] & 7, 0, 0, 0);
            let block = MatchedBlock::from_bytes(&bytes);
            let wanted = Wanted { handle: block.handle, key: block.key, bytes: 5000 };
            let _ = b.open(&[wanted]);
        }
        for number in 1..=3 {
            assert!(find_and_fetch(b, number), "block {number}");
        }
        for number in 5..=7 {
            publish(a, clock, number);
            assert!(find_and_fetch(b, number), "block {number}");
        }
    });
}

#[test]
fn a_block_that_was_read_and_is_no_good_stays_quarantined() {
    let rig = Rig::new(2, 8, 8);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        rig.rack.flip_bit(open(a, 1, handle).unwrap().payload().offset() + 100, 2);
        // This process has not heard of the block when it is asked for it.
        assert_eq!(fetch(b, 1, handle), Err(Miss::Checksum));
        assert_eq!(find(b, 1), None);
        assert_eq!(open(b, 1, handle), Err(Miss::Quarantined));
    });
}
