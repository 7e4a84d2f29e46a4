//! Schedules of clients and a manager, step by step.

use std::cell::Cell;

use super::announcement::tell_number;
use super::copy::RequestCopy;
use super::request::Request;
use super::{Acquire, Manager, ManagerState, clear_requests, obey_newest_term};
use crate::host::{HostTier, ProcLiveness};
use crate::layout::{FIRST_FREE_LOCK, Geometry, Layout, LockProtocol, NodeLine, NodeState};
use crate::lock::shared_tier::{Held, SharedTier};
use crate::lock::tally::Tally;
use crate::mutant::{self, Mutant};
use crate::node::{Backend, NodeHandle};
use crate::units::{Incarnation, LockId, NodeId};
use crate::verify::simulated::{
    Access, Interposed, Interposer, SimulatedHost, SimulatedHostMemory, SimulatedRack,
};
use crate::verify::{BackendOf, SimulatedBackend};

const FIRST: LockId = LockId(FIRST_FREE_LOCK);
const SECOND: LockId = LockId(FIRST.0 + 1);

type CountedBackend = BackendOf<Interposed<Counts>, SimulatedHostMemory, ProcLiveness>;

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
            let (handle, fabric) = nodes.at(node);
            handle.tier().reset([1, 2], node, Incarnation(1), 1);
            let id = [u64::from(node.0) + 1, 0];
            let line = NodeLine::new(NodeState::Joined, Incarnation(1), id, id);
            handle.node_line().publish(&fabric, &line);
            handle.tier().set_member(true);
        }
        let (handle, fabric) = nodes.at(NodeId(1));
        nodes.manager = Manager::claim(&handle, &fabric);
        for node in [NodeId(0), NodeId(1)] {
            let (handle, fabric) = nodes.at(node);
            obey_newest_term(&handle, &fabric);
        }
        nodes.round();
        nodes
    }

    fn handle<B>(&self, node: NodeId) -> NodeHandle<B>
    where
        B: Backend<HostMemory = SimulatedHostMemory>,
    {
        let memory = self.rack.host_memory(node.index(), self.words);
        let tier = HostTier::new(memory, self.layout.locks());
        NodeHandle::new(self.layout, LockProtocol::Arbitrated, node, tier)
    }

    fn at(&self, node: NodeId) -> (NodeHandle<SimulatedBackend>, SimulatedHost) {
        (self.handle(node), self.rack.host(node.index()))
    }

    /// As [`Self::at`], with a fabric that counts.
    fn counted_at(&self, node: NodeId) -> (NodeHandle<CountedBackend>, Interposed<Counts>) {
        let fabric = Interposed::new(self.rack.host(node.index()), Counts::default());
        (self.handle(node), fabric)
    }

    /// One round of the manager. How often it has looked at the region.
    fn round(&mut self) -> u32 {
        let (handle, fabric) = self.counted_at(NodeId(1));
        let state = self.manager.as_mut().unwrap().poll(&handle, &fabric);
        assert!(matches!(state, ManagerState::Serving { .. }), "{state:?}");
        fabric.interposer().looks.get()
    }

    /// After how many rounds of the manager, with a poll after each, `acquire` has its lock.
    fn rounds_until_held(&mut self, acquire: &mut Acquire) -> Option<u32> {
        (1..=1000).find(|_| {
            self.round();
            let (handle, fabric) = self.at(NodeId(0));
            acquire.poll(&handle, &fabric).unwrap().is_some()
        })
    }
}

/// Counts publishes and looks: fences that wait for write-backs, and fences that wait for
/// invalidations.
#[derive(Default)]
struct Counts {
    publishes: Cell<u32>,
    looks: Cell<u32>,
    written: Cell<u32>,
    dropped: Cell<u32>,
}

impl Interposer for Counts {
    fn before(&self, access: Access) {
        match access {
            Access::WriteBack(_) => self.written.set(1),
            Access::Invalidate(_) => self.dropped.set(1),
            Access::Fence => {
                self.publishes.set(self.publishes.get() + self.written.take());
                self.looks.set(self.looks.get() + self.dropped.take());
            }
            _ => {}
        }
    }
}

