//! Namespaces that are pinned: their blocks leave last, for a time.

use super::clear::{keep_up, publish_for, tenant};
use super::*;
use crate::{Directive, DirectiveError, Pin, directives_of};

const HALF: Pin = Pin { percent: 50, length_ms: 60_000, asked_ms: 1_800_000_000_000 };

/// Which of blocks 1 to 8 are there, of those that `a` published: a full chunk.
fn left(cache: &TestCache<'_>) -> Vec<u8> {
    (1..=8).filter(|number| find(cache, *number).is_some()).collect()
}

#[test]
fn what_is_pinned_leaves_last_for_as_long_as_it_was_asked_for() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        for (wrong, error) in [
            (Pin { percent: 51, ..HALF }, DirectiveError::Percent(51)),
            (Pin { percent: 0, ..HALF }, DirectiveError::Percent(0)),
            (Pin { length_ms: 0, ..HALF }, DirectiveError::Length(0)),
        ] {
            assert_eq!(b.pin(clock, &tenant(), wrong), Err(error));
        }
        let fill = || {
            // The tenant's are the oldest, and more than half of the chunk.
            (1..=5).for_each(|number| _ = publish_for(a, clock, &tenant(), number));
            (6..=8).for_each(|number| _ = publish(a, clock, number));
        };
        fill();
        let number = b.pin(clock, &tenant(), HALF).unwrap();
        let waiting = b.unanswered(clock, number);
        assert_eq!(waiting, Ok(vec![a.member().node(), b.member().node()]));
        keep_up(a, clock);
        keep_up(b, clock);
        assert_eq!(b.unanswered(clock, number), Ok(vec![]));
        // What is over the pin is like all others; what is within it leaves last, and leaves.
        assert_eq!(a.evict(clock, None, 4), 4);
        let tenants = left(b).into_iter().filter(|number| *number <= 5).count();
        assert_eq!((left(b).len(), tenants), (4, 4));
        assert_eq!(a.evict(clock, None, 8), 4);

        fill();
        let number = b.unpin(clock, &tenant(), 0).unwrap();
        keep_up(a, clock);
        keep_up(b, clock);
        assert_eq!((b.unanswered(clock, number), a.evict(clock, None, 5)), (Ok(vec![]), 5));
        assert_eq!(left(b), [6, 7, 8]);

        a.evict(clock, None, 8);
        fill();
        b.pin(clock, &tenant(), HALF).unwrap();
        keep_up(a, clock);
        rig.rack.advance_ms(60_000);
        keep_up(a, clock);
        assert_eq!((a.evict(clock, None, 5), left(b)), (5, vec![6, 7, 8]), "its time is over");
    });
}

/// A line that no `pin` writes: whatever it says, blocks only leave in another order, for a time.
#[test]
fn a_pin_out_of_range_in_the_region_is_harmless() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let wild = Pin { percent: u16::MAX, length_ms: u64::MAX, asked_ms: u64::MAX };
        let nothing = Pin { percent: 0, length_ms: 0, asked_ms: 0 };
        for (number, pin) in [(1, wild), (2, nothing)] {
            let directive = Directive::Pin(tenant(), pin);
            assert_eq!(b.issue(clock, directive), Ok(number));
            keep_up(a, clock);
            keep_up(b, clock);
            assert_eq!(b.unanswered(clock, number), Ok(vec![]));
            (1..=8).for_each(|number| _ = publish_for(a, clock, &tenant(), number));
            assert_eq!(a.evict(clock, None, 8), 8, "pinned blocks still leave");
        }
        rig.rack.advance_ms(1);
        keep_up(a, clock);
        let handle = publish(a, clock, 9);
        assert_eq!(fetch(b, 9, handle), Ok(()));
        a.locked(clock, |heap| assert_eq!(heap.quotas.all(), []));
    });
}

/// More directives than there are lines for, as a tool on another host sees them, which is no
/// member.
pub(super) fn pins_seen_by_tools(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let member = b.member();
        let seen = || {
            let (superblock, layout) = (member.superblock(), member.layout());
            directives_of(&rig.rack.host(2), superblock, layout, member.node()).unwrap()
        };
        assert_eq!(seen(), []);
        for round in 1..=10 {
            let directive = Directive::Pin(tenant(), HALF);
            let number = b.pin(clock, &tenant(), HALF).unwrap();
            let pinned = seen().pop().unwrap();
            assert_eq!(
                (number, pinned.number, pinned.directive),
                (2 * round - 1, number, Some(directive))
            );
            assert_eq!(pinned.answered_by, []);
            keep_up(a, clock);
            assert_eq!(seen().pop().unwrap().answered_by, [a.member().node()]);
            let number = b.unpin(clock, &tenant(), round).unwrap();
            keep_up(a, clock);
            keep_up(b, clock);
            let found = seen();
            let unpinned = found.last().unwrap();
            let directive = Directive::Unpin { namespace: tenant(), asked_ms: round };
            assert_eq!((unpinned.number, unpinned.directive), (number, Some(directive)));
            assert_eq!(unpinned.answered_by, [a.member().node(), member.node()]);
            assert_eq!(found.len() as u64, number.min(16));
        }
    });
}

#[test]
fn a_tool_sees_pins_and_who_has_answered() {
    pins_seen_by_tools(SimulatedRack::sticky(3, REGION_BYTES));
}
