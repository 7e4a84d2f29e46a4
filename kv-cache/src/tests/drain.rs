//! Nodes that are drained: they publish no new blocks, and what they have stays (CLEAR-D10).

use super::clear::keep_up;
use super::directives::damage;
use super::give_back::without_manager;
use super::*;
use cxl_shm::units::NodeId;
use cxl_shm::verify::simulated::{Faults, Schedule};

use crate::identity::Namespace;
use crate::upkeep::LastAsked;
use crate::{Directive, DirectiveError, Drain, Pin, Refusal, Watermarks, directives_of};

fn drain_of(node: u16, asked_ms: u64) -> Drain {
    Drain { node: NodeId(node), asked_ms }
}

fn pin_of(asked_ms: u64) -> Pin {
    Pin { percent: 10, length_ms: 1000, asked_ms }
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

/// What two nodes ask for at once, neither having seen the other's request, counts in the order of their
/// clocks.
#[test]
fn the_last_request_counts() {
    for (drained_ms, ended_ms, drained) in [(5, 6, false), (6, 5, true)] {
        let rig = Rig::new(3, 64, 64);
        let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
        let clock = rig.serve(&[&first, &second, &third]);
        let attach = |member| Cache::attach(member, &clock).unwrap();
        let (a, b, c) = (attach(&first), attach(&second), attach(&third));
        b.issue(&clock, Directive::Undrain(drain_of(0, ended_ms))).unwrap();
        c.issue(&clock, Directive::Drain(drain_of(0, drained_ms))).unwrap();
        keep_up(&a, &clock);
        assert_eq!(refuses(&a, &clock, 1), drained);
    }
}

/// The host that asked for the drain has a clock that is ahead of the one that ends it, an hour later.
#[test]
fn a_clock_that_is_ahead_does_not_keep_a_node_drained() {
    let rig = Rig::new(3, 64, 64);
    let (second, third) = (rig.join(1), rig.join(2));
    for round in 0..2 {
        let first = rig.join(0);
        {
            let clock = rig.serve(&[&second, &third, &first]);
            let attach = |member| Cache::attach(member, &clock).unwrap();
            let (a, b, c) = (attach(&first), attach(&second), attach(&third));
            if round == 0 {
                b.drain(&clock, drain_of(0, u64::MAX / 2)).unwrap();
                keep_up(&a, &clock);
                assert!(refuses(&a, &clock, 1));
                c.undrain(&clock, drain_of(0, 60)).unwrap();
                keep_up(&a, &clock);
            }
            assert!(!refuses(&a, &clock, 1), "round {round}");
            assert_eq!(c.drain_in_force(NodeId(0)), None, "as `rackline status` has it");
        }
        assert_eq!(first.leave(), LeaveOutcome::NodeLeft);
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

/// Asks for so many clears from `b`, which both carry out.
fn clears(a: &TestCache<'_>, b: &TestCache<'_>, clock: &impl Clock, count: u64) {
    for _ in 0..count {
        assert_eq!(b.clear(clock, None).map(drop), Ok(()));
        keep_up(a, clock);
        keep_up(b, clock);
    }
}

#[test]
fn a_drain_outlives_its_line() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let (node, asking) = (a.member().node(), b.member().node());
        assert_eq!(b.drain(clock, drain_of(0, 5)), Ok(1));
        let in_force = |number| {
            let drain = drain_of(0, 5);
            Some(LastAsked { asking, number, drain, drained: true, ends_another: false })
        };
        clears(a, b, clock, 14);
        assert_eq!(a.drain_in_force(node), in_force(1));
        // What says itself whether the node is drained needs no line of the old drain.
        let again = Some(Directive::Drained(drain_of(0, 5)));
        assert_eq!(b.said_again(17, &Directive::Clear(None)), again);
        assert_eq!(b.said_again(17, &Directive::Undrain(drain_of(0, 6))), None);
        assert_eq!(b.said_again(17, &Directive::Drain(drain_of(0, 6))), None);
        assert_eq!(b.said_again(17, &Directive::Drain(drain_of(1, 6))), again);
        clears(a, b, clock, 1);
        assert_eq!(a.drain_in_force(node), in_force(16), "CLEAR-D11");
        clears(a, b, clock, 100);
        assert_eq!(a.drain_in_force(node).map(|it| it.drain), Some(drain_of(0, 5)));
        assert!(refuses(a, clock, 1));
        assert_eq!(b.undrain(clock, drain_of(0, 4)).map(drop), Ok(()), "its clock went back");
        assert_eq!(a.drain_in_force(node), None);
        keep_up(a, clock);
        clears(a, b, clock, 40);
        assert!(a.drain_in_force(node).is_none() && !refuses(a, clock, 1));
    });
}

