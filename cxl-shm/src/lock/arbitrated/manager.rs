//! The lock manager of a term: collects acknowledgements, then grants.
//!
//! A state machine: [`Manager::poll`] makes one round over the nodes and returns. It reads one
//! summary word, one identity line a node and round, and a node's tickets only when its summary
//! changed, so a round costs the same whatever the number of locks.

use std::collections::{BTreeSet, VecDeque};

use super::agent::newest_term;
use super::manager_of;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, PublishBatch, refresh_all};
use crate::layout::{LockProtocol, ManagerClaim};
use crate::lock::stamp::{Phase, Stamp, TERM_MAX};
use crate::member::{Seat, is_freed, is_taken};
use crate::mutant::{self, Mutant};
use crate::units::{LockId, NodeId};

/// What a manager is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ManagerState {
    /// Waits until every node has acknowledged the term (T4). Grants nothing yet.
    Collecting {
        /// A node that has not.
        waiting_for: NodeId,
    },
    /// Grants.
    Serving {
        /// Grants given in this round.
        granted: u32,
    },
    /// Another manager has claimed a newer term: this one has nothing more to say.
    Deposed {
        /// The newer term.
        by_term: u64,
    },
}

/// A node as its manager sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeReport {
    /// The node.
    pub node: NodeId,
    /// Takes part, and has acknowledged the term.
    pub acknowledged: bool,
    /// Locks it holds by a grant of this term.
    pub holds: u32,
}

/// A node as last read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct NodeView {
    node: NodeId,
    present: bool,
    acknowledged: bool,
    summary: Option<u64>,
    requests: Vec<u64>,
    granted: Vec<u64>,
}

/// The manager of one term, on one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Manager {
    term: u64,
    nodes: Vec<NodeView>,
    /// Tickets in the order in which they were first seen: no waiter is overtaken without bound.
    queues: Vec<VecDeque<(NodeId, u64)>>,
    wanted: BTreeSet<u32>,
    serving: bool,
}

