//! Schedules of clients and a manager, step by step.

use super::summary::tell_manager;
use super::{Acquire, Manager, ManagerState, obey_newest_term};
use crate::fabric::simulated::{SimulatedHost, SimulatedHostMemory, SimulatedRack};
use crate::layout::{FIRST_FREE_LOCK, Geometry, Layout, LockProtocol, NodeLine, NodeState};
use crate::lock::shared_tier::SharedTier;
use crate::member::{HostTier, Seat};
use crate::mutant::{self, Mutant};
use crate::units::{Incarnation, LockId, NodeId};

const FIRST: LockId = LockId(FIRST_FREE_LOCK);
const SECOND: LockId = LockId(FIRST.0 + 1);

/// Two joined nodes of a region. Node 1 has the lock manager.
struct Nodes {
    rack: SimulatedRack,
    layout: Layout,
    words: usize,
    manager: Option<Manager>,
}

impl Nodes {
    fn joined() -> Self {
        let geometry = Geometry {
            region_bytes: 16 << 20,
            nodes: 2,
            locks: 16,
            chunk_bytes: 1 << 20,
            area_lines: 64,
            host_words: 0,
        };
        let layout = Layout::new(geometry).unwrap();
        let words = HostTier::words_of(&geometry);
        let rack = SimulatedRack::sticky(2, geometry.region_bytes);
        let mut nodes = Self { rack, layout, words, manager: None };
        for node in [NodeId(0), NodeId(1)] {
            let (seat, fabric) = nodes.at(node);
            seat.tier().reset([1, 2], node, Incarnation(1), 1);
            let id = [u64::from(node.0) + 1, 0];
            let line = NodeLine::new(NodeState::Joined, Incarnation(1), id, id);
            seat.node_line().publish(&fabric, &line);
            seat.tier().set_member(true);
        }
        let (seat, fabric) = nodes.at(NodeId(1));
        nodes.manager = Manager::claim(&seat, &fabric);
        for node in [NodeId(0), NodeId(1)] {
            let (seat, fabric) = nodes.at(node);
            obey_newest_term(&seat, &fabric);
        }
        nodes.round();
        nodes
    }

    fn at(&self, node: NodeId) -> (Seat<SimulatedHostMemory>, SimulatedHost) {
        let memory = self.rack.host_memory(node.index(), self.words);
        let tier = HostTier::new(memory, self.layout.locks());
        let seat = Seat::new(self.layout, LockProtocol::Arbitrated, node, tier);
        (seat, self.rack.host(node.index()))
    }

    /// One round of the manager.
    fn round(&mut self) {
        let (seat, fabric) = self.at(NodeId(1));
        let state = self.manager.as_mut().unwrap().poll(&seat, &fabric);
        assert!(matches!(state, ManagerState::Serving { .. }), "{state:?}");
    }

    /// After how many rounds of the manager, with a poll after each, `acquire` has its lock.
    fn rounds_until_held(&mut self, acquire: &mut Acquire) -> Option<u32> {
        (1..=1000).find(|_| {
            self.round();
            let (seat, fabric) = self.at(NodeId(0));
            acquire.poll(&seat, &fabric).unwrap().is_some()
        })
    }
}

/// A thread of node 0 draws its number, stands still, and stores it after a second thread has drawn
/// and stored the next number. The first thread never goes on. After how many rounds of the manager the
/// second thread has its lock, which nobody else wants.
fn rounds_beside_a_late_store() -> Option<u32> {
    let mut nodes = Nodes::joined();
    let (seat, fabric) = nodes.at(NodeId(0));
    seat.request(FIRST).publish(&fabric, 1);
    // What the first thread stores, once it goes on: its number, and its lock.
    let late = {
        let before = seat.summary().own(&fabric);
        tell_manager(&seat, &fabric, FIRST);
        let late = seat.summary().own(&fabric);
        seat.summary().publish(&fabric, before);
        late
    };
    let mut second = Acquire::begin(&seat, &fabric, SECOND);
    seat.summary().publish(&fabric, late);
    nodes.rounds_until_held(&mut second)
}

#[test]
fn a_request_is_granted_though_a_smaller_number_was_stored_over_its_own() {
    // The first round reads the request of the first thread only.
    assert_eq!(rounds_beside_a_late_store(), Some(2));
    let once = mutant::with(Some(Mutant::TellsOnce), rounds_beside_a_late_store);
    assert_eq!(once, None, "without S2 the request is never read");
}
