//! The last process of a host leaves, or another one joins, after the slot or the region was lost.

use super::*;
use crate::layout::OwnedDoubleBuffer;
use crate::layout::{Case, RecoveryRecord, RecoveryStep};
use crate::lifecycle::join::JoinError;
use crate::lifecycle::leave::LeaveOutcome;
use crate::units::WordOffset;

const LIFE: Incarnation = Incarnation(1);

impl Bed {
    /// All that is on the device.
    fn words(&self) -> Vec<u64> {
        let word = |index| self.rack.device_word(WordOffset::new(index * 8).unwrap());
        (0..GEOMETRY.region_bytes / 8).map(word).collect()
    }

    fn publish_line(&self, member: &Process, state: NodeState) {
        let line = NodeLine::new(state, LIFE, [2, 0], [2, 0]);
        member.layout().node_line(NODE).claim().publish(&self.rack.host(2), &line);
    }

    /// Another machine joins as the same node.
    fn join_another(&self) -> Process {
        let memory = self.rack.host_memory(2, HostTier::words_of(&GEOMETRY));
        let (identity, me) = (HostIdentity::simulated(2), ProcessIdentity::new(9, 1));
        let (fabric, died) = (self.rack.host(2), self.died.clone());
        Member::join(fabric, memory, NODE.0, &identity, me, died, &HandClock::new(10)).unwrap()
    }

    /// `member` leaves as the last process of its host. Whether it wrote anything to the region.
    fn writes_when_leaving(&self, member: Process) -> bool {
        let before = self.words();
        assert_eq!(member.leave(), LeaveOutcome::NodeLeft);
        self.words() != before
    }
}

/// The host was fenced too early, and its number was given to another machine.
#[test]
fn who_leaves_a_slot_that_another_machine_has_writes_nothing() {
    // What the last process of the first machine had noticed before: nothing, that it was declared
    // dead, or the next life, too.
    for noticed in 0..3 {
        let bed = Bed::new();
        let member = bed.join(1, 2);
        member.beat();
        bed.publish_line(&member, NodeState::Dead);
        if noticed > 0 {
            member.beat();
            assert_eq!(loss(&member), Some(LossCause::DeclaredDead));
        }
        let heir = bed.join_another();
        assert_eq!(heir.incarnation(), Incarnation(2));
        if noticed > 1 {
            member.beat();
        }
        assert!(!bed.writes_when_leaving(member), "noticed: {noticed}");
        assert!(heir.beat());
        assert_eq!(loss(&heir), None);
    }
}

#[test]
fn who_sleeps_through_a_formatting_and_leaves_before_a_beat_writes_nothing() {
    for inhabited in [false, true] {
        let bed = Bed::new();
        let sleeper = bed.join(1, 2);
        assert!(sleeper.beat());
        bed.format(2, [3, 4]);
        let heir = inhabited.then(|| bed.join_another());
        assert!(!bed.writes_when_leaving(sleeper), "inhabited: {inhabited}");
        if let Some(heir) = heir {
            assert!(heir.beat());
            assert_eq!(loss(&heir), None);
        }
    }
}

/// A host that was declared dead leaves in order until somebody has taken it for fenced (DEATH-R1).
#[test]
fn who_was_declared_dead_leaves_in_order_until_it_is_fenced() {
    for (step, writes) in [
        (RecoveryStep::Unfenced, true),
        (RecoveryStep::Fenced, false),
        (RecoveryStep::Freed, false),
        (RecoveryStep::Done, false),
    ] {
        let bed = Bed::new();
        let member = bed.join(1, 2);
        member.beat();
        let records = member.layout().recoveries(NodeId(0)).claim();
        let case = Case { incarnation: LIFE, appointment: 1 };
        let record = RecoveryRecord::new(case, LIFE, step);
        OwnedDoubleBuffer::<RecoveryRecord>::of(records, NODE).publish(&bed.rack.host(0), record);
        member.node_handle().tier().set_loss(LossCause::DeclaredDead);
        let layout = *member.layout();
        assert_eq!(bed.writes_when_leaving(member), writes, "{step:?}");
        let line = layout.node_line(NODE).fresh(&bed.rack.host(2)).unwrap();
        assert_eq!(line.state() == Some(NodeState::Left), writes, "{step:?}");
    }
}

#[test]
fn a_later_cause_replaces_that_the_node_was_declared_dead() {
    let bed = Bed::new();
    let member = bed.join(1, 2);
    let tier = member.node_handle().tier();
    tier.set_loss(LossCause::DeclaredDead);
    tier.set_loss(LossCause::SlotTaken);
    assert_eq!(tier.loss(), Some(LossCause::SlotTaken));
    for late in LossCause::ALL {
        tier.set_loss(late);
        assert_eq!(tier.loss(), Some(LossCause::SlotTaken), "{late:?}");
    }
}

/// A host sleeps, loses its slot, and wakes: a further process of it comes before the first beat.
#[test]
fn who_joins_a_host_that_has_lost_its_slot_is_refused() {
    let bed = Bed::new();
    let sleeper = bed.join(1, 2);
    sleeper.beat();
    bed.publish_line(&sleeper, NodeState::Dead);
    let _heir = bed.join_another();
    let memory = bed.rack.host_memory(1, HostTier::words_of(&GEOMETRY));
    let (identity, me) = (HostIdentity::simulated(1), ProcessIdentity::new(3, 1));
    let (fabric, died) = (bed.rack.host(1), bed.died.clone());
    let before = bed.words();
    let came = Process::join(fabric, memory, NODE.0, &identity, me, died, &HandClock::new(10));
    let refused = matches!(
        &came,
        Err(JoinError::MembershipLost(lost)) if lost.cause == LossCause::SlotTaken
    );
    assert!(refused, "{:?}", came.map(drop));
    assert!(bed.words() == before);
    assert_eq!(sleeper.processes().len(), 1, "a refused process has no place");
    assert_eq!(loss(&sleeper), Some(LossCause::SlotTaken), "all processes of the host are told");
}
