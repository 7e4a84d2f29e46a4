//! Directives under damage, deaths and misuse.

use super::clear::{die_before_the_count, keep_up, publish_for, tenant};
use super::orphan::there;
use super::*;
use crate::upkeep::pin_and_answer;
use crate::{Directive, DirectiveError, Pin, Quota, directives_of};
use cxl_shm::units::NodeId;

/// A bit of directive `number` of node `asking` flips on the device.
pub(super) fn damage(rig: &Rig, cache: &TestCache<'_>, asking: NodeId, number: u64) {
    let line = cache.areas().directives(asking).line(number).range();
    rig.rack.flip_bit(line.start().bytes() + 20, 3);
}

/// A line that was damaged before its owners read it: who waits writes it again.
pub(super) fn damaged_while_somebody_waits(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let (first, second) = (a.member().node(), b.member().node());
        publish_for(a, clock, &tenant(), 2);
        let mut clearing = b.clear(clock, Some(&tenant())).unwrap();
        damage(&rig, b, second, 1);
        assert_eq!((keep_up(a, clock), find(b, 2).is_some()), (0, true));
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![first, second]));
        assert_eq!((keep_up(a, clock), keep_up(b, clock)), (1, 0));
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![]));
        let pin = Pin { percent: 10, length_ms: 1000, asked_ms: 1 };
        let number = b.pin(clock, &tenant(), pin).unwrap();
        damage(&rig, b, second, number);
        keep_up(a, clock);
        assert_eq!(b.unanswered(clock, number), Ok(vec![first, second]));
        keep_up(a, clock);
        keep_up(b, clock);
        assert_eq!(b.unanswered(clock, number), Ok(vec![]));
        a.locked(clock, |heap| assert_eq!(heap.quotas.all().len(), 1));
    });
}

#[test]
fn a_damaged_line_is_written_again_by_who_waits() {
    damaged_while_somebody_waits(SimulatedRack::sticky(2, REGION_BYTES));
}

/// The process that asked is gone: nobody knows what the line said.
#[test]
fn a_damaged_line_keeps_no_later_directive_waiting() {
    let rig = Rig::new(3, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let asking = b.member().node();
        publish_for(a, clock, &tenant(), 2);
        let other = rig.join(1);
        {
            let cache = Cache::attach(&other, clock).unwrap();
            cache.clear(clock, Some(&tenant())).unwrap();
        }
        assert_eq!(other.leave(), LeaveOutcome::OthersRemain);
        damage(&rig, b, asking, 1);
        assert_eq!(keep_up(a, clock), 0);
        let seen = || {
            let (superblock, layout) = (a.member().superblock(), a.member().layout());
            directives_of(&rig.rack.host(2), superblock, layout, asking).unwrap()
        };
        assert_eq!(seen()[0].directive, None, "tools show that the line is damaged");
        let mut clearing = b.clear(clock, Some(&tenant())).unwrap();
        assert_eq!(seen()[0].directive, Some(Directive::Void));
        assert_eq!((keep_up(a, clock), keep_up(b, clock)), (1, 0));
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![]));
        assert_eq!(find(b, 2), None);
    });
}

/// A node cannot read on, and so does not answer, while no line is left to ask again.
#[test]
fn a_damaged_line_is_written_again_when_no_line_is_left() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let (first, second) = (a.member().node(), b.member().node());
        publish_for(a, clock, &tenant(), 2);
        for _ in 0..16 {
            b.clear(clock, Some(&tenant())).unwrap();
        }
        keep_up(b, clock);
        damage(&rig, b, second, 1);
        assert_eq!(keep_up(a, clock), 0);
        let refused = b.clear(clock, None).err();
        assert_eq!(refused, Some(DirectiveError::Unanswered { node: first }));
        assert_eq!(keep_up(a, clock), 1);
        assert!(b.clear(clock, None).is_ok());
    });
}

