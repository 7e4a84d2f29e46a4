//! All slots, as a watcher sees them that looks all the time.

use super::slot::Slot;
use crate::fabric::{Fabric, refresh_all};
use crate::layout::Layout;
use crate::units::NodeId;

/// How often a watcher of all slots reads the join marks of those in which nobody lives: 32 lines
/// each, which hardly ever change.
const JOIN_MARKS_MS: u64 = 100;

/// The slots, as a watcher sees them that looks all the time, with what their
/// join marks last said.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotWatch {
    marks_at_ms: u64,
    /// What the lines of a slot said, and what that was with the life in admission.
    last_seen: Vec<(NodeId, Option<Slot>, Option<Slot>)>,
}

impl SlotWatch {
    /// All slots: their lines freshly read, and their join marks as they were at most
    /// [`JOIN_MARKS_MS`] ago, or when the lines last changed.
    pub(crate) fn look<F: Fabric>(
        &mut self,
        layout: &Layout,
        fabric: &F,
        now_ms: u64,
    ) -> Vec<Slot> {
        let all_marks = now_ms >= self.marks_at_ms;
        if all_marks {
            self.marks_at_ms = now_ms + JOIN_MARKS_MS;
        }
        let nodes: Vec<NodeId> = layout.nodes().collect();
        let slots = Slot::without_admissions(layout, fabric, &nodes);
        let asks = |slot: &Option<Slot>| slot.is_none_or(|it| it.machine.is_none());
        let known = |node: NodeId, slot: Option<Slot>| {
            let mut known = self.last_seen.iter().filter(|_| !all_marks);
            known.find(|it| (it.0, it.1) == (node, slot)).copied()
        };
        let (mut seen, mut unknown) = (Vec::new(), Vec::new());
        for (node, slot) in slots {
            match known(node, slot) {
                Some(known) => seen.push(known),
                None if asks(&slot) => unknown.push((node, slot)),
                None => seen.push((node, slot, slot)),
            }
        }
        refresh_all(fabric, unknown.iter().map(|(node, _)| layout.join_marks(*node)));
        let with_admission = |(node, slot): (NodeId, Option<Slot>)| {
            (node, slot, Slot::with_admission(layout, fabric, node, slot, None))
        };
        seen.extend(unknown.into_iter().map(with_admission));
        seen.sort_by_key(|(node, ..)| *node);
        self.last_seen = seen;
        self.last_seen.iter().filter_map(|(_, _, slot)| *slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{HostIdentity, ProcessIdentity};
    use crate::layout::{LockProtocol, NodeLine, NodeState};
    use crate::lifecycle::JoinAttempt;
    use crate::units::Incarnation;
    use crate::verify::fixture::{SMALL, SmallRegion};

    const SLOT: NodeId = NodeId(1);

    /// Somebody comes for a slot that nobody ever had, and, when `vacant`, for one that was left.
    #[test]
    fn join_marks_are_read_ten_times_a_second() {
        for vacant in [false, true] {
            let SmallRegion { rack, layout, .. } =
                SmallRegion::new(SMALL, LockProtocol::Arbitrated);
            let (watcher, comer) = (rack.host(0), rack.host(1));
            let mut before = Incarnation(0);
            if vacant {
                before = Incarnation(4);
                let line = NodeLine::new(NodeState::Left, before, [9, 9], [9, 9]);
                layout.node_line(SLOT).claim().publish(&comer, &line);
            }
            let mut watch = SlotWatch::default();
            let mut in_admission = |now_ms| {
                let seen = watch.look(&layout, &watcher, now_ms);
                let slot = seen.into_iter().find(|slot| slot.node == SLOT);
                slot.filter(|slot| slot.in_admission).map(|slot| slot.incarnation)
            };
            assert_eq!(in_admission(1000), None);
            let attempt =
                JoinAttempt::new(SLOT, &HostIdentity::simulated(1), ProcessIdentity::new(2, 1));
            let snapshot = attempt.look(&layout, &comer, before);
            let next = Incarnation(before.0 + 1);
            attempt.try_claim(&layout, &comer, &snapshot, next).unwrap();
            for now_ms in (1010..1000 + JOIN_MARKS_MS).step_by(10) {
                assert_eq!(in_admission(now_ms), None, "no join mark is read yet");
            }
            for now_ms in (1000 + JOIN_MARKS_MS..2000).step_by(10) {
                assert_eq!(in_admission(now_ms), Some(next));
            }
            // The line of the slot is looked at each time.
            let line = NodeLine::new(NodeState::Joined, next, [9, 9], [9, 9]);
            layout.node_line(SLOT).claim().publish(&comer, &line);
            assert_eq!(in_admission(2000), None);
            assert_eq!(watch.look(&layout, &watcher, 2010)[0].line, Some(line));
        }
    }
}
