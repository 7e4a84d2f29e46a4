//! The lock manager of a term: collects acknowledgements, then grants.
//!
//! A state machine: [`Manager::poll`] makes one round over the nodes and returns. With one fence it
//! refreshes of each node its claim, its identity and the line of its summary, and the tickets of
//! holders for whose locks others wait. So the way from a release to the next grant is one look and
//! one publish. So is the way from a request to its grant, as the line of the summary has a copy of
//! the request (LOCK-S3). Where the summary has a new number, the tickets are read that it tells
//! of. A round costs the same whatever the number of locks.

use std::collections::{BTreeSet, VecDeque};

use super::agent::{newest_claim_cached, newest_term};
use super::copy::RequestCopy;
use super::manager_of;
use super::request::Request;
use super::summary::Summary;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, PublishBatch, refresh_all};
use crate::host::{LockState, Phase, TERM_MAX, grant_word};
use crate::layout::{FIRST_FREE_LOCK, Layout, LockProtocol, ManagerClaim};
use crate::lock::tally::Tally;
use crate::mutant::{self, Mutant};
use crate::node::{Backend, NodeHandle, is_freed, is_taken};
use crate::units::{LineRange, LockId, NodeId};

/// What a manager is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ManagerState {
    /// Waits until every node has acknowledged the term (LOCK-T4). Grants nothing yet.
    Collecting {
        /// A node that has not.
        waiting_for: NodeId,
    },
    /// Grants.
    Serving {
        /// Grants given in this round.
        granted: u32,
        /// Those of them to a node that waited until another node released the lock.
        handed_over: u32,
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
}

/// What a round looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Round {
    /// Everything.
    Whole,
    /// The nodes that wait for a lock, and the node that holds it.
    Hurried,
}

/// A node as last read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct NodeView {
    node: NodeId,
    present: bool,
    acknowledged: bool,
    summary: Option<Summary>,
    copy: Option<RequestCopy>,
    requests: Vec<u64>,
    granted: Vec<u64>,
    /// Beside the requests (LOCK-L5). Also of nodes that are absent.
    tallies: Vec<Tally>,
}

impl NodeView {
    /// Whether it holds `lock`, as far as is known: its ticket is the one that was granted.
    fn holds(&self, lock: u32) -> bool {
        let slot = lock as usize;
        is_odd(self.requests[slot]) && self.requests[slot] == self.granted[slot]
    }
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
    /// It has read the tallies of all nodes (LOCK-L5). Not where all locks are the region's own.
    knows_tallies: bool,
}

