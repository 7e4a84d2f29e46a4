//! Declaring deaths and recovering the dead: what a lock manager does beside granting. A state
//! machine for all slots of the region.

use std::fmt;

use super::consensus::{Ballots, Decision, Progress, Proposal};
use super::failure_detector::Suspicion;
use super::fencing::Fence;
use super::recovery::{Recovery, RecoveryEvent, give_up_earlier};
use crate::clock::Clock;
use crate::layout::{Case, RecoveryStep};
use crate::lock::Manage;
use crate::lock::arbitrated::beat_as_manager;
use crate::node::Member;
use crate::node::SlotWatch;
use crate::node::{Backend, Slot, is_over, recoveries_of};
use crate::units::NodeId;

#[cfg(feature = "verify")]
mod explored;
#[cfg(feature = "verify")]
pub(crate) use explored::{Need, need_of};

/// How often it looks at all heartbeats.
const LOOK_MS: u64 = 10;
/// After it was outbid: how long a proposer waits, times its node number and one, and twice as long
/// each time. Two that outbid each other wait for different times, and soon long enough for one to
/// get through.
const OUTBID_MS: u64 = 3;
const DOUBLED_MAX: u32 = 8;

/// What changed about a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeathEvent {
    /// Its heartbeat has stopped: a proposal to declare it dead was begun.
    Suspected,
    /// It was declared dead.
    Declared(Decision),
    /// What was promised about it cannot be read: nothing can be decided while that is so.
    Unreadable {
        /// Whose promise.
        by: NodeId,
    },
    /// Of its recovery by this node.
    Recovery(RecoveryEvent),
}

/// What a node's death needs at the moment.
enum PendingCase<'m, B: Backend> {
    Proposing {
        proposal: Proposal,
        not_before_ms: u64,
        outbid: u32,
        unreadable: Option<NodeId>,
    },
    Recovering(Box<Recovery<'m, B>>),
    /// Nothing any more.
    Over,
}

impl<B: Backend> PendingCase<'_, B> {
    fn is_adopting(&self) -> bool {
        matches!(self, Self::Recovering(recovery) if recovery.is_adopting())
    }
}

/// Watches all nodes, declares deaths, recovers whom this node is appointed to recover.
pub struct Deaths<'m, B: Backend> {
    member: &'m Member<B>,
    clock: &'m dyn Clock,
    declare_ms: u64,
    slots: SlotWatch,
    suspicion: Suspicion,
    look_at_ms: u64,
    cases: Vec<(NodeId, PendingCase<'m, B>)>,
}

