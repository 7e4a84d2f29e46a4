//! Records of a recovery that cannot be read, and lines of a later life.

use super::*;
use crate::fabric::Fabric;
use crate::layout::{DOUBLE_BUFFER_LINES, Layout, NodeLine, NodeState, RecoveryRecord};
use crate::units::{LineOffset, LineRange};
use crate::verify::BackendOf;
use crate::verify::simulated::{Access, Interposed};

const RECOVERER: NodeId = NodeId(0);

/// The memory of `host`, before whose `at`th refresh of `line` something happens.
fn before_refresh(
    host: SimulatedHost,
    line: LineOffset,
    at: u32,
    act: &dyn Fn(),
) -> Interposed<impl Fn(Access)> {
    let refreshes = Cell::new(0);
    Interposed::new(host, move |access: Access| {
        if access.invalidates(line) {
            refreshes.set(refreshes.get() + 1);
            if refreshes.get() == at {
                act();
            }
        }
    })
}

impl Bed {
    fn layout(&self) -> Layout {
        Layout::new(self.geometry).unwrap()
    }

    /// The two lines in which node 0 says how far it is with the victim.
    fn double_buffer(&self) -> [LineOffset; 2] {
        let area = self.layout().recoveries(RECOVERER);
        let line =
            |i| area.line::<RecoveryRecord>(u64::from(VICTIM.0) * DOUBLE_BUFFER_LINES + i).unwrap();
        [0, 1].map(|i| line(i).at())
    }

    /// What `host` has half written there, or half overwritten again.
    fn tear(&self, host: usize, line: LineOffset) {
        let fabric = self.rack.host(host);
        let mut words = fabric.read_line(line);
        words[2] ^= 1 << 40;
        fabric.write_line(line, &words);
        fabric.publish(LineRange::one(line));
    }

    /// The machine of `node` comes for its slot.
    fn comes<F: Fabric>(
        &self,
        fabric: F,
        node: NodeId,
        pid: u32,
    ) -> Result<Member<BackendOf<F, SimulatedHostMemory, Died>>, JoinError> {
        let memory = self.rack.host_memory(node.index(), HostTier::words_of(&self.geometry));
        let identity = HostIdentity::simulated(u64::from(node.0));
        let (me, clock) = (ProcessIdentity::new(pid, 1), HandClock::new(10));
        Member::join(fabric, memory, node.0, &identity, me, self.died.clone(), &clock)
    }

    fn line_of_victim(&self) -> NodeLine {
        self.layout().node_line(VICTIM).fresh(&self.rack.host(1)).unwrap()
    }
}

/// The recoverer writes its record twice while the machine of the dead comes back and looks: first
/// one of the two lines is half written, then the other.
#[test]
fn nobody_comes_in_beside_a_recovery_whose_record_is_being_written() {
    let bed = Bed::of_three(1);
    let manager = bed.join(0, MANAGER_PID);
    let manage = manager.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, 0);
    bed.dies(bed.join(2, 9));
    let redone = has_reached(RecoveryStep::Redone);
    let events = bed.watch(&mut deaths, &[&manager], &mut Off, &redone);
    assert!(events.iter().any(redone), "{events:?}");

    let [first, second] = bed.double_buffer();
    // Half of `Redone`; then, when the next recoverer has taken that for torn, half of `Freed`.
    bed.tear(0, second);
    let freeing = || {
        bed.tear(0, second);
        bed.tear(0, first);
    };
    let late = before_refresh(bed.rack.host(2), first, 2, &freeing);
    let came = bed.comes(late, VICTIM, 10);
    let outcome = came.as_ref().map(|member| member.incarnation());
    assert!(
        matches!(came, Err(JoinError::BeingRecovered { recoverer: RECOVERER, .. })),
        "{outcome:?}"
    );
    bed.tear(0, first);
    let events = bed.watch(&mut deaths, &[&manager], &mut Off, is_done);
    assert!(events.iter().any(is_done), "{events:?}");
    let line = bed.line_of_victim();
    assert_eq!((line.state(), line.incarnation()), (Some(NodeState::Dead), Incarnation(1)));
    let heir = bed.comes(bed.rack.host(2), VICTIM, 11).unwrap();
    assert_eq!(heir.incarnation(), Incarnation(2));
}

/// What a recoverer said is damaged for good: the slot of the dead is closed as long as the life of
/// the recoverer may be writing, and no longer.
#[test]
fn a_record_that_stays_torn_counts_until_the_life_of_its_writer_is_over() {
    for returns in [false, true] {
        let bed = Bed::of_three(1);
        let writer = bed.join(0, 1);
        bed.dies(bed.join(2, 9));
        bed.double_buffer().into_iter().for_each(|line| bed.tear(0, line));
        let came = || bed.comes(bed.rack.host(2), VICTIM, 10).map(|member| member.incarnation());
        for _ in 0..2 {
            let refused = came();
            assert!(
                matches!(refused, Err(JoinError::BeingRecovered { recoverer: RECOVERER, .. })),
                "{refused:?}"
            );
            let message = refused.unwrap_err().to_string();
            assert!(message.contains("restart Rackline on node 0"), "{message}");
        }
        writer.leave();
        if returns {
            let next = bed.join(0, 2);
            assert_eq!(next.incarnation(), Incarnation(2));
            assert_eq!(came().unwrap(), Incarnation(2), "its next life has made the record good");
        } else {
            assert_eq!(came().unwrap(), Incarnation(2), "its life is over");
        }
    }
}

#[test]
fn the_line_of_a_later_life_is_never_overwritten() {
    for step in [RecoveryStep::Fenced, RecoveryStep::Redone, RecoveryStep::Freed] {
        let bed = Bed::of_three(1);
        let manager = bed.join(0, MANAGER_PID);
        let manage = manager.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, 0);
        bed.dies(bed.join(2, 9));
        let reached = has_reached(step);
        let events = bed.watch(&mut deaths, &[&manager], &mut Off, &reached);
        assert!(events.iter().any(reached), "{events:?}");
        let lives = NodeLine::new(NodeState::Joined, Incarnation(2), [3, 0], [3, 0]);
        bed.layout().node_line(VICTIM).claim().publish(&bed.rack.host(2), &lives);
        for _ in 0..20 {
            bed.look(&mut deaths, &[&manager], &mut Off);
        }
        assert_eq!(bed.line_of_victim(), lives, "a living host was recovered at {step:?}");
    }
}