impl Manager {
    /// Claims the next term for this node and publishes the claim. The caller holds the node's
    /// host lock `Manager` for the life of the returned value.
    ///
    /// A manager that starts again on the same node claims a new term too: grants of its former
    /// life carry the old one, and nobody obeys them (LOCK-A1 without the refresh that it needed).
    ///
    /// `None` when there are no terms left.
    pub(crate) fn claim<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) -> Option<Self> {
        let layout = handle.layout();
        let nodes = u64::from(layout.geometry().nodes);
        let newest = newest_term(layout, fabric);
        let next = newest + 1;
        let ours = u64::from(handle.node().0);
        let term = next + (ours + nodes - next % nodes) % nodes;
        if term > TERM_MAX {
            return None;
        }
        debug_assert_eq!(manager_of(layout, term), Some(handle.node()));
        handle.manager_claim().publish(fabric, ManagerClaim { term, serving: true }.word());
        crash::reach(CrashPoint::ManagerClaimed);
        let locks = layout.locks() as usize;
        let view = |node| NodeView {
            node,
            present: false,
            acknowledged: false,
            summary: None,
            copy: None,
            requests: vec![0; locks],
            granted: vec![0; locks],
            tallies: vec![Tally::default(); locks],
        };
        Some(Self {
            term,
            nodes: layout.nodes().map(view).collect(),
            queues: vec![VecDeque::new(); locks],
            wanted: BTreeSet::new(),
            serving: false,
            knows_tallies: false,
        })
    }

    /// The term it claimed.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Somebody waits for a lock that is held, as far as is known.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// One round.
    pub(crate) fn poll<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> ManagerState {
        let layout = handle.layout();
        let held = self.refresh(Round::Whole, layout, fabric);
        let newest = newest_claim_cached(layout, fabric).map_or(0, |(_, claim)| claim.term);
        if newest > self.term {
            return ManagerState::Deposed { by_term: newest };
        }
        let mut waiting_for = None;
        for index in 0..self.nodes.len() {
            if !self.nodes[index].acknowledged {
                self.look_who_is_there(index, handle, fabric);
            }
            let view = &self.nodes[index];
            if view.present && !view.acknowledged {
                waiting_for = Some(view.node);
            }
        }
        // LOCK-T4. Once it serves, a node that comes must acknowledge before it is granted
        // anything, but nobody else waits for it: it came after the claim, so it has never obeyed
        // another.
        let waits = !mutant::is(Mutant::GrantsUnacknowledged);
        let state = match waiting_for.filter(|_| waits && !self.serving) {
            Some(waiting_for) => ManagerState::Collecting { waiting_for },
            None => {
                self.serving = true;
                self.serve(&held, handle, fabric)
            }
        };
        // After the grants, as others wait for those: nobody waits for a node that has left.
        for index in 0..self.nodes.len() {
            if self.nodes[index].acknowledged {
                self.look_who_is_there(index, handle, fabric);
            }
        }
        beat_as_manager(handle, fabric);
        state
    }

    /// A round in haste of a manager that serves: only what brings on those who wait for a lock.
    /// Always [`ManagerState::Serving`].
    ///
    /// It does not look whether another manager has come, which a manager need not notice
    /// (LOCK-T5), nor who is there: a node that joins again is granted nothing before it has
    /// acknowledged, which a whole round sees.
    pub(crate) fn hurry<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> ManagerState {
        let held = self.refresh(Round::Hurried, handle.layout(), fabric);
        self.serve(&held, handle, fabric)
    }

    /// Says that no more grants will come. Locks that are held stay held.
    pub(crate) fn stop<B: Backend>(self, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        let stopped = ManagerClaim { term: self.term, serving: false };
        handle.manager_claim().publish(fabric, stopped.word());
    }

    /// The nodes as last seen.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeReport> + '_ {
        let report = |view: &NodeView| {
            let NodeView { node, acknowledged, .. } = *view;
            NodeReport { node, acknowledged }
        };
        self.nodes.iter().filter(|view| view.present).map(report)
    }

    /// The nodes that hold what others wait for, as far as is known: index of the node, and the
    /// lock.
    fn held_and_wanted(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let holders = |lock: &u32| {
            let lock = *lock;
            let holders = self.nodes.iter().enumerate().filter(move |(_, view)| view.holds(lock));
            holders.map(move |(index, _)| (index, lock))
        };
        self.wanted.iter().flat_map(holders)
    }

    /// Refreshes all that a round looks at in any case, with one fence. Returns the nodes that hold
    /// what others wait for, which is part of it.
    fn refresh<F: Fabric>(&self, round: Round, layout: &Layout, fabric: &F) -> Vec<(usize, u32)> {
        let held: Vec<_> = self.held_and_wanted().collect();
        let whole = layout
            .nodes()
            .filter(|_| round == Round::Whole)
            .flat_map(|node| [layout.manager_claim(node).range(), layout.node_line(node).range()]);
        let summaries = layout.nodes().map(|node| layout.summary(node).range());
        refresh_all(fabric, whole.chain(summaries).chain(self.requests_of(&held, layout)));
        held
    }

    fn requests_of(
        &self,
        pairs: &[(usize, u32)],
        layout: &Layout,
    ) -> impl Iterator<Item = LineRange> {
        let line = |(index, lock): &(usize, u32)| {
            layout.request(self.nodes[*index].node, LockId(*lock)).range()
        };
        pairs.iter().map(line)
    }

    /// Whether a node takes part, and has acknowledged the term; from what was refreshed.
    fn look_who_is_there<B: Backend>(
        &mut self,
        index: usize,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) {
        let layout = handle.layout();
        let view = &mut self.nodes[index];
        let node = view.node;
        // Only a node that says so has left, only one that was never joined was never there, and
        // only one whose locks its recoverer has freed needs none any more: a line that cannot be
        // read is being written, or damaged, and its node may hold locks (LOCK-T4).
        view.present = is_taken(layout, fabric, node)
            && (view.acknowledged || !is_freed(layout, fabric, node));
        if !view.present {
            view.acknowledged = false;
        }
        if !view.present || view.acknowledged {
            return;
        }
        let acks = layout.acks(node);
        fabric.refresh(acks.range());
        let mut held = Vec::new();
        for lock in 0..layout.locks() {
            let word = acks.word(u64::from(lock)).expect("the area has a word per lock");
            let ack = LockState::from_word(word.cached(fabric));
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
        view.copy = None;
        view.requests.fill(0);
        // LOCK-T3: a reported ticket counts as granted: the node is the holder until its request
        // differs from it. The grant word itself is written too, for observers.
        let mut batch = PublishBatch::new(fabric);
        for (lock, ticket) in held {
            if !mutant::is(Mutant::LastGranteeOnly) {
                view.granted[lock as usize] = ticket;
            }
            batch.word(handle.grant(node, LockId(lock)), grant_word(self.term, ticket, false));
        }
        batch.publish();
    }

    /// Looks at the tickets that may have changed, then grants. `held` is what others waited for
    /// already.
    fn serve<B: Backend>(
        &mut self,
        held: &[(usize, u32)],
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> ManagerState {
        // Under the bakery nobody asks for grants: requests are numbers, not tickets.
        if handle.lock_protocol() == LockProtocol::Bakery {
            return ManagerState::Serving { granted: 0, handed_over: 0 };
        }
        let layout = handle.layout();
        for (index, lock) in held {
            self.note(*index, *lock, layout, fabric);
        }
        if self.look_for_requests(layout, fabric) {
            // A node that holds what is wanted only now may have released it long ago.
            let known = |pair: &(usize, u32)| held.contains(pair);
            let more: Vec<_> = self.held_and_wanted().filter(|pair| !known(pair)).collect();
            refresh_all(fabric, self.requests_of(&more, layout));
            for (index, lock) in more {
                self.note(index, lock, layout, fabric);
            }
        }
        self.grant(held, handle, fabric)
    }

    /// Takes note of the requests that nodes tell of (LOCK-S1, LOCK-S3). Those that have to be read
    /// are read with one fence. Whether there were any.
    fn look_for_requests<F: Fabric>(&mut self, layout: &Layout, fabric: &F) -> bool {
        let mut unread = Vec::new();
        let mut copies = Vec::new();
        // Once, also those of nodes that are absent: former managers alone were told their tallies
        // (LOCK-L5).
        let first =
            layout.locks() > FIRST_FREE_LOCK && !std::mem::replace(&mut self.knows_tallies, true);
        for (index, view) in self.nodes.iter_mut().enumerate() {
            if !view.acknowledged {
                if first {
                    unread.push((index, None));
                }
                continue;
            }
            let summary = Summary::from_word(layout.summary(view.node).cached(fabric));
            let before = view.summary.replace(summary);
            if before != Some(summary) {
                let lock = before.and_then(|before| summary.only_lock_since(before));
                // A lock that the region has not: a faulty host's (MEM-M5).
                unread.push((index, lock.filter(|lock| lock.0 < layout.locks())));
            }
            let copy = RequestCopy::from_word(layout.request_copy(view.node).cached(fabric));
            let before = view.copy.replace(copy);
            // As above (MEM-M5).
            if before != Some(copy) && copy.lock().0 < layout.locks() {
                copies.push((index, copy, before.is_some()));
            }
        }
        let any = !unread.is_empty() || !copies.is_empty();
        // Two beyond: a release is not told. Where nothing was read yet there is nothing to
        // continue from.
        copies.retain(|(index, copy, may_go_on)| {
            let tally = copy.tally().filter(|_| *may_go_on);
            !tally.is_some_and(|tally| self.take(*index, *copy, 2, tally))
        });
        unread.extend(copies.iter().map(|(index, copy, _)| (*index, Some(copy.lock()))));
        let lines = |(index, lock): &(usize, Option<LockId>)| {
            let node = self.nodes[*index].node;
            lock.map_or(layout.requests(node).range(), |lock| layout.request(node, lock).range())
        };
        refresh_all(fabric, unread.iter().map(lines));
        for (index, lock) in &unread {
            let locks = lock.map_or(0..layout.locks(), |lock| lock.0..lock.0 + 1);
            for lock in locks {
                self.note(*index, lock, layout, fabric);
            }
        }
        for (index, copy, _) in copies {
            // A request keeps the tally of the word before it, which was read.
            let tally = self.nodes[index].tallies[copy.lock().0 as usize];
            self.take(index, copy, 1, tally);
        }
        any
    }

    /// LOCK-S3: takes note of the request of which a node has told a copy, if its ticket is the
    /// known one or among the next `steps`. Whether it was.
    fn take(&mut self, index: usize, copy: RequestCopy, steps: u64, tally: Tally) -> bool {
        let known = self.nodes[index].requests[copy.lock().0 as usize];
        match copy.ticket().checked_sub(known) {
            Some(0) => true,
            Some(beyond) if beyond <= steps => {
                self.learn(index, copy.lock(), Request { ticket: copy.ticket(), tally });
                true
            }
            _ => false,
        }
    }

    /// Takes note of a node's request word, which was refreshed.
    fn note<F: Fabric>(&mut self, index: usize, lock: u32, layout: &Layout, fabric: &F) {
        let view = &self.nodes[index];
        let request = Request::from_word(layout.request(view.node, LockId(lock)).cached(fabric));
        // LOCK-S4.
        let has_not_arrived = request.ticket + 1 == view.requests[lock as usize];
        if !has_not_arrived || mutant::is(Mutant::BelievesOldRequest) {
            self.learn(index, LockId(lock), request);
        }
    }

    /// Takes note of a node's request for `lock`.
    fn learn(&mut self, index: usize, lock: LockId, Request { ticket, tally }: Request) {
        let view = &mut self.nodes[index];
        let (node, slot) = (view.node, lock.0 as usize);
        view.tallies[slot] = tally;
        let known = std::mem::replace(&mut view.requests[slot], ticket);
        if is_odd(ticket) && ticket != known && ticket != view.granted[slot] {
            // One request a node: an older one of it is withdrawn.
            self.queues[slot].retain(|(queued, _)| *queued != node);
            self.queues[slot].push_back((node, ticket));
            self.wanted.insert(lock.0);
        }
    }

    /// Grants every wanted lock that is free to the first who asked.
    fn grant<B: Backend>(
        &mut self,
        held: &[(usize, u32)],
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
    ) -> ManagerState {
        let (mut granted, mut handed_over) = (0, 0);
        let mut batch = PublishBatch::new(fabric);
        let wanted: Vec<u32> = self.wanted.iter().copied().collect();
        for lock in wanted {
            let slot = lock as usize;
            // LOCK-A1, over all nodes, present or not: one that is gone may have died holding.
            if self.nodes.iter().any(|view| view.holds(lock)) {
                continue;
            }
            let tally = self.nodes.iter().map(|view| view.tallies[slot]).max();
            let tells = tally.is_some_and(Tally::tells);
            let queue = &mut self.queues[slot];
            while let Some((node, ticket)) = queue.pop_front() {
                let view = &mut self.nodes[node.index()];
                // Withdrawn in the meantime, or from before the node came again.
                if view.requests[slot] != ticket || !view.acknowledged {
                    continue;
                }
                view.granted[slot] = ticket;
                batch.word(handle.grant(node, LockId(lock)), grant_word(self.term, ticket, tells));
                granted += 1;
                let from_another =
                    held.iter().any(|(index, its)| *its == lock && *index != node.index());
                handed_over += u32::from(from_another);
                break;
            }
            if queue.is_empty() {
                self.wanted.remove(&lock);
            }
        }
        if granted > 0 {
            crash::reach(CrashPoint::ManagerGranting);
        }
        batch.publish();
        if granted > 0 {
            crash::reach(CrashPoint::ManagerGranted);
        }
        ManagerState::Serving { granted, handed_over }
    }
}

/// Shows those who wait for a grant that the manager of this host lives. Only of the process that
/// has the right to be it.
pub(crate) fn beat_as_manager<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) {
    // From the published word, not from our own count: another process may have been manager.
    let heartbeat = handle.manager_heartbeat();
    heartbeat.publish(fabric, heartbeat.own(fabric).wrapping_add(1));
}

fn is_odd(ticket: u64) -> bool {
    ticket % 2 == 1
}