#[test]
fn a_node_that_saw_the_end_of_a_drain_is_not_drained_by_its_new_line() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let node = a.member().node();
        assert_eq!(b.drain(clock, drain_of(0, 5)), Ok(1));
        clears(a, b, clock, 14);
        // The end comes from another node, and the one that drained has not seen it when it writes anew.
        let stale = b.said_again(17, &Directive::Clear(None)).unwrap();
        assert_eq!(a.undrain(clock, drain_of(0, 7)).map(drop), Ok(()));
        keep_up(a, clock);
        assert!(!refuses(a, clock, 1));
        assert_eq!(b.issue(clock, stale).map(drop), Ok(()));
        assert_eq!(
            b.issue(clock, Directive::Pin(Namespace::default(), pin_of(9))).map(drop),
            Ok(())
        );
        keep_up(a, clock);
        assert!(!refuses(a, clock, 1), "it is no later request");
        assert_eq!(a.drain_in_force(node), None, "it counts by the time of the drain");
    });
}

/// One node asks for the drain, and another for its end. The first asks for nothing more, so its line
/// stays, and the other for many things.
#[test]
fn the_end_of_a_drain_outlives_its_line() {
    let rig = Rig::new(3, 64, 64);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    let clock = rig.serve(&[&second, &third, &first]);
    let attach = |member| Cache::attach(member, &clock).unwrap();
    let (b, c) = (attach(&second), attach(&third));
    let all_keep_up = |a: &TestCache<'_>| {
        for cache in [a, &b, &c] {
            keep_up(cache, &clock);
        }
    };
    let a = attach(&first);
    b.drain(&clock, drain_of(0, 5)).unwrap();
    all_keep_up(&a);
    c.undrain(&clock, drain_of(0, 6)).unwrap();
    all_keep_up(&a);
    assert!(!refuses(&a, &clock, 1));
    for number in 0..40 {
        c.clear(&clock, None).unwrap();
        all_keep_up(&a);
        assert_eq!(a.drain_in_force(NodeId(0)), None, "after {number} more requests");
    }
    // The first asks for more, so nobody says any more that the node is drained.
    let said = || {
        let (member, fabric) = (a.member(), a.member().fabric());
        let lines = |asking| {
            directives_of(fabric, member.superblock(), member.layout(), NodeId(asking)).unwrap()
        };
        let said = (0..3).flat_map(lines);
        said.filter(|it| it.directive.is_some_and(|it| it.of_drain().is_some())).count()
    };
    assert_eq!(said(), 2, "the drain and its end");
    for asking in [&b, &c] {
        for _ in 0..20 {
            asking.clear(&clock, None).unwrap();
            all_keep_up(&a);
        }
    }
    assert_eq!(said(), 0);
}