impl<'m, B: Backend> Deaths<'m, B> {
    /// Begins to watch. Only the process that may be its host's lock manager does, as `manage`
    /// shows: ballots and recoveries have one writer. A heartbeat that has stopped for `declare_ms`
    /// is taken to be dead; never less than [`SUSPECT_MS`](crate::node::SUSPECT_MS).
    pub fn watch(manage: &Manage<'m, B>, clock: &'m (impl Clock + 'm), declare_ms: u64) -> Self {
        let declare_ms = declare_ms.max(crate::node::SUSPECT_MS);
        let (slots, suspicion) = (SlotWatch::default(), Suspicion::default());
        let member = manage.member();
        Self { member, clock, declare_ms, slots, suspicion, look_at_ms: 0, cases: Vec::new() }
    }

    /// Waits from now on so long before a death is proposed. What was proposed stays so.
    pub fn set_declare_ms(&mut self, declare_ms: u64) {
        self.declare_ms = declare_ms.max(crate::node::SUSPECT_MS);
    }

    /// One step. With `declares` every suspected node is proposed to be dead; without, only what
    /// this node was appointed to is carried on.
    pub fn step(
        &mut self,
        now_ms: u64,
        declares: bool,
        fence: &mut impl Fence,
    ) -> Vec<(NodeId, DeathEvent)> {
        let mut events = Vec::new();
        // A node that was declared dead itself declares and recovers nobody.
        if self.member.check_member().is_err() {
            self.cases.clear();
            return events;
        }
        if now_ms >= self.look_at_ms {
            self.look_at_ms = now_ms + LOOK_MS;
            self.look(now_ms, declares, &mut events);
        }
        // A member waits for one lock at a time: one recovery after the other adopts.
        let adopting = self.cases.iter().position(|(_, pending)| pending.is_adopting());
        for index in 0..self.cases.len() {
            if !self.cases[index].1.is_adopting() || adopting == Some(index) {
                self.carry_on(index, now_ms, fence, &mut events);
            }
        }
        self.cases.retain(|(_, pending)| match pending {
            PendingCase::Proposing { .. } => true,
            PendingCase::Recovering(recovery) => !recovery.is_finished(),
            PendingCase::Over => false,
        });
        // FAULT-F7: none of it may have happened.
        if self.member.check_reads().is_err() {
            self.cases.clear();
            events.clear();
        }
        events
    }

    /// Finds the nodes that need a case and have none yet.
    fn look(&mut self, now_ms: u64, declares: bool, events: &mut Vec<(NodeId, DeathEvent)>) {
        let (layout, fabric) = (self.member.layout(), self.member.fabric());
        let slots = self.slots.look(layout, fabric, now_ms);
        self.suspicion.look(layout, fabric, &slots, now_ms);
        let me = self.member.node();
        let others: Vec<&Slot> =
            slots.iter().filter(|slot| slot.node != me && !slot.vacant).collect();
        let lives = |node: NodeId, proposal: &Proposal| {
            let incarnation = proposal.case().incarnation;
            others.iter().any(|slot| slot.node == node && slot.incarnation <= incarnation)
        };
        // A case that is of a life after the slot's is brought to an end: it stands for what was
        // decided about the one before (DEATH-C2).
        let still = |node: NodeId, proposal: &Proposal| {
            let before = |slot: &&Slot| slot.incarnation < proposal.case().incarnation;
            self.suspicion.stands_still(node, self.declare_ms)
                || others.iter().any(|slot| slot.node == node && before(slot))
        };
        // A recovery finds out for itself, and says so.
        self.cases.retain(|(node, pending)| match pending {
            PendingCase::Proposing { proposal, .. } => {
                lives(*node, proposal) && still(*node, proposal)
            }
            PendingCase::Recovering(_) | PendingCase::Over => true,
        });
        let unattended: Vec<&Slot> = others
            .into_iter()
            .filter(|slot| self.cases.iter().all(|(node, _)| *node != slot.node))
            .filter(|slot| self.suspicion.stands_still(slot.node, self.declare_ms))
            .collect();
        let ballots = Ballots::fresh(layout, fabric, unattended.iter().map(|slot| slot.node));
        for slot in unattended {
            let pending = self.case_for(slot, &ballots, declares);
            if matches!(pending, Some(PendingCase::Proposing { .. })) {
                events.push((slot.node, DeathEvent::Suspected));
            }
            self.cases.extend(pending.map(|pending| (slot.node, pending)));
        }
    }

    /// What a suspected node needs from us.
    fn case_for(
        &self,
        slot: &Slot,
        ballots: &Ballots,
        declares: bool,
    ) -> Option<PendingCase<'m, B>> {
        let (layout, fabric) = (self.member.layout(), self.member.fabric());
        let (me, mine) = (self.member.node(), self.member.incarnation());
        let (victim, incarnation) = (slot.node, slot.incarnation);
        let propose = |case| {
            let proposal = Proposal::begin(me, mine, victim, case);
            PendingCase::Proposing { proposal, not_before_ms: 0, outbid: 0, unreadable: None }
        };
        // DEATH-C2: perhaps the case of a life that was given up during admission since.
        let last = ballots.last_case(victim).filter(|case| case.incarnation >= incarnation);
        // What a process before this one was at, in a case that is over, is given up. The heartbeat
        // is sent by the agent, and the manager's here: nobody is granted anything meanwhile.
        if let Some(last) = last {
            let beat = || beat_as_manager(self.member.node_handle(), fabric);
            give_up_earlier(self.member, victim, last, beat);
        }
        let Some(last) = last else {
            return declares.then(|| propose(Case { incarnation, appointment: 1 }));
        };
        let Some(decision) = ballots.decision(victim, last) else {
            // Somebody has opened it and, as far as we see, not brought it to an end.
            return declares.then(|| propose(last));
        };
        let appointed = decision.appointment;
        let next = last.appointment.checked_add(1);
        let next = next.map(|appointment| Case { appointment, ..last });
        let has_resigned = recoveries_of(layout, fabric, victim).iter().any(|(node, record)| {
            *node == appointed.recoverer
                && record.case() == last
                && record.step().is_some_and(RecoveryStep::has_resigned)
        });
        if has_resigned {
            return next.filter(|_| declares).map(propose);
        }
        if (appointed.recoverer, appointed.incarnation) == (me, mine) {
            let recovery = Recovery::begin(self.member, victim, last);
            return Some(PendingCase::Recovering(Box::new(recovery)));
        }
        // DEATH-R4. A number that is no node of the region is a faulty host's: it recovers nobody.
        let known = layout.node(appointed.recoverer.0);
        let over = known.is_none_or(|node| is_over(layout, fabric, node, appointed.incarnation));
        next.filter(|_| declares && over).map(propose)
    }

    fn carry_on(
        &mut self,
        index: usize,
        now_ms: u64,
        fence: &mut impl Fence,
        events: &mut Vec<(NodeId, DeathEvent)>,
    ) {
        let member = self.member;
        let victim = self.cases[index].0;
        match &mut self.cases[index].1 {
            PendingCase::Proposing { not_before_ms, .. } if now_ms < *not_before_ms => {}
            PendingCase::Proposing { proposal, not_before_ms, outbid, unreadable } => {
                match proposal.poll(member.layout(), member.fabric()) {
                    Progress::Pending => {}
                    Progress::Outbid => {
                        let turn = OUTBID_MS * (u64::from(member.node().0) + 1);
                        *not_before_ms = now_ms + (turn << *outbid);
                        *outbid = (*outbid + 1).min(DOUBLED_MAX);
                    }
                    Progress::Decided(appointment) => {
                        let case = proposal.case();
                        let decision = Decision { victim, case, appointment };
                        events.push((victim, DeathEvent::Declared(decision)));
                        // The next look finds out what is to be done, and by whom.
                        self.look_at_ms = now_ms;
                        self.cases[index].1 = PendingCase::Over;
                    }
                    Progress::Over { .. } | Progress::Exhausted => {
                        self.cases[index].1 = PendingCase::Over;
                    }
                    Progress::Unreadable { node } => {
                        if *unreadable != Some(node) {
                            events.push((victim, DeathEvent::Unreadable { by: node }));
                        }
                        *unreadable = Some(node);
                    }
                }
            }
            PendingCase::Recovering(recovery) => {
                let now = recovery.poll(member, self.clock, fence);
                events.extend(now.map(|now| (victim, DeathEvent::Recovery(now))));
            }
            PendingCase::Over => {}
        }
    }
}

impl<B: Backend> fmt::Debug for Deaths<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases: Vec<NodeId> = self.cases.iter().map(|(node, _)| *node).collect();
        f.debug_struct("Deaths").field("cases", &cases).finish_non_exhaustive()
    }
}