/// Node 0 acquires `lock`, which nobody else wants. How often it published, and the manager looked.
fn acquire(nodes: &mut Nodes, lock: LockId) -> (Held, u32, u32) {
    let (handle, fabric) = nodes.counted_at(NodeId(0));
    let mut asks = Acquire::begin(&handle, &fabric, lock);
    let looks = nodes.round();
    let held = asks.poll(&handle, &fabric).unwrap().expect("it is granted in the first round");
    (held, fabric.interposer().publishes.get(), looks)
}

#[test]
fn an_uncontended_acquire_is_one_publish_and_one_look_of_the_manager() {
    let mut nodes = Nodes::joined();
    let (handle, fabric) = nodes.at(NodeId(0));
    for lock in [FIRST, FIRST, SECOND, FIRST, SECOND, LockId(0), LockId(0), FIRST] {
        let (held, publishes, looks) = acquire(&mut nodes, lock);
        assert_eq!((publishes, looks), (1, 1), "{lock:?}");
        Acquire::release(held, &handle, &fabric);
    }
}

/// Locks that one round of the manager granted, and those that it handed over between nodes.
fn granted(nodes: &mut Nodes) -> (u32, u32) {
    let (handle, fabric) = nodes.at(NodeId(1));
    match nodes.manager.as_mut().unwrap().poll(&handle, &fabric) {
        ManagerState::Serving { granted, handed_over } => (granted, handed_over),
        state => panic!("{state:?}"),
    }
}

#[test]
fn a_lock_is_handed_over_when_a_node_waited_for_another() {
    let mut nodes = Nodes::joined();
    let (handle, fabric) = nodes.at(NodeId(0));
    let (second_handle, second_fabric) = nodes.at(NodeId(1));
    for waits in [true, false, true] {
        let mut first = Acquire::begin(&handle, &fabric, FIRST);
        assert_eq!(granted(&mut nodes), (1, 0), "nobody had it");
        let held = first.poll(&handle, &fabric).unwrap().unwrap();
        let begin = || Acquire::begin(&second_handle, &second_fabric, FIRST);
        let waiting = waits.then(begin);
        assert_eq!(granted(&mut nodes), (0, 0), "it is held");
        Acquire::release(held, &handle, &fabric);
        let mut second = waiting.unwrap_or_else(begin);
        assert_eq!(granted(&mut nodes), (1, u32::from(waits)));
        let held = second.poll(&second_handle, &second_fabric).unwrap().unwrap();
        Acquire::release(held, &second_handle, &second_fabric);
    }
}

#[test]
fn a_request_with_a_large_tally_is_read() {
    let mut nodes = Nodes::joined();
    let (handle, fabric) = nodes.at(NodeId(0));
    for (tally, looks) in [(5, 1), ((1 << 14) - 2, 1), ((1 << 14) - 1, 2), ((1 << 14) + 1, 2)] {
        let (held, ..) = acquire(&mut nodes, FIRST);
        Acquire::release(held, &handle, &fabric);
        // As if holders of other hosts had died since.
        let Request { ticket, .. } = Request::from_word(handle.request(FIRST).own(&fabric));
        let request = Request { ticket, tally: Tally::from_low_bits(tally) };
        handle.request(FIRST).publish(&fabric, request.word());
        let (held, _, looked) = acquire(&mut nodes, FIRST);
        assert_eq!((held.after_death, looked), (tally % 2 == 1, looks), "tally {tally}");
        Acquire::release(held, &handle, &fabric);
    }
}

/// A thread of node 0 draws its number, stands still, and stores it after a second thread has drawn
/// and stored the next number. The first thread never continues. After how many rounds of the
/// manager the second thread has its lock, which nobody else wants.
fn rounds_beside_a_late_number() -> Option<u32> {
    let mut nodes = Nodes::joined();
    let (handle, fabric) = nodes.at(NodeId(0));
    let (mut second, copy) = begin_beside_a_copy(&nodes);
    // What the first thread stores, once it continues: its number, and its lock.
    let late = {
        let before = handle.summary().own(&fabric);
        tell_number(&handle, &fabric, FIRST);
        let late = handle.summary().own(&fabric);
        handle.summary().publish(&fabric, before);
        late
    };
    handle.request_copy().publish(&fabric, copy);
    assert_eq!(second.poll(&handle, &fabric), Ok(None), "it tells a number");
    handle.summary().publish(&fabric, late);
    nodes.rounds_until_held(&mut second)
}