/// As before, and the node joins again.
#[test]
fn a_node_whose_drain_was_ended_elsewhere_is_not_drained_when_it_joins_again() {
    let rig = Rig::new(3, 64, 64);
    let (second, third) = (rig.join(1), rig.join(2));
    for round in 0..2 {
        let first = rig.join(0);
        {
            let clock = rig.serve(&[&second, &third, &first]);
            let attach = |member| Cache::attach(member, &clock).unwrap();
            let (a, b, c) = (attach(&first), attach(&second), attach(&third));
            if round == 0 {
                b.drain(&clock, drain_of(0, 5)).unwrap();
                keep_up(&a, &clock);
                c.undrain(&clock, drain_of(0, 6)).unwrap();
                for _ in 0..16 {
                    let _ = [&a, &b, &c].map(|cache| keep_up(cache, &clock));
                    c.clear(&clock, None).unwrap();
                }
            }
            assert!(!refuses(&a, &clock, 1), "round {round}");
        }
        assert_eq!(first.leave(), LeaveOutcome::NodeLeft);
    }
}

/// Two operators at once, neither of whom sees what the other asks for. Whichever the node sees first,
/// it does what `rackline status` says, and what it would do if it joined now.
#[test]
fn a_node_is_drained_exactly_when_it_would_be_if_it_joined_now() {
    for (first, second) in [(5, 6), (6, 5)] {
        for ends_first in [false, true] {
            let rig = Rig::new(3, 64, 64);
            let (node, others) = (rig.join(0), [rig.join(1), rig.join(2)]);
            let clock = rig.serve(&[&node, &others[0], &others[1]]);
            let attach = |member| Cache::attach(member, &clock).unwrap();
            let (a, b, c) = (attach(&node), attach(&others[0]), attach(&others[1]));
            let requests = [
                (&b, Directive::Drain(drain_of(0, first))),
                (&c, Directive::Undrain(drain_of(0, second))),
            ];
            let in_turn = if ends_first { [1, 0] } else { [0, 1] };
            for (asking, request) in in_turn.map(|at| requests[at]) {
                asking.issue(&clock, request).unwrap();
                keep_up(&a, &clock);
            }
            assert_eq!(c.drain_in_force(NodeId(0)).is_some(), first > second);
            assert_eq!(refuses(&a, &clock, 1), first > second, "the end came first: {ends_first}");
        }
    }
}

/// A node without blocks bounds nothing, so the line of the drain is written again before it continues.
#[test]
fn a_node_that_was_paused_for_long_is_drained() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        b.drain(clock, drain_of(0, 5)).unwrap();
        for _ in 0..40 {
            b.clear(clock, None).unwrap();
            keep_up(b, clock);
        }
        assert!(!refuses(a, clock, 1), "it has not seen it");
        keep_up(a, clock);
        assert!(refuses(a, clock, 1));
    });
}

/// A process of host 1 asks for something, and dies before operation `step` of that, if one is given. The
/// node has asked before for a drain of node 0, and `behind` other things. Returns how many operations the
/// process had.
fn ask_until(behind: u64, step: Option<u64>) -> u64 {
    let rig = without_manager(2);
    let clock = rig.rack.clock(1);
    let (survivor, dying) = (rig.join(1), rig.join(1));
    let b = Cache::attach(&survivor, &clock).unwrap();
    b.drain(&clock, drain_of(0, 5)).unwrap();
    for _ in 0..behind {
        b.clear(&clock, None).unwrap();
        keep_up(&b, &clock);
    }
    let is_drained = || b.drain_in_force(NodeId(0)).is_some();
    assert!(is_drained());

    let lent = Arc::new(Mutex::new(Some(dying)));
    let identity = {
        let lent = lent.lock().unwrap();
        let dying = lent.as_ref().unwrap();
        dying.processes().into_iter().find(|(slot, _)| *slot == dying.process()).unwrap().1
    };
    let deaths = rig.deaths.clone();
    let task = {
        let (lent, clock) = (Arc::clone(&lent), rig.rack.clock(1));
        move || {
            let member = lent.lock().unwrap().take().unwrap();
            let cache = Cache::attach(&member, &clock).unwrap();
            cache.clear(&clock, None).unwrap();
            drop(cache);
            *lent.lock().unwrap() = Some(member);
        }
    };
    let mut schedule = Schedule::builder(&rig.rack, 1)
        .faults(Faults::NONE)
        .task(1, "asking", task)
        .on_crash(move |_| deaths.0.lock().unwrap().extend([identity]));
    if let Some(step) = step {
        schedule = schedule.crash_process_at("asking", step);
    }
    let report = schedule.run();
    assert!(is_drained(), "step {step:?}");
    // The next process of the host goes on.
    keep_up(&b, &clock);
    assert!(b.clear(&clock, None).is_ok(), "step {step:?}");
    assert!(is_drained(), "step {step:?}: after another request");
    report.task("asking").unwrap().steps
}

