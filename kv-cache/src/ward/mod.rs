//! Wards: what a dead node published, while nobody has its slot.
//!
//! Its blocks stay readable where they are, and it no longer matters that nobody evicts them, until
//! chunks run short. Then a host that lives, its *guardian*, empties one of its chunks and gives that
//! back to the region: the only thing ever done to a ward. Everything else, blocks that the dead was
//! writing among it, is left to the next life of the slot, which sweeps it as always (E2, E3).
//!
//! ```text
//! guardian   word names the ward, published    fresh look: dead, and no other host's word names it?
//!            EVICTING, look at the stamps, READY again or FREE, log: as for its own blocks (H1)
//!            chunk back to the region          word cleared
//! next life  node's line says that it joins    fresh look: no word in force names it?
//!            what caches hold of its area is dropped, then it sweeps
//! ```
//!
//! - **W1** A host writes the log and the segment of another node only while its word names that
//!   node, published, and a fresh look after that found that node dead and named by no other word in
//!   force. Of two that name the same, or of a guardian and the ward's next life, one sees the other.
//! - **W2** A new life of a node, once its line says that it lives, waits until no word in force names
//!   it, before it reads or writes its log and its segment. A guardian looks before every batch
//!   whether the ward has come back, and stops then.
//! - **W3** A word is in force until it is cleared, or until the life that wrote it is dead and
//!   fenced: a host that was declared dead may still be writing.
//! - **W4** A host is guardian by one of its processes. When that is dead, the next that looks after
//!   the dead writes back what it stored and clears the word (M8). A word of an earlier life is
//!   cleared by the next one, in the same way.
//!
//! A crash anywhere leaves each block of the ward complete or free, as an eviction does: EVICTING is as
//! good as READY for who reads (H2), and READY again when the next guardian, or the next life, comes.

mod empty;
mod homecoming;
mod take;

use cxl_shm::fabric::{Fabric, HostMemory, refresh_all};
use cxl_shm::layout::NodeState;
use cxl_shm::member::{Liveness, Member, NodeDeath, ProcessSlot};
use cxl_shm::units::{Incarnation, NodeId};

use crate::area::Areas;
use crate::geometry::halves;
#[cfg(test)]
pub(crate) use empty::Ward;
pub use homecoming::BeingEmptied;

/// What a host's word says: which ward it is the guardian of, and by which process.
///
/// ```text
/// 1 + ward u16 | process u16 | incarnation of the guardian u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Guardian {
    pub(crate) ward: NodeId,
    pub(crate) process: ProcessSlot,
    pub(crate) incarnation: Incarnation,
}

impl Guardian {
    pub(crate) fn word(self) -> u64 {
        u64::from(self.incarnation.0) << 32
            | u64::from(self.process.0) << 16
            | u64::from(self.ward.0 + 1)
    }

    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let (low, incarnation) = halves(word);
        let [a, b, c, d] = low.to_le_bytes();
        let ward = u16::from_le_bytes([a, b]).checked_sub(1)?;
        Some(Self {
            ward: NodeId(ward),
            process: ProcessSlot(u16::from_le_bytes([c, d])),
            incarnation: Incarnation(incarnation),
        })
    }
}

/// Another host whose word, freshly read, names `ward` and is in force (W3).
pub(crate) fn guardian_of<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    areas: &Areas,
    ward: NodeId,
) -> Option<NodeId> {
    let (me, fabric, layout) = (member.node(), member.fabric(), areas.layout());
    let others = || layout.nodes().filter(|node| *node != me);
    refresh_all(fabric, others().map(|node| areas.guardian(node).range()));
    others().find(|node| {
        let guardian = Guardian::from_word(areas.guardian(*node).cached(fabric));
        guardian.is_some_and(|guardian| {
            let fenced = || {
                NodeDeath::of(layout, fabric, *node).is_some_and(|death| {
                    death.decision.case.incarnation >= guardian.incarnation
                        && !death.is_quarantined()
                })
            };
            guardian.ward == ward && !fenced()
        })
    })
}

/// Whether `node` is dead, recovered, and nobody has its slot; read freshly.
pub(crate) fn is_dead<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    areas: &Areas,
    node: NodeId,
) -> bool {
    let line = areas.layout().node_line(node).fresh(member.fabric());
    line.is_ok_and(|line| line.state() == Some(NodeState::Dead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_who_looks_after_whom() {
        for (ward, process, incarnation) in [(0, 0, 1), (31, 255, u32::MAX), (7, 3, 9)] {
            let guardian = Guardian {
                ward: NodeId(ward),
                process: ProcessSlot(process),
                incarnation: Incarnation(incarnation),
            };
            assert_eq!(Guardian::from_word(guardian.word()), Some(guardian));
        }
        assert_eq!(Guardian::from_word(0), None);
        assert_eq!(Guardian::from_word(5 << 32), None, "nobody's");
    }
}
