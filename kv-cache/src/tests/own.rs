//! A process that follows what its node publishes, to keep copies of it elsewhere.

use super::*;
use crate::{OwnFeed, OwnUse};

fn slots(blocks: &[(Descriptor, u64)]) -> Vec<crate::BlockKey> {
    blocks.iter().map(|(block, _)| block.key).collect()
}

#[test]
fn a_node_is_followed_by_its_log_and_scanned_when_that_overran() {
    let rig = Rig::new(2, 64, 16);
    on_two_hosts(&rig, |a, b, clock| {
        publish(a, clock, 1);
        publish(b, clock, 9);
        let mut feed = OwnFeed::default();
        let first = a.follow_own(&mut feed);
        assert!(first.scanned);
        assert_eq!(slots(&first.blocks), [key(1)], "nothing of other nodes");
        assert_eq!(a.follow_own(&mut feed), crate::OwnNews::default());
        let gone = publish(a, clock, 2);
        publish(a, clock, 3);
        assert_eq!(a.retire(clock, &[gone]), 1);
        let news = a.follow_own(&mut feed);
        assert_eq!((news.scanned, slots(&news.blocks)), (false, vec![key(3)]));
        let head = a.areas().log_head(a.member().node()).cached(a.member().fabric());
        let ring = a.areas().log(a.member().node()).entries();
        let before = head;
        for number in 10.. {
            publish(a, clock, number);
            let now = a.areas().log_head(a.member().node()).cached(a.member().fabric());
            if now > before + ring {
                break;
            }
        }
        let news = a.follow_own(&mut feed);
        assert!(news.scanned && news.blocks.len() as u64 > ring);
        feed.start_over();
        assert_eq!(a.follow_own(&mut feed).blocks.len(), news.blocks.len());
    });
}

#[test]
fn a_copy_that_is_no_use_tells_nobody_that_the_block_was_used() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let (first, second) = (publish(a, clock, 1), publish(a, clock, 2));
        for (number, handle) in [(1, first), (2, second)] {
            let ticket = open(a, number, handle).unwrap();
            let found = checksum(&load(a, ticket.payload()));
            assert_eq!(a.close_unused(&[(ticket, Some(found))]), [Ok(())]);
        }
        let handles = [first, second];
        assert_eq!(a.own_uses(&handles), [OwnUse::Never; 2]);
        assert_eq!(fetch(b, 2, second), Ok(()));
        // Told by the next holder of the heap lock, and upkeep.
        b.upkeep(clock, crate::Watermarks::default(), CHUNK_TIMEOUT_MS);
        let uses = a.own_uses(&handles);
        assert_eq!(uses[0], OwnUse::Never);
        assert!(matches!(uses[1], OwnUse::At(_)), "another host used it: {uses:?}");
        assert_eq!(a.retire(clock, &[second]), 1);
        assert_eq!(a.own_uses(&handles), [OwnUse::Never, OwnUse::Gone]);
        assert_eq!(a.process_state().metrics().fetched_blocks, 0);
    });
}

#[test]
fn a_block_comes_back_for_the_namespace_whose_tag_it_has() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        let tag = crate::NamespaceTag::from_bits(0x1234);
        let reserved = a.reserve_tagged(clock, tag, &[spec(1)], CHUNK_TIMEOUT_MS).remove(0);
        let Reservation::Writing(block) = reserved else { panic!("{reserved:?}") };
        assert_eq!(block.descriptor.namespace, tag);
    });
}
