//! When blocks were used, as a tool on another host sees it that is no member.

use super::clear::keep_up;
use super::*;
use crate::{BlockUse, BlockUses};

/// Uses by another host and entries of the owner's log, seen by a tool that had all of it in its
/// caches before.
pub(super) fn uses_seen_by_tools(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let (member, tool) = (a.member(), rig.rack.host(2));
        let seen = |handle: Handle| {
            let (superblock, layout) = (member.superblock(), member.layout());
            let readers = [b.member().node()];
            let uses = BlockUses::look(&tool, superblock, layout, handle.owner(), &readers);
            uses.unwrap().of(&tool, handle.slot())
        };
        for round in 0..3 {
            let first = 10 * round;
            let handle = publish(a, clock, first);
            assert_eq!(seen(handle), BlockUse { nodes: 0, age: None });
            assert!(find_and_fetch(b, first));
            keep_up(b, clock);
            assert_eq!(seen(handle), BlockUse { nodes: 1, age: Some(0) });
            for number in 1..=3 {
                publish(a, clock, first + number);
                assert_eq!(seen(handle), BlockUse { nodes: 1, age: Some(number.into()) });
            }
            assert!(find_and_fetch(b, first + 3));
            assert_eq!(fetch(b, first, handle), Ok(()));
            keep_up(b, clock);
            assert_eq!(seen(handle), BlockUse { nodes: 1, age: Some(0) }, "used again");
        }
    });
}

#[test]
fn a_tool_sees_when_blocks_were_used() {
    uses_seen_by_tools(SimulatedRack::sticky(3, REGION_BYTES));
}

#[test]
fn the_last_use_of_any_node_counts() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let nodes = [a.member().node(), b.member().node()];
        let handle = publish(a, clock, 1);
        let seen = || {
            let (superblock, layout) = (a.member().superblock(), a.member().layout());
            let fabric = b.member().fabric();
            let uses = BlockUses::look(fabric, superblock, layout, nodes[0], &nodes).unwrap();
            uses.of(fabric, handle.slot())
        };
        assert!(find_and_fetch(b, 1));
        keep_up(b, clock);
        publish(a, clock, 2);
        assert!(find_and_fetch(a, 1));
        keep_up(a, clock);
        assert_eq!(seen(), BlockUse { nodes: 2, age: Some(0) });
        publish(a, clock, 3);
        assert_eq!(seen(), BlockUse { nodes: 2, age: Some(1) });
    });
}

#[test]
fn a_use_that_is_newer_than_the_log_is_of_now() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let reader = b.member().node();
        let word = a.areas().reader_words(reader).word(handle.owner(), handle.slot());
        let fabric = b.member().fabric();
        let (superblock, layout) = (a.member().superblock(), a.member().layout());
        for (tick, age) in [(1_u64, 0), (100, 0), (u64::from(u32::MAX), 2)] {
            word.claim().publish(fabric, tick);
            let uses = BlockUses::look(fabric, superblock, layout, handle.owner(), &[reader]);
            let seen = uses.unwrap().of(fabric, handle.slot());
            assert_eq!(seen, BlockUse { nodes: 1, age: Some(age) }, "tick {tick}");
        }
    });
}
