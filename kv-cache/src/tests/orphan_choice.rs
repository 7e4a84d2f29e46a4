//! Which orphans make room: any that is vacant, and all in turn.

use std::mem::forget;

use cxl_shm::layout::NodeState;
use cxl_shm::units::NodeId;

use super::orphan::{ORPHAN, Off, blocks_of_orphan, declare_dead, is_recovered, there};
use super::*;
use crate::reclaim::AGAIN_MS;
use crate::upkeep::Watermarks;

#[test]
fn an_orphan_that_is_held_hides_no_other() {
    let rig = Rig::new(4, 32, 16);
    let wall = rig.rack.clock(0);
    let members = [0, 1, 2, 3].map(|host| rig.join(host));
    {
        let clock = rig.serve(&[&members[0], &members[1], &members[2], &members[3]]);
        for (member, number) in [(&members[1], 1), (&members[2], 2)] {
            publish(&Cache::attach(member, &clock).unwrap(), &clock, number);
        }
    }
    let clock = rig.serve(&[&members[0], &members[3]]);
    for victim in &members[1..3] {
        rig.kill(victim);
        declare_dead(&rig, &clock, &wall, victim.node(), Off, is_recovered);
    }
    let [a, d] = [&members[0], &members[3]].map(|it| Cache::attach(it, &clock).unwrap());
    let held = hold(&d, &clock, 1).unwrap();
    let chunks = |node| members[0].chunks_of(NodeId(node)).len();
    assert!(a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!((chunks(1), chunks(2)), (1, 0));
    d.release(&clock, vec![held]);
    // Not every time that somebody is short.
    assert!(!a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!(chunks(1), 1);
    rig.rack.advance_ms(AGAIN_MS);
    assert!(a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
    assert_eq!((chunks(1), there(&a, 1..=2)), (0, vec![]));
    assert_eq!(rig.rack.conflicts(), []);
}

#[test]
fn who_left_for_good_makes_room_and_who_comes_back_has_the_rest() {
    let rig = Rig::new(3, 64, 64);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&first, &second, &third]);
        let b = Cache::attach(&second, &clock).unwrap();
        for number in 0..24 {
            publish(&b, &clock, number);
        }
        // A process of its host dies in the middle of a store; the host leaves all the same.
        let other = rig.join(1);
        let beside = Cache::attach(&other, &clock).unwrap();
        forget(reserve(&beside, &clock, 24));
        while third.allocate_chunk(&clock, CHUNK_TIMEOUT_MS, 5).is_ok() {}
        let handle = find(&b, 0).unwrap();
        let line = b.areas().segment_of(handle).unwrap().range(handle.slot()).start();
        other.fabric().write_line(line, &[0; 8]);
        rig.kill(&other);
        forget(beside);
    }
    assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    let clock = rig.serve(&[&first, &third]);
    let state = first.layout().node_line(ORPHAN).fresh(first.fabric()).unwrap().state();
    assert_eq!(state, Some(NodeState::Left));
    let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());
    let held = hold(&c, &clock, 20).unwrap();
    for number in 100..140 {
        publish(&a, &clock, number);
        a.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        assert!(find_and_fetch(&c, number) && find_and_fetch(&c, 20), "block {number}");
    }
    let metrics = a.process_state().metrics();
    assert_eq!((metrics.refused, metrics.inherited_chunks), (0, 3));
    assert_eq!(first.chunks_of(ORPHAN).len(), 1);

    let again = rig.join(1);
    let b = Cache::attach(&again, &clock).unwrap();
    let left = there(&c, 0..24);
    assert!(left.contains(&20));
    assert_eq!(b.heap_use(&clock).blocks, left.len() as u64);
    assert_eq!(blocks_of_orphan(&c).len(), left.len());
    c.release(&clock, vec![held]);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

#[test]
fn what_is_used_stays_longer_than_what_is_not() {
    for used in [0..8, 8..16] {
        let rig = Rig::new(3, 64, 64);
        let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
        {
            let clock = rig.serve(&[&first, &second, &third]);
            let b = Cache::attach(&second, &clock).unwrap();
            // Two chunks of blocks.
            for number in 0..16 {
                publish(&b, &clock, number);
            }
            assert_eq!(second.chunks_of(ORPHAN).len(), 2);
        }
        assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
        let clock = rig.serve(&[&first, &third]);
        let [a, c] = [&first, &third].map(|it| Cache::attach(it, &clock).unwrap());
        // Nobody has used any; what is used from here on, is used while the node is away.
        assert_eq!(there(&c, used.clone()).len(), 8);
        c.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        assert!(a.empty_an_orphan(&clock, CHUNK_TIMEOUT_MS));
        assert_eq!(there(&c, 0..16), used.collect::<Vec<_>>());
        assert_eq!(rig.rack.conflicts(), []);
    }
}
