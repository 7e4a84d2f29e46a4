//! Nodes that are drained: they publish no new blocks, and what they have stays (CLEAR-D10).

use super::clear::keep_up;
use super::directives::damage;
use super::*;
use cxl_shm::units::NodeId;

use crate::identity::Namespace;
use crate::{Directive, Drain, Refusal, Watermarks};

fn drain_of(node: u16, asked_ms: u64) -> Drain {
    Drain { node: NodeId(node), asked_ms }
}

fn refuses(cache: &TestCache<'_>, clock: &impl Clock, number: u8) -> bool {
    let outcome = cache.reserve(clock, &[spec(number)], CHUNK_TIMEOUT_MS).remove(0);
    matches!(outcome, Reservation::Refused(Refusal::Drained))
}

#[test]
fn a_drained_node_publishes_nothing_and_keeps_what_it_has() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let before = publish(a, clock, 1);
        let number = b.drain(clock, drain_of(a.member().node().0, 5)).unwrap();
        assert!(!refuses(a, clock, 2), "it has not seen that it is drained");
        keep_up(b, clock);
        assert_eq!(b.unanswered(clock, number), Ok(vec![a.member().node()]));
        keep_up(a, clock);
        assert_eq!(b.unanswered(clock, number), Ok(vec![]));

        assert!(refuses(a, clock, 3) && !refuses(b, clock, 3), "one node alone");
        let there = a.reserve(clock, &[spec(1)], CHUNK_TIMEOUT_MS).remove(0);
        assert!(matches!(there, Reservation::AlreadyThere), "{there:?}");
        assert_eq!(fetch(b, 1, before), Ok(()));
        // A block on a drive of this host is restored for other hosts.
        let tag = Namespace::default().tag();
        let restored = a.reserve_tagged(clock, tag, &[spec(4)], CHUNK_TIMEOUT_MS).remove(0);
        assert!(matches!(restored, Reservation::Writing(_)), "{restored:?}");

        b.undrain(clock, drain_of(a.member().node().0, 6)).unwrap();
        keep_up(a, clock);
        assert!(!refuses(a, clock, 3));
        assert_eq!(a.process_state().metrics().refused, 1);
    });
}

#[test]
fn another_process_of_the_host_is_drained_at_once() {
    let rig = Rig::new(2, 64, 64);
    let (first, second, asking) = (rig.join(0), rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second, &asking]);
    let attach = |member| Cache::attach(member, &clock).unwrap();
    let (a, other, b) = (attach(&first), attach(&second), attach(&asking));
    b.drain(&clock, drain_of(0, 5)).unwrap();
    keep_up(&a, &clock);
    assert!(refuses(&other, &clock, 1));
}

/// The node leaves and joins again: the drain is in force until somebody ends it.
#[test]
fn a_node_that_joins_again_is_drained() {
    let rig = Rig::new(2, 64, 64);
    let asking = rig.join(1);
    let mut before = None;
    for (round, drained) in [(0, true), (1, true), (2, false)] {
        let member = rig.join(0);
        {
            let clock = rig.serve(&[&member, &asking]);
            let attach = |member| Cache::attach(member, &clock).unwrap();
            let (a, b) = (attach(&member), attach(&asking));
            match round {
                0 => {
                    before = Some(publish(&a, &clock, 1));
                    b.drain(&clock, drain_of(0, 5)).unwrap();
                }
                2 => _ = b.undrain(&clock, drain_of(0, 6)).unwrap(),
                _ => {}
            }
            a.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
            assert_eq!(refuses(&a, &clock, 2), drained, "round {round}");
            assert_eq!(fetch(&b, 1, before.unwrap()), Ok(()), "round {round}");
        }
        assert_eq!(member.leave(), LeaveOutcome::NodeLeft);
        let clock = rig.serve(&[&asking]);
        let b = Cache::attach(&asking, &clock).unwrap();
        assert_eq!(fetch(&b, 1, before.unwrap()), Ok(()), "round {round}: its blocks stay");
    }
}

/// What one node asks for counts in its own order, also when the drained node sees it at a join.
#[test]
fn a_clock_that_went_back_does_not_leave_a_node_drained() {
    let rig = Rig::new(2, 64, 64);
    let asking = rig.join(1);
    for round in 0..2 {
        let member = rig.join(0);
        {
            let clock = rig.serve(&[&member, &asking]);
            let attach = |member| Cache::attach(member, &clock).unwrap();
            let (a, b) = (attach(&member), attach(&asking));
            if round == 0 {
                b.drain(&clock, drain_of(0, 60)).unwrap();
                b.undrain(&clock, drain_of(0, 5)).unwrap();
            }
            a.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
            assert!(!refuses(&a, &clock, 1 + round), "round {round}");
        }
        assert_eq!(member.leave(), LeaveOutcome::NodeLeft);
    }
}

/// What two nodes ask for counts in the order of their clocks, when it is seen at once.
#[test]
fn the_last_request_counts() {
    for (drained_ms, ended_ms, drained) in [(5, 6, false), (6, 5, true)] {
        let rig = Rig::new(3, 64, 64);
        let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
        let clock = rig.serve(&[&first, &second, &third]);
        let attach = |member| Cache::attach(member, &clock).unwrap();
        let (a, b, c) = (attach(&first), attach(&second), attach(&third));
        b.undrain(&clock, drain_of(0, ended_ms)).unwrap();
        c.drain(&clock, drain_of(0, drained_ms)).unwrap();
        keep_up(&a, &clock);
        assert_eq!(refuses(&a, &clock, 1), drained);
    }
}

/// A line that cannot be read, of a process that is gone, hides no drain behind it from a join.
#[test]
fn a_drain_behind_a_damaged_line_is_seen_at_a_join() {
    let rig = Rig::new(3, 64, 64);
    let (asking, other) = (rig.join(1), rig.join(2));
    {
        let clock = rig.serve(&[&asking, &other]);
        let b = Cache::attach(&asking, &clock).unwrap();
        b.clear(&clock, None).unwrap();
        b.drain(&clock, drain_of(0, 5)).unwrap();
        damage(&rig, &b, NodeId(1), 1);
    }
    assert_eq!(asking.leave(), LeaveOutcome::NodeLeft);
    let member = rig.join(0);
    let clock = rig.serve(&[&member, &other]);
    let a = Cache::attach(&member, &clock).unwrap();
    assert!(refuses(&a, &clock, 1));
}

#[test]
fn a_drain_is_in_force_until_its_line_is_written_again() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let (node, asking) = (a.member().node(), b.member().node());
        assert_eq!(b.drain(clock, drain_of(0, 5)), Ok(1));
        for number in 2..=17 {
            assert_eq!(a.drain_in_force(node), Some((asking, 1)), "before {number}");
            // The 16th request after the drain warns, unless it ends that drain or asks again.
            let lost = (number == 17).then_some(node);
            assert_eq!(b.forgotten_drain(number, &Directive::Clear(None)), lost);
            assert_eq!(b.forgotten_drain(number, &Directive::Undrain(drain_of(0, 6))), None);
            assert_eq!(b.forgotten_drain(number, &Directive::Drain(drain_of(0, 6))), None);
            let other = Directive::Drain(drain_of(1, 6));
            assert_eq!(b.forgotten_drain(number, &other), lost);
            assert_eq!(b.clear(clock, None).map(drop), Ok(()));
            keep_up(a, clock);
            keep_up(b, clock);
        }
        assert_eq!(a.drain_in_force(node), None);
        assert!(refuses(a, clock, 1), "in this life it stays");
    });
}
