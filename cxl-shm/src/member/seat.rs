//! What a node may write: the one place where lines of a node become owned (M1).

use super::HostTier;
use crate::fabric::{HostMemory, OwnedArea, OwnedLine, OwnedWord};
use crate::layout::{HostName, INTENT_LINES, INTENTS, Layout, LockProtocol, NodeLine};
use crate::lock::stamp::{Phase, Stamp};
use crate::units::{Incarnation, LockId, NodeId};

/// A node's place in the region. Made only by joining, and the processes of one host, which is
/// coherent, are the only ones that share it.
#[derive(Debug)]
pub(crate) struct Seat<H> {
    layout: Layout,
    lock_protocol: LockProtocol,
    node: NodeId,
    tier: HostTier<H>,
}

impl<H: HostMemory> Seat<H> {
    pub(crate) fn new(
        layout: Layout,
        lock_protocol: LockProtocol,
        node: NodeId,
        tier: HostTier<H>,
    ) -> Self {
        Self { layout, lock_protocol, node, tier }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How the region's locks work.
    pub(crate) fn lock_protocol(&self) -> LockProtocol {
        self.lock_protocol
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn tier(&self) -> &HostTier<H> {
        &self.tier
    }

    pub(crate) fn node_line(&self) -> OwnedLine<NodeLine> {
        self.layout.node_line(self.node).claim()
    }

    pub(crate) fn host_name(&self) -> OwnedLine<HostName> {
        self.layout.host_name(self.node).claim()
    }

    /// Written by the elected agent only.
    pub(crate) fn heartbeat(&self) -> OwnedWord {
        self.layout.heartbeat(self.node).claim()
    }

    /// Written by the one manager of the host only.
    pub(crate) fn manager_claim(&self) -> OwnedWord {
        self.layout.manager_claim(self.node).claim()
    }

    /// Written by the one manager of the host only.
    pub(crate) fn manager_heartbeat(&self) -> OwnedWord {
        self.layout.manager_heartbeat(self.node).claim()
    }

    /// Written by the one manager of the host only.
    pub(crate) fn recoveries(&self) -> OwnedArea {
        self.layout.recoveries(self.node).claim()
    }

    /// Written by the process that joins as the host's first.
    pub(crate) fn arrival(&self) -> OwnedWord {
        self.layout.arrival(self.node).claim()
    }

    /// Written under [`Member::lock_ward`](super::Member::lock_ward); also by the process that joins as the
    /// host's first, or leaves as its last.
    pub(crate) fn guardian(&self) -> OwnedWord {
        self.layout.guardian(self.node).claim()
    }

    pub(crate) fn summary(&self) -> OwnedWord {
        self.layout.summary(self.node).claim()
    }

    pub(crate) fn request(&self, lock: LockId) -> OwnedWord {
        self.layout.request(self.node, lock).claim()
    }

    pub(crate) fn acks(&self) -> OwnedArea {
        self.layout.acks(self.node).claim()
    }

    /// The grant of a manager on this node to `node`.
    pub(crate) fn grant(&self, node: NodeId, lock: LockId) -> OwnedWord {
        let grants = self.layout.grants(self.node).claim();
        grants.word(self.layout.grant_index(node, lock)).expect("the area has a word per pair")
    }

    /// Whether updates under `lock` go through an intent line: the region's own locks have one.
    pub(crate) fn has_intent(&self, lock: LockId) -> bool {
        u64::from(lock.0) < INTENTS
    }

    /// The redo record of `lock`: its head, then the images.
    pub(crate) fn intent(&self, lock: LockId) -> OwnedArea {
        let intents = self.layout.intents(self.node).claim();
        let first = u64::from(lock.0) * INTENT_LINES;
        intents.part(first, INTENT_LINES).expect("the region's own locks have an intent each")
    }

    /// Written by whichever thread of the host asks for a chunk.
    pub(crate) fn chunk_demand(&self) -> OwnedWord {
        self.layout.chunk_demand(self.node).claim()
    }

    pub(crate) fn area(&self) -> OwnedArea {
        self.layout.area(self.node).claim()
    }
}

impl<H: HostMemory> Seat<H> {
    /// Starts a lock's stamp at an even ticket (A2; zero when tickets mean nothing). Only while the
    /// host joins.
    pub(crate) fn resume_stamp(&self, lock: LockId, even: u64) {
        let stamp = Stamp { term: 0, phase: Phase::Idle, ticket: even };
        self.tier.set_stamp(lock, stamp);
    }

    /// Starts the numbers of an incarnation's requests. Only while the host joins.
    pub(super) fn resume_requests(&self, incarnation: Incarnation) {
        // Numbers that no earlier incarnation has used, also those it took and never published.
        self.tier.start_requests(u64::from(incarnation.0) << 32);
    }
}