/// A second thread of node 0 asks for its lock beside a first, which has yet to store the copy of
/// its request. The second thread, and that copy.
fn begin_beside_a_copy(nodes: &Nodes) -> (Acquire, u64) {
    let (handle, fabric) = nodes.at(NodeId(0));
    let request = Request { ticket: 1, tally: Tally::default() };
    handle.request(FIRST).publish(&fabric, request.word());
    let second = Acquire::begin(&handle, &fabric, SECOND);
    (second, RequestCopy::new(FIRST, request).word())
}

/// As [`rounds_beside_a_late_number`], of copies of the requests.
fn rounds_beside_a_late_copy() -> Option<u32> {
    let mut nodes = Nodes::joined();
    let (handle, fabric) = nodes.at(NodeId(0));
    let (mut second, copy) = begin_beside_a_copy(&nodes);
    handle.request_copy().publish(&fabric, copy);
    nodes.rounds_until_held(&mut second)
}

#[test]
fn a_request_is_granted_though_a_smaller_number_was_stored_over_its_own() {
    // The first round reads the request of the first thread only.
    assert_eq!(rounds_beside_a_late_number(), Some(2));
    let once = mutant::with(Some(Mutant::TellsOnce), rounds_beside_a_late_number);
    assert_eq!(once, None, "without LOCK-S2 the request is never read");
}

#[test]
fn a_request_is_granted_though_the_copy_of_another_was_stored_over_its_own() {
    assert_eq!(rounds_beside_a_late_copy(), Some(2));
    let once = mutant::with(Some(Mutant::TellsByCopyOnly), rounds_beside_a_late_copy);
    assert_eq!(once, None, "without LOCK-S3 the request is never read");
}

/// The copy of a request arrives, and the manager grants it before its word arrives. Whether the
/// manager grants the lock to another node as well, which looks at it.
fn is_granted_twice() -> bool {
    let mut nodes = Nodes::joined();
    let (handle, fabric) = nodes.at(NodeId(0));
    let request = Request { ticket: 1, tally: Tally::default() };
    handle.request_copy().publish(&fabric, RequestCopy::new(FIRST, request).word());
    nodes.round();
    let (other, its_fabric) = nodes.at(NodeId(1));
    let mut asks = Acquire::begin(&other, &its_fabric, FIRST);
    (0..3).any(|_| {
        nodes.round();
        asks.poll(&other, &its_fabric).unwrap().is_some()
    })
}

#[test]
fn a_word_that_has_not_arrived_is_no_release() {
    assert!(!is_granted_twice());
    let believes = mutant::with(Some(Mutant::BelievesOldRequest), is_granted_twice);
    assert!(believes, "without LOCK-S4 the lock is held twice");
}

/// The copy of a request arrives, its word is lost with the host, and the manager grants it.
/// Whether another node has the lock after the requests of the dead were cleared.
fn is_freed_of_the_dead() -> bool {
    let mut nodes = Nodes::joined();
    let (handle, fabric) = nodes.at(NodeId(0));
    let request = Request { ticket: 1, tally: Tally::default() };
    handle.request_copy().publish(&fabric, RequestCopy::new(FIRST, request).word());
    nodes.round();
    let (other, its_fabric) = nodes.at(NodeId(1));
    let mut asks = Acquire::begin(&other, &its_fabric, FIRST);
    clear_requests(&nodes.layout, &its_fabric, NodeId(0));
    (0..3).any(|_| {
        nodes.round();
        asks.poll(&other, &its_fabric).unwrap().is_some()
    })
}

#[test]
fn what_was_told_without_its_word_ends_with_its_host() {
    assert!(is_freed_of_the_dead());
    let early = mutant::with(Some(Mutant::ResumesTooEarly), is_freed_of_the_dead);
    assert!(!early, "without LOCK-A2 nobody releases what was granted");
}