#[test]
fn who_dies_while_it_asks_forgets_no_drain() {
    // The line of the drain is needed for the next request, or for the one after that.
    for behind in [14, 15] {
        for step in 0..=ask_until(behind, None) {
            ask_until(behind, Some(step));
        }
    }
}

/// A host has counted the requests, and the line of the drain is written again before it reads the lines.
#[test]
fn a_drain_is_seen_while_it_is_said_again() {
    for behind in 0..20 {
        let rig = Rig::new(2, 64, 64);
        on_two_hosts(&rig, |a, b, clock| {
            b.drain(clock, drain_of(0, 5)).unwrap();
            clears(a, b, clock, behind);
            let counts = a.directive_counts();
            clears(a, b, clock, 1);
            let last = a.last_asked_since(NodeId(0), counts);
            assert!(last.is_some_and(|last| last.drained), "{behind} requests behind the drain");
        });
    }
}

/// A host whose last engine has stopped, and left no blocks: it has answered the first drain, and not the
/// second. Only a lock manager runs there now.
#[test]
fn a_node_without_blocks_bounds_no_request_that_says_drains_again() {
    let rig = Rig::new(3, 64, 64);
    let (first, second, third) = (rig.join(0), rig.join(1), rig.join(2));
    let clock = rig.serve(&[&third, &first, &second]);
    let attach = |member| Cache::attach(member, &clock).unwrap();
    let (a, b) = (attach(&first), attach(&second));
    b.issue(&clock, Directive::Drain(drain_of(1, 5))).unwrap();
    keep_up(&attach(&third), &clock);
    b.issue(&clock, Directive::Drain(drain_of(2, 5))).unwrap();
    for number in 3..40 {
        keep_up(&a, &clock);
        keep_up(&b, &clock);
        assert_eq!(b.clear(&clock, None).map(drop), Ok(()), "request {number}");
    }
    assert!([1, 2].iter().all(|node| a.drain_in_force(NodeId(*node)).is_some()));
}

#[test]
fn a_node_that_does_not_exist_is_not_drained() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let missing = drain_of(2, 5);
        let no_node = Err(DirectiveError::NoNode(missing.node));
        assert_eq!((b.drain(clock, missing), b.undrain(clock, missing)), (no_node, no_node));
        assert_eq!(a.drain_in_force(missing.node), None, "and takes no line");
    });
}

#[test]
fn the_lines_of_a_node_keep_fourteen_drains() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        // Lines are written for any number.
        for node in 2..18 {
            let drain = Directive::Drain(drain_of(node, u64::from(node)));
            assert_eq!(b.issue(clock, drain).map(drop), Ok(()));
            keep_up(a, clock);
            keep_up(b, clock);
        }
        let drained = || {
            let is_drained = |node: &u16| a.drain_in_force(NodeId(*node)).is_some();
            (2..18).filter(is_drained).collect::<Vec<_>>()
        };
        clears(a, b, clock, 40);
        assert_eq!(drained(), (4..18).collect::<Vec<_>>());
        clears(a, b, clock, 40);
        assert_eq!(drained().len(), 14);
    });
}