/// Nobody waited for the node when the next line was written, as it had no blocks. The process that wrote
/// that line died before it counted it.
#[test]
fn a_node_that_has_blocks_now_reads_on_behind_what_was_not_counted() {
    let rig = Rig::new(3, 32, 64);
    let (first, second, manager) = (rig.join(0), rig.join(1), rig.join(2));
    let clock = rig.serve(&[&first, &second, &manager]);
    let [a, b] = [&first, &second].map(|it| Cache::attach(it, &clock).unwrap());
    let mut last = die_before_the_count(&a, &b, &clock);
    let c = Cache::attach(&manager, &clock).unwrap();
    publish_for(&c, &clock, &tenant(), 3);
    assert_eq!(keep_up(&c, &clock), 0);
    let left = [&first, &second, &manager].map(|it| it.node());
    assert_eq!(a.cleared(&clock, &mut last), Ok(left.to_vec()));
    for cache in [&a, &b] {
        keep_up(cache, &clock);
    }
    assert_eq!(keep_up(&c, &clock), 1);
    assert_eq!(a.cleared(&clock, &mut last), Ok(vec![]));
    assert!(a.clear(&clock, None).is_ok());
}

/// A host whose only process is a lock manager keeps no blocks, and reads no directive.
#[test]
fn a_node_without_blocks_does_not_bound_what_is_asked() {
    let rig = Rig::new(3, 32, 64);
    let (first, second, manager) = (rig.join(0), rig.join(1), rig.join(2));
    let clock = rig.serve(&[&first, &second, &manager]);
    let [a, b] = [&first, &second].map(|it| Cache::attach(it, &clock).unwrap());
    for _ in 0..40 {
        publish_for(&a, &clock, &tenant(), 2);
        let mut clearing = b.clear(&clock, Some(&tenant())).unwrap();
        assert_eq!((keep_up(&a, &clock), keep_up(&b, &clock)), (1, 0));
        assert_eq!(b.cleared(&clock, &mut clearing), Ok(vec![manager.node()]));
        rig.rack.advance_ms(1100);
        assert_eq!(b.cleared(&clock, &mut clearing), Ok(vec![]));
    }
    // Later it has blocks, and answers.
    let c = Cache::attach(&manager, &clock).unwrap();
    publish_for(&c, &clock, &tenant(), 3);
    let refused = b.clear(&clock, None).err();
    assert_eq!(refused, Some(DirectiveError::Unanswered { node: manager.node() }));
    assert_eq!(keep_up(&c, &clock), 1);
    publish_for(&c, &clock, &tenant(), 3);
    let mut clearing = b.clear(&clock, Some(&tenant())).unwrap();
    assert_eq!((keep_up(&c, &clock), keep_up(&a, &clock), keep_up(&b, &clock)), (1, 0, 0));
    assert_eq!(b.cleared(&clock, &mut clearing), Ok(vec![]));
}

/// A descriptor that cannot be read may be one that its paused owner was changing.
#[test]
fn a_torn_block_of_a_node_that_does_not_answer_may_be_there() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish_for(a, clock, &tenant(), 2);
        let mut clearing = b.clear(clock, Some(&tenant())).unwrap();
        keep_up(b, clock);
        let line = a.areas().segment(handle.owner()).range(handle.slot()).start().bytes();
        rig.rack.flip_bit(line + 9, 1);
        rig.rack.advance_ms(1100);
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![handle.owner()]));
        // The owner had paused in the middle of a change: its caches have the rest.
        rig.rack.flip_bit(line + 9, 1);
        assert_eq!(keep_up(a, clock), 1);
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![]));
    });
}