impl Manager {
    /// Claims the next term for this node and publishes the claim. The caller holds the node's
    /// host lock `Manager` for the life of the returned value.
    ///
    /// A manager that starts again on the same node claims a new term too: grants of its former
    /// life carry the old one, and nobody obeys them (A1 without the refresh that it needed).
    ///
    /// `None` when there are no terms left.
    pub(crate) fn claim<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F) -> Option<Self> {
        let layout = seat.layout();
        let nodes = u64::from(layout.geometry().nodes);
        let newest = newest_term(layout, fabric);
        let next = newest + 1;
        let ours = u64::from(seat.node().0);
        let term = next + (ours + nodes - next % nodes) % nodes;
        if term > TERM_MAX {
            return None;
        }
        debug_assert_eq!(manager_of(layout, term), Some(seat.node()));
        seat.manager_claim().publish(fabric, ManagerClaim { term, serving: true }.word());
        crash::reach(CrashPoint::ManagerClaimed);
        let locks = layout.locks() as usize;
        let view = |node| NodeView {
            node,
            present: false,
            acknowledged: false,
            summary: None,
            requests: vec![0; locks],
            granted: vec![0; locks],
        };
        Some(Self {
            term,
            nodes: layout.nodes().map(view).collect(),
            queues: vec![VecDeque::new(); locks],
            wanted: BTreeSet::new(),
            serving: false,
        })
    }

    /// The term it claimed.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// One round.
    pub(crate) fn poll<F: Fabric, H: HostMemory>(
        &mut self,
        seat: &Seat<H>,
        fabric: &F,
    ) -> ManagerState {
        let heartbeat = seat.manager_heartbeat();
        heartbeat.publish(fabric, heartbeat.own(fabric).wrapping_add(1));

        let layout = seat.layout();
        let newest = newest_term(layout, fabric);
        if newest > self.term {
            return ManagerState::Deposed { by_term: newest };
        }
        let presence = layout
            .nodes()
            .flat_map(|node| [layout.node_line(node).range(), layout.arrival(node).range()]);
        let summaries = layout.nodes().map(|node| layout.summary(node).range());
        refresh_all(fabric, presence.chain(summaries));
        let mut waiting_for = None;
        for index in 0..self.nodes.len() {
            self.look_at(index, seat, fabric);
            let view = &self.nodes[index];
            if view.present && !view.acknowledged {
                waiting_for = Some(view.node);
            }
        }
        // T4. Once it serves, a node that comes must acknowledge before it is granted anything,
        // but nobody else waits for it: it came after the claim, so it has never obeyed another.
        let waits = !mutant::is(Mutant::GrantsUnacknowledged);
        if let (false, Some(waiting_for)) = (self.serving, waiting_for.filter(|_| waits)) {
            return ManagerState::Collecting { waiting_for };
        }
        self.serving = true;
        ManagerState::Serving { granted: self.grant(seat, fabric) }
    }

    /// Says that no more grants will come. Locks that are held stay held.
    pub(crate) fn stop<F: Fabric, H: HostMemory>(self, seat: &Seat<H>, fabric: &F) {
        let stopped = ManagerClaim { term: self.term, serving: false };
        seat.manager_claim().publish(fabric, stopped.word());
    }

    /// The nodes as last seen.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeReport> + '_ {
        self.nodes.iter().filter(|view| view.present).map(|view| {
            let held = |(request, grant): &(&u64, &u64)| is_odd(**request) && request == grant;
            let holds = view.requests.iter().zip(&view.granted).filter(held).count();
            NodeReport {
                node: view.node,
                acknowledged: view.acknowledged,
                holds: u32::try_from(holds).unwrap_or(u32::MAX),
            }
        })
    }

    fn look_at<F: Fabric, H: HostMemory>(&mut self, index: usize, seat: &Seat<H>, fabric: &F) {
        let layout = seat.layout();
        let view = &mut self.nodes[index];
        let node = view.node;
        // Only a node that says so has left, only one that was never joined was never there, and
        // only one whose locks its recoverer has freed needs none any more: a line that cannot be
        // read is being written, or damaged, and its node may hold locks (T4). A node that has left
        // is still read below: its last words were releases.
        view.present = is_taken(layout, fabric, node)
            && (view.acknowledged || !is_freed(layout, fabric, node));
        if !view.present {
            view.acknowledged = false;
        }
        if view.present && !view.acknowledged {
            let acks = layout.acks(node);
            fabric.refresh(acks.range());
            let mut held = Vec::new();
            for lock in 0..layout.locks() {
                let word = acks.word(u64::from(lock)).expect("the area has a word per lock");
                let ack = Stamp::from_word(word.cached(fabric));
                if ack.term != self.term {
                    return;
                }
                if ack.phase == Phase::Hold {
                    held.push((lock, ack.ticket));
                }
            }
            view.acknowledged = true;
            // What it asked for before it acknowledged is read, and queued, as if new.
            view.summary = None;
            view.requests.fill(0);
            // T3: a reported ticket counts as granted: the node is the holder until its request
            // differs from it. The grant word itself is written too, for whoever looks.
            let mut batch = PublishBatch::new(fabric);
            for (lock, ticket) in held {
                if !mutant::is(Mutant::LastGranteeOnly) {
                    view.granted[lock as usize] = ticket;
                }
                batch.word(seat.grant(node, LockId(lock)), granted(self.term, ticket));
            }
            batch.publish();
        }
        // Under the bakery nobody asks for grants: requests are numbers, not tickets.
        if seat.lock_protocol() == LockProtocol::Bakery {
            return;
        }
        let summary = layout.summary(node).cached(fabric);
        if view.summary == Some(summary) {
            return;
        }
        view.summary = Some(summary);
        let requests = layout.requests(node);
        fabric.refresh(requests.range());
        for lock in 0..layout.locks() {
            let word = requests.word(u64::from(lock)).expect("the area has a word per lock");
            let ticket = word.cached(fabric);
            let slot = lock as usize;
            let known = std::mem::replace(&mut view.requests[slot], ticket);
            if is_odd(ticket) && ticket != known && ticket != view.granted[slot] {
                // One request a node: an older one of it is withdrawn.
                self.queues[slot].retain(|(queued, _)| *queued != node);
                self.queues[slot].push_back((node, ticket));
                self.wanted.insert(lock);
            }
        }
    }

    /// Grants every wanted lock that is free to the first who asked.
    fn grant<F: Fabric, H: HostMemory>(&mut self, seat: &Seat<H>, fabric: &F) -> u32 {
        let mut count = 0;
        let mut batch = PublishBatch::new(fabric);
        let wanted: Vec<u32> = self.wanted.iter().copied().collect();
        for lock in wanted {
            let slot = lock as usize;
            // A1, over all nodes, present or not: one that is gone may have died holding.
            let held = self.nodes.iter().any(|view| {
                is_odd(view.requests[slot]) && view.requests[slot] == view.granted[slot]
            });
            if held {
                continue;
            }
            let queue = &mut self.queues[slot];
            while let Some((node, ticket)) = queue.pop_front() {
                let view = &mut self.nodes[node.index()];
                // Withdrawn in the meantime, or from before the node came again.
                if view.requests[slot] != ticket || !view.acknowledged {
                    continue;
                }
                view.granted[slot] = ticket;
                batch.word(seat.grant(node, LockId(lock)), granted(self.term, ticket));
                count += 1;
                break;
            }
            if queue.is_empty() {
                self.wanted.remove(&lock);
            }
        }
        if count > 0 {
            crash::reach(CrashPoint::ManagerGranting);
        }
        batch.publish();
        if count > 0 {
            crash::reach(CrashPoint::ManagerGranted);
        }
        count
    }
}

fn granted(term: u64, ticket: u64) -> u64 {
    Stamp { term, phase: Phase::Hold, ticket }.word()
}

fn is_odd(ticket: u64) -> bool {
    ticket % 2 == 1
}
