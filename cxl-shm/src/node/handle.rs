//! What a node may write: the one place where lines of a node become owned (MEM-M1).

use super::backend::Backend;
use crate::fabric::{OwnedArea, OwnedLine, OwnedWord, PeerArea, PeerLine, PeerWord, Record};
use crate::host::HostTier;
use crate::host::{LockState, Phase};
use crate::layout::{HostName, INTENT_LINES, INTENTS, Layout, LockProtocol, NodeLine};
use crate::units::{Incarnation, LockId, NodeId};

#[doc(hidden)]
/// The lines of a node in the region, for its writers. Made only by joining. Only the processes of
/// one host share it, and that host's caches are coherent.
#[derive(Debug)]
pub struct NodeHandle<B: Backend> {
    layout: Layout,
    lock_protocol: LockProtocol,
    node: NodeId,
    tier: HostTier<B::HostMemory>,
}

impl<B: Backend> NodeHandle<B> {
    pub(crate) fn new(
        layout: Layout,
        lock_protocol: LockProtocol,
        node: NodeId,
        tier: HostTier<B::HostMemory>,
    ) -> Self {
        Self { layout, lock_protocol, node, tier }
    }

    #[doc(hidden)]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How the region's locks work.
    pub(crate) fn lock_protocol(&self) -> LockProtocol {
        self.lock_protocol
    }

    #[doc(hidden)]
    pub fn node(&self) -> NodeId {
        self.node
    }

    #[doc(hidden)]
    pub fn tier(&self) -> &HostTier<B::HostMemory> {
        &self.tier
    }

    /// A word of this node. MEM-M8: everything that is owned through a node handle was dropped from
    /// the caches when the host joined, as all of it is in the one list [`Layout::owned_by`].
    fn word(&self, word: PeerWord) -> OwnedWord {
        debug_assert!(self.layout.is_owned_by(self.node, word.range()), "not in the list");
        word.claim()
    }

    /// A line of this node.
    fn line<T: Record>(&self, line: PeerLine<T>) -> OwnedLine<T> {
        debug_assert!(self.layout.is_owned_by(self.node, line.range()), "not in the list");
        line.claim()
    }

    /// An area of this node.
    fn part(&self, part: PeerArea) -> OwnedArea {
        debug_assert!(self.layout.is_owned_by(self.node, part.range()), "not in the list");
        part.claim()
    }

    pub(crate) fn node_line(&self) -> OwnedLine<NodeLine> {
        self.line(self.layout.node_line(self.node))
    }

    pub(crate) fn host_name(&self) -> OwnedLine<HostName> {
        self.line(self.layout.host_name(self.node))
    }

    /// Written by the elected agent only.
    pub(crate) fn heartbeat(&self) -> OwnedWord {
        self.word(self.layout.heartbeat(self.node))
    }

    /// Written by the one manager of the host only.
    pub(crate) fn manager_claim(&self) -> OwnedWord {
        self.word(self.layout.manager_claim(self.node))
    }

    /// Written by the one manager of the host only.
    pub(crate) fn manager_heartbeat(&self) -> OwnedWord {
        self.word(self.layout.manager_heartbeat(self.node))
    }

    /// Written by the one manager of the host only.
    pub(crate) fn recoveries(&self) -> OwnedArea {
        self.part(self.layout.recoveries(self.node))
    }

    /// Written by the process that joins as the host's first.
    pub(crate) fn arrival(&self) -> OwnedWord {
        self.word(self.layout.arrival(self.node))
    }

    /// Written under [`Member::lock_orphan`](super::member::Member::lock_orphan); also by the
    /// process that joins as the host's first, or leaves as its last.
    pub(crate) fn reclaimer(&self) -> OwnedWord {
        self.word(self.layout.reclaimer(self.node))
    }

    pub(crate) fn summary(&self) -> OwnedWord {
        self.word(self.layout.summary(self.node))
    }

    pub(crate) fn request_copy(&self) -> OwnedWord {
        self.word(self.layout.request_copy(self.node))
    }

    pub(crate) fn request(&self, lock: LockId) -> OwnedWord {
        self.word(self.layout.request(self.node, lock))
    }

    pub(crate) fn acks(&self) -> OwnedArea {
        self.part(self.layout.acks(self.node))
    }

    /// The grant of a manager on this node to `node`.
    pub(crate) fn grant(&self, node: NodeId, lock: LockId) -> OwnedWord {
        let grants = self.part(self.layout.grants(self.node));
        grants.word(self.layout.grant_index(node, lock)).expect("the area has a word per pair")
    }

    /// Whether updates under `lock` go through an intent line: the region's own locks have one.
    pub(crate) fn has_intent(&self, lock: LockId) -> bool {
        u64::from(lock.0) < INTENTS
    }

    /// The redo record of `lock`: its head, then the images.
    pub(crate) fn intent(&self, lock: LockId) -> OwnedArea {
        let intents = self.part(self.layout.intents(self.node));
        let first = u64::from(lock.0) * INTENT_LINES;
        intents.part(first, INTENT_LINES).expect("the region's own locks have an intent each")
    }

    #[doc(hidden)]
    /// Written by whichever thread of the host asks for a chunk.
    pub fn chunk_demand(&self) -> OwnedWord {
        self.word(self.layout.chunk_demand(self.node))
    }

    #[doc(hidden)]
    /// A slot of a ring in which this node tells others what it freed. Written under the lock of
    /// the heap.
    pub fn free_slot(&self, slot: PeerWord) -> OwnedWord {
        self.word(slot)
    }

    #[doc(hidden)]
    /// How far this node has come in a ring of another. Written under the lock of the heap.
    pub fn free_tail(&self, tail: PeerWord) -> OwnedWord {
        self.word(tail)
    }

    #[doc(hidden)]
    /// How many roots whose objects are another node's this one has destroyed. Written under the
    /// lock of the roots.
    pub fn retired(&self, count: PeerWord) -> OwnedWord {
        self.word(count)
    }

    pub(crate) fn area(&self) -> OwnedArea {
        self.part(self.layout.area(self.node))
    }
}

impl<B: Backend> NodeHandle<B> {
    /// Starts the state of a lock at an even ticket (LOCK-A2; zero when tickets mean nothing). Only
    /// while the host joins.
    pub(crate) fn resume_lock_state(&self, lock: LockId, even: u64) {
        let state = LockState { term: 0, phase: Phase::Idle, ticket: even };
        self.tier.set_lock_state(lock, state);
    }

    /// Starts the numbers of an incarnation's requests. Only while the host joins.
    pub(crate) fn resume_requests(&self, incarnation: Incarnation) {
        // Numbers that no earlier incarnation has used, also those it took and never published.
        self.tier.start_requests(u64::from(incarnation.0) << 32);
    }
}