/// A node that joins, or wakes, reads the directives of all nodes at once.
#[test]
fn an_unpin_of_another_node_ends_an_earlier_pin() {
    for (pins, unpins) in [(0, 1), (1, 0)] {
        let rig = Rig::new(3, 32, 64);
        let late = rig.join(2);
        on_two_hosts(&rig, |a, b, clock| {
            let asking = |node| if node == 0 { a } else { b };
            let long = Pin { percent: 20, length_ms: 1 << 33, asked_ms: 1000 };
            asking(pins).pin(clock, &tenant(), long).unwrap();
            asking(unpins).unpin(clock, &tenant(), 2000).unwrap();
            asking(pins).unpin(clock, &Namespace::new("other", b""), 1000).unwrap();
            asking(unpins)
                .pin(clock, &Namespace::new("other", b""), Pin { asked_ms: 3000, ..long })
                .unwrap();
            let cache = Cache::attach(&late, clock).unwrap();
            for cache in [a, b, &cache] {
                keep_up(cache, clock);
                let pinned = cache.locked(clock, |heap| heap.quotas.all());
                let tags: Vec<_> = pinned.iter().map(|share| share.namespace).collect();
                assert_eq!(tags, [Namespace::new("other", b"").tag()], "pinned by node {pins}");
            }
        });
    }
}

/// A process of the host has read a pin, and carries it out after another has seen its end.
#[test]
fn a_late_process_brings_back_no_pin_that_was_ended() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let pin = Pin { percent: 20, length_ms: 1 << 33, asked_ms: 1000 };
        b.pin(clock, &tenant(), pin).unwrap();
        let late = [a.new_directives(b.member().node(), 0, 1).unwrap()];
        // The clock of the asking host goes back.
        let number = b.unpin(clock, &tenant(), 900).unwrap();
        keep_up(a, clock);
        assert_eq!(a.locked(clock, |heap| pin_and_answer(heap, &late)), 0);
        a.locked(clock, |heap| assert_eq!(heap.quotas.all(), []));
        assert_eq!(b.unanswered(clock, number), Ok(vec![b.member().node()]));
    });
}

/// What is being written while its namespace is cleared is as good as ever, and may stay.
#[test]
fn a_block_that_is_written_meanwhile_is_committed() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let reserved = a.reserve_for(clock, &tenant(), &[spec(2)], CHUNK_TIMEOUT_MS).remove(0);
        let Reservation::Writing(block) = reserved else { panic!("{reserved:?}") };
        publish_for(a, clock, &tenant(), 3);
        let mut clearing = b.clear(clock, Some(&tenant())).unwrap();
        assert_eq!((keep_up(a, clock), keep_up(b, clock)), (1, 0));
        store(a, block.payload(), &content(2));
        assert!(a.commit(clock, vec![(block, checksum(&content(2)))])[0].is_ok());
        assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![]));
        assert_eq!(there(b, [2, 3]), [2]);
        assert_eq!(keep_up(a, clock), 0, "carried out once");
    });
}

/// Two hosts clear at once what a third has left.
#[test]
fn two_clear_at_once_what_a_node_left() {
    let rig = Rig::new(3, 64, 64);
    let third = rig.join(2);
    {
        let clock = rig.serve(&[&third]);
        let cache = Cache::attach(&third, &clock).unwrap();
        (1..=5).for_each(|number| _ = publish_for(&cache, &clock, &tenant(), number));
        publish(&cache, &clock, 6);
    }
    assert_eq!(third.leave(), LeaveOutcome::NodeLeft);
    on_two_hosts(&rig, |a, b, clock| {
        let mut clearings = [a, b].map(|it| it.clear(clock, Some(&tenant())).unwrap());
        keep_up(a, clock);
        keep_up(b, clock);
        // One is in the middle of it.
        assert!(a.take_orphan(clock, NodeId(2)));
        assert_eq!(b.cleared(clock, &mut clearings[1]), Ok(vec![NodeId(2)]));
        a.leave_orphan(clock);
        for (cache, clearing) in [a, b].into_iter().zip(&mut clearings) {
            assert_eq!(cache.cleared(clock, clearing), Ok(vec![]));
        }
        assert_eq!(clearings.map(|clearing| clearing.orphaned_blocks), [5, 0]);
        assert_eq!(there(a, 1..=6), [6]);
    });
}

