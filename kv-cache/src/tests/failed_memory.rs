//! Metadata that cannot be read, under calls that say what all nodes have done.

use cxl_shm::host::{LossCause, MembershipLost};
use cxl_shm::units::LineOffset;
use cxl_shm::verify::simulated::FailedLine;

use super::clear::{publish_for, tenant};
use super::*;
use crate::{Drain, DriveGeometry, Refusal};

fn is_told<T: std::fmt::Debug>(outcome: Result<T, MembershipLost>) {
    let lost = outcome.expect_err("what it saw were zeros");
    assert_eq!(lost.cause, LossCause::MemoryFailed);
}

/// Two hosts of which the second does not answer, and has a block of the tenant and a drive. A line
/// fails that the first host asks for.
fn after_a_failure(
    line: impl Fn(&TestCache<'_>, &TestCache<'_>) -> LineOffset,
    ask: impl Fn(&TestCache<'_>, &ServingClock<'_>, &dyn Fn()),
) {
    let drives = DriveGeometry::new(16, 8, 2).unwrap();
    let geometry = CacheGeometry::new(32, 16).unwrap().with_drives(Some(drives));
    let rack = SimulatedRack::sticky(2, REGION_BYTES);
    let rig = Rig::formatted(rack, REGION_BYTES, 2, geometry);
    on_two_hosts(&rig, |a, b, clock| {
        publish_for(b, clock, &tenant(), 2);
        let claim = b.claim_drives().unwrap();
        let _announcer = crate::tier::DriveAnnouncer::begin(&claim, b).unwrap();
        ask(a, clock, &|| rig.rack.fail(line(a, b), FailedLine::default()));
        assert!(a.member().fabric().is_cut_off());
    });
}

fn node_line(a: &TestCache<'_>, b: &TestCache<'_>) -> LineOffset {
    a.areas().layout().node_line(b.member().node()).at()
}

#[test]
fn a_clear_is_not_complete_because_a_line_failed() {
    after_a_failure(node_line, |a, clock, fails| {
        let mut clearing = a.clear(clock, Some(&tenant())).unwrap();
        let left = a.cleared(clock, &mut clearing).unwrap();
        assert!(!left.is_empty());
        fails();
        is_told(a.cleared(clock, &mut clearing));
    });
}

#[test]
fn a_clear_of_drives_is_not_complete_because_a_line_failed() {
    let states = |a: &TestCache<'_>, b: &TestCache<'_>| {
        a.areas().drives().unwrap().of(b.member().node()).states().start()
    };
    after_a_failure(states, |a, clock, fails| {
        let clearing = a.clear(clock, Some(&tenant())).unwrap();
        assert_eq!(a.cleared_drives(&clearing).unwrap().len(), 1);
        fails();
        is_told(a.cleared_drives(&clearing));
    });
}

#[test]
fn a_drain_is_not_answered_because_a_line_failed() {
    after_a_failure(node_line, |a, clock, fails| {
        let node = a.areas().layout().nodes().nth(1).unwrap();
        let number = a.drain(clock, Drain { node, asked_ms: 1 }).unwrap();
        assert!(a.unanswered(clock, number).unwrap().contains(&node));
        fails();
        is_told(a.unanswered(clock, number));
    });
}

#[test]
fn a_directive_that_nobody_sees_is_not_issued() {
    let count = |a: &TestCache<'_>, _: &TestCache<'_>| {
        a.areas().directive_count(a.member().node()).range().start()
    };
    after_a_failure(count, |a, clock, fails| {
        a.member().fabric().refresh(a.areas().directive_count(a.member().node()).range());
        fails();
        let asked = a.clear(clock, Some(&tenant())).map(drop);
        let Err(crate::DirectiveError::MembershipLost(lost)) = asked else { panic!("{asked:?}") };
        is_told::<()>(Err(lost));
    });
}

#[test]
fn an_agent_has_not_cleared_blocks_of_which_it_sees_zeros() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, _, clock| {
        publish_for(a, clock, &tenant(), 2);
        let segment = a.segment(a.member().node()).unwrap();
        for slot in 0..a.geometry().descriptor_slots() {
            a.member().fabric().refresh(segment.range(slot));
            rig.rack.fail(segment.range(slot).start(), FailedLine::default());
        }
        is_told(a.clear_own_blocks(clock, |_| true));
    });
}

/// A GPU would store into the payload, which another process of the host may have by then.
#[test]
fn no_block_is_reserved_of_which_nobody_else_sees_it() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, _, clock| {
        publish(a, clock, 1);
        let segment = a.segment(a.member().node()).unwrap();
        for slot in 0..a.geometry().descriptor_slots() {
            a.member().fabric().refresh(segment.range(slot));
            rig.rack.fail(segment.range(slot).start(), FailedLine::default());
        }
        let reserved = a.reserve(clock, &[spec(2)], CHUNK_TIMEOUT_MS).remove(0);
        assert!(a.member().fabric().is_cut_off());
        let Reservation::Refused(refusal @ Refusal::MembershipLost(lost)) = &reserved else {
            panic!("{reserved:?}");
        };
        is_told::<()>(Err(*lost));
        // Nobody declared the node dead.
        assert_eq!(refusal.label(), "memory_failed");
        assert_eq!(crate::HoldError::MembershipLost(*lost).label(), "memory_failed");
    });
}
