//! Why a node does not take part in the region any more.

use crate::units::NodeId;

/// Why a node lost its membership. It never gets it back: the processes of the host end, and join
/// anew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LossCause {
    /// The other hosts declared the node dead.
    DeclaredDead,
    /// The node's line names a later life: another host, or another life of this one, has the slot.
    SlotTaken,
    /// The memory holds another region: it was formatted again.
    RegionReplaced,
    /// The memory holds no region: the device was reset, or it answers with zeros or all ones.
    ContentLost,
    /// The device could not read a line of the region's metadata, and this process was cut off from
    /// the region (FAULT-F4). Other processes of the node may go on.
    MemoryFailed,
}

impl LossCause {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::DeclaredDead,
        Self::SlotTaken,
        Self::RegionReplaced,
        Self::ContentLost,
        Self::MemoryFailed,
    ];

    /// Whether the slot or the region belongs to another host: the node writes nothing there any
    /// more. A node that was only declared dead has its slot until it is fenced.
    pub(crate) fn is_final(self) -> bool {
        self != Self::DeclaredDead
    }

    /// The cause in a word, for metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DeclaredDead => "declared_dead",
            Self::SlotTaken => "slot_taken",
            Self::RegionReplaced => "region_replaced",
            Self::ContentLost => "content_lost",
            Self::MemoryFailed => "memory_failed",
        }
    }
}

/// This node does not take part any more: it writes nothing, and nothing that it reads counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", self.in_words())]
pub struct MembershipLost {
    /// This node.
    pub node: NodeId,
    /// Why.
    pub cause: LossCause,
}

impl MembershipLost {
    fn in_words(self) -> String {
        let Self { node, cause } = self;
        match cause {
            LossCause::DeclaredDead => format!(
                "node {node} was declared dead by the other hosts, because its heartbeat stopped; \
                 end all processes of this node and start them again: the node joins again once it \
                 is recovered (`rackline status` shows the progress)"
            ),
            LossCause::SlotTaken => format!(
                "a later incarnation of node {node} has its slot in the region; make sure that no \
                 two hosts have this node number, then end all processes of this node on this host \
                 and start them again"
            ),
            LossCause::RegionReplaced => format!(
                "the region was formatted again while node {node} used it, and its blocks are \
                 lost; end all processes of this node and start them again"
            ),
            LossCause::ContentLost => format!(
                "the memory no longer holds the region that node {node} joined: the device was \
                 reset, or its link is down; check the device, end all processes of this node, \
                 format the region if it is gone, and start the processes again"
            ),
            LossCause::MemoryFailed => format!(
                "the memory of the region failed under this process of node {node}: the device \
                 reported an uncorrectable error in the metadata, or the file of the region was \
                 truncated; look for memory errors (`dmesg`, `cxl list --media-errors`), and start \
                 this process again; when it fails again, stop all processes and format the region"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Geometry, LockProtocol, NodeState};
    use crate::lifecycle::LeaveOutcome;
    use crate::units::WordOffset;
    use crate::verify::fixture::{EvenLive, SMALL, SmallRegion};

    #[test]
    fn each_cause_has_a_message_and_a_name_of_its_own() {
        let lost = LossCause::ALL.map(|cause| MembershipLost { node: NodeId(3), cause });
        for (index, one) in lost.iter().enumerate() {
            assert!(one.to_string().contains("node 3"), "{one}");
            for other in &lost[index + 1..] {
                assert_ne!(one.to_string(), other.to_string());
                assert_ne!(one.cause.name(), other.cause.name());
            }
        }
    }

    /// A process that leaves a slot which was taken, or a region which is another one, writes
    /// nothing there: it would say that the present inhabitant has left. A node that was declared
    /// dead leaves in order while nobody has fenced it, as here.
    #[test]
    fn who_leaves_what_is_not_its_own_writes_nothing() {
        for cause in LossCause::ALL {
            let geometry = Geometry { region_bytes: 1 << 20, ..SMALL };
            let region = SmallRegion::new(geometry, LockProtocol::Arbitrated);
            let (rack, layout) = (&region.rack, region.layout);
            let member = region.join(0, 2, EvenLive, &rack.clock(0));
            member.node_handle().tier().set_loss(cause);
            let words = || {
                let lines = (0..geometry.region_bytes / 8).map(|word| word * 8);
                let word = |at| rack.device_word(WordOffset::new(at).unwrap());
                lines.map(word).collect::<Vec<_>>()
            };
            let before = words();
            assert_eq!(member.leave(), LeaveOutcome::NodeLeft);
            assert_eq!(words() == before, cause != LossCause::DeclaredDead, "{cause:?}");
            let line = layout.node_line(NodeId(0)).fresh(&rack.host(0)).unwrap();
            let has_left = line.state() == Some(NodeState::Left);
            assert_eq!(has_left, cause == LossCause::DeclaredDead, "{cause:?}");
        }
    }
}