/// A process dies in the middle of a clear: before it retires anything, after a part, and before
/// the answer.
#[test]
fn a_process_dies_while_it_clears() {
    for retired in 0..=5 {
        let rig = Rig::new(2, 64, 64);
        on_two_hosts(&rig, |a, b, clock| {
            let handles: Vec<_> =
                (1..=5).map(|number| publish_for(a, clock, &tenant(), number)).collect();
            publish(a, clock, 6);
            let mut clearing = b.clear(clock, Some(&tenant())).unwrap();
            let dying = rig.join(0);
            {
                let cache = Cache::attach(&dying, clock).unwrap();
                assert_eq!(cache.retire(clock, &handles[..retired]), retired as u64);
            }
            rig.kill(&dying);
            std::mem::forget(dying);
            assert_eq!(keep_up(a, clock), (5 - retired) as u64);
            keep_up(b, clock);
            assert_eq!(b.cleared(clock, &mut clearing), Ok(vec![]));
            assert_eq!(there(b, 1..=6), [6]);
        });
    }
}

/// A host loses power after each of the steps of asking, and asks again in its next life: what
/// counts is what it asks then.
#[test]
fn numbers_go_on_in_the_next_life() {
    let rig = Rig::new(2, 64, 64);
    let first = rig.join(0);
    for round in 0..3 {
        let second = rig.join(1);
        let clock = rig.serve(&[&first, &second]);
        let a = Cache::attach(&first, &clock).unwrap();
        let b = Cache::attach(&second, &clock).unwrap();
        for _ in 0..7 {
            publish_for(&a, &clock, &tenant(), 2);
            let mut clearing = b.clear(&clock, Some(&tenant())).unwrap();
            assert_eq!((keep_up(&a, &clock), keep_up(&b, &clock)), (1, 0), "round {round}");
            assert_eq!(b.cleared(&clock, &mut clearing), Ok(vec![]));
        }
        // Asked for, and not answered by the node itself.
        b.clear(&clock, Some(&tenant())).unwrap();
        drop((b, clock));
        assert_eq!(second.leave(), LeaveOutcome::NodeLeft);
    }
}

/// A pin that a host refuses, and one that it sets, as the asking host sees them at once.
pub(super) fn refusals_seen_at_once(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let pin = Pin { percent: 1, length_ms: 60_000, asked_ms: 1 };
        for round in 0..4 {
            let quota = (round % 2 == 0).then_some(Quota::Percent(7));
            a.set_quota(clock, &tenant(), quota).unwrap();
            let number = b.pin(clock, &tenant(), pin).unwrap();
            assert_eq!(b.refused(number), []);
            keep_up(a, clock);
            let refused: Vec<_> = quota.map(|_| a.member().node()).into_iter().collect();
            assert_eq!(b.refused(number), refused, "round {round}");
            keep_up(b, clock);
            assert_eq!(b.unanswered(clock, number), Ok(vec![]));
        }
    });
}

#[test]
fn a_refused_pin_is_said() {
    refusals_seen_at_once(SimulatedRack::sticky(2, REGION_BYTES));
}

#[test]
fn tenants_beyond_the_table_are_refused_and_it_is_said() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let pin = Pin { percent: 1, length_ms: 60_000, asked_ms: 1 };
        let mut refused = Vec::new();
        for number in 0..70u32 {
            let namespace = Namespace::new(&number.to_string(), b"");
            let asked = b.pin(clock, &namespace, pin).unwrap();
            keep_up(a, clock);
            keep_up(b, clock);
            assert_eq!(b.unanswered(clock, asked), Ok(vec![]));
            refused.push(b.refused(asked).len());
        }
        assert_eq!(refused[..64], [0; 64]);
        assert_eq!(refused[64..], [2; 6]);
        let asked = b.unpin(clock, &Namespace::new("3", b""), 2).unwrap();
        keep_up(a, clock);
        assert_eq!(b.refused(asked), []);
    });
}

#[test]
fn a_wait_for_a_number_never_asked_for_is_for_all() {
    let rig = Rig::new(2, 32, 64);
    on_two_hosts(&rig, |_, b, clock| {
        assert_eq!(b.unanswered(clock, 9).map(|nodes| nodes.len()), Ok(2));
        let wrong = Pin { percent: 60, length_ms: 1, asked_ms: 0 };
        assert_eq!(b.pin(clock, &tenant(), wrong), Err(DirectiveError::Percent(60)));
    });
}
