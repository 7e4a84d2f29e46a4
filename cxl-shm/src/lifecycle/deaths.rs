//! Declaring deaths and recovering the dead: what a lock manager does beside granting. A state
//! machine for all slots of the region.

use std::fmt;

use super::consensus::{Ballots, Decision, Progress, Proposal};
use super::failure_detector::Suspicion;
use super::fencing::Fence;
use super::recovery::{Recovery, RecoveryNews, give_up_earlier};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory};
use crate::host::Liveness;
use crate::layout::{Case, RecoveryStep};
use crate::lock::Manage;
use crate::lock::arbitrated::beat_as_manager;
use crate::node::Member;
use crate::node::SlotWatch;
use crate::node::{Slot, is_over, recoveries_of};
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
pub enum DeathNews {
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
    Recovery(RecoveryNews),
}

/// What a node's death needs at the moment.
enum Care<'m, F: Fabric, H: HostMemory, L: Liveness> {
    Proposing {
        proposal: Proposal,
        not_before_ms: u64,
        outbid: u32,
        unreadable: Option<NodeId>,
    },
    Recovering(Recovery<'m, F, H, L>),
    /// Nothing any more.
    Over,
}

impl<F: Fabric, H: HostMemory, L: Liveness> Care<'_, F, H, L> {
    fn is_adopting(&self) -> bool {
        matches!(self, Self::Recovering(recovery) if recovery.is_adopting())
    }
}

/// Watches all nodes, declares deaths, recovers whom this node is appointed to recover.
pub struct Deaths<'m, F: Fabric, H: HostMemory, L: Liveness> {
    member: &'m Member<F, H, L>,
    clock: &'m dyn Clock,
    declare_ms: u64,
    slots: SlotWatch,
    suspicion: Suspicion,
    look_at_ms: u64,
    cares: Vec<(NodeId, Care<'m, F, H, L>)>,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> Deaths<'m, F, H, L> {
    /// Begins to watch. Only the process that may be its host's lock manager does, as `manage`
    /// shows: ballots and recoveries have one writer. A heartbeat that has stopped for `declare_ms`
    /// is taken to be dead; never less than [`SUSPECT_MS`](crate::node::SUSPECT_MS).
    pub fn watch(
        manage: &Manage<'m, F, H, L>,
        clock: &'m (impl Clock + 'm),
        declare_ms: u64,
    ) -> Self {
        let declare_ms = declare_ms.max(crate::node::SUSPECT_MS);
        let (slots, suspicion) = (SlotWatch::default(), Suspicion::default());
        let member = manage.member();
        Self { member, clock, declare_ms, slots, suspicion, look_at_ms: 0, cares: Vec::new() }
    }

    /// One step. With `declares` every suspected node is proposed to be dead; without, only what
    /// this node was appointed to is carried on.
    pub fn step(
        &mut self,
        now_ms: u64,
        declares: bool,
        fence: &mut impl Fence,
    ) -> Vec<(NodeId, DeathNews)> {
        let mut news = Vec::new();
        // A node that was declared dead itself declares and recovers nobody.
        if self.member.check_member().is_err() {
            self.cares.clear();
            return news;
        }
        if now_ms >= self.look_at_ms {
            self.look_at_ms = now_ms + LOOK_MS;
            self.look(now_ms, declares, &mut news);
        }
        // A member waits for one lock at a time: one recovery after the other adopts.
        let adopting = self.cares.iter().position(|(_, care)| care.is_adopting());
        for index in 0..self.cares.len() {
            if !self.cares[index].1.is_adopting() || adopting == Some(index) {
                self.carry_on(index, now_ms, fence, &mut news);
            }
        }
        self.cares.retain(|(_, care)| match care {
            Care::Proposing { .. } => true,
            Care::Recovering(recovery) => !recovery.is_finished(),
            Care::Over => false,
        });
        news
    }

    /// Finds the nodes that need a case and have none yet.
    fn look(&mut self, now_ms: u64, declares: bool, news: &mut Vec<(NodeId, DeathNews)>) {
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
        self.cares.retain(|(node, care)| match care {
            Care::Proposing { proposal, .. } => lives(*node, proposal) && still(*node, proposal),
            Care::Recovering(_) | Care::Over => true,
        });
        let uncared: Vec<&Slot> = others
            .into_iter()
            .filter(|slot| self.cares.iter().all(|(node, _)| *node != slot.node))
            .filter(|slot| self.suspicion.stands_still(slot.node, self.declare_ms))
            .collect();
        let ballots = Ballots::fresh(layout, fabric, uncared.iter().map(|slot| slot.node));
        for slot in uncared {
            let care = self.care_for(slot, &ballots, declares);
            if matches!(care, Some(Care::Proposing { .. })) {
                news.push((slot.node, DeathNews::Suspected));
            }
            self.cares.extend(care.map(|care| (slot.node, care)));
        }
    }

    /// What a suspected node needs from us.
    fn care_for(
        &self,
        slot: &Slot,
        ballots: &Ballots,
        declares: bool,
    ) -> Option<Care<'m, F, H, L>> {
        let (layout, fabric) = (self.member.layout(), self.member.fabric());
        let (me, mine) = (self.member.node(), self.member.incarnation());
        let (victim, incarnation) = (slot.node, slot.incarnation);
        let propose = |case| {
            let proposal = Proposal::begin(me, mine, victim, case);
            Care::Proposing { proposal, not_before_ms: 0, outbid: 0, unreadable: None }
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
            return Some(Care::Recovering(Recovery::begin(self.member, victim, last)));
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
        news: &mut Vec<(NodeId, DeathNews)>,
    ) {
        let member = self.member;
        let victim = self.cares[index].0;
        match &mut self.cares[index].1 {
            Care::Proposing { not_before_ms, .. } if now_ms < *not_before_ms => {}
            Care::Proposing { proposal, not_before_ms, outbid, unreadable } => {
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
                        news.push((victim, DeathNews::Declared(decision)));
                        // The next look finds out what is to be done, and by whom.
                        self.look_at_ms = now_ms;
                        self.cares[index].1 = Care::Over;
                    }
                    Progress::Over { .. } | Progress::Exhausted => {
                        self.cares[index].1 = Care::Over;
                    }
                    Progress::Unreadable { node } => {
                        if *unreadable != Some(node) {
                            news.push((victim, DeathNews::Unreadable { by: node }));
                        }
                        *unreadable = Some(node);
                    }
                }
            }
            Care::Recovering(recovery) => {
                let now = recovery.poll(member, self.clock, fence);
                news.extend(now.map(|now| (victim, DeathNews::Recovery(now))));
            }
            Care::Over => {}
        }
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> fmt::Debug for Deaths<'_, F, H, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cares: Vec<NodeId> = self.cares.iter().map(|(node, _)| *node).collect();
        f.debug_struct("Deaths").field("cares", &cares).finish_non_exhaustive()
    }
}
