//! Numbers of a region that only grow, and end: told before they are used up.
//!
//! None of them starts again: a ticket or term that was used before could be taken for a newer one
//! (LOCK-A2, LOCK-T1), and an incarnation for a life that is over. Only ballots begin anew, with
//! each case. A region that has used one up is formatted anew.

use super::consensus::Ballots;
use super::failure_detector::NodeHeartbeat;
use crate::fabric::{Fabric, refresh_all};
use crate::host::{TERM_MAX, TICKET_END};
use crate::layout::{Layout, LockProtocol};
use crate::lock::arbitrated::{newest_claim, tickets_used};
use crate::units::{LockId, NodeId};

/// A number that ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndingNumber {
    /// Acquisitions of a lock by a node, and their releases: two for each.
    Tickets {
        /// The node.
        node: NodeId,
        /// The lock.
        lock: LockId,
    },
    /// Starts of lock managers, on all nodes together. Each start skips to the next term of its
    /// node.
    Terms,
    /// Lives of a node: each start of its first process begins one.
    Incarnations {
        /// The node.
        node: NodeId,
    },
    /// Ballots on the recoverer of a node, in a case that is not decided. Each case begins again.
    Ballots {
        /// The node that is to be declared dead.
        victim: NodeId,
    },
}

/// How far a number has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumberUse {
    /// Which.
    pub number: EndingNumber,
    /// The last that was used.
    pub used: u64,
    /// The last that there is.
    pub most: u64,
}

impl NumberUse {
    /// The numbers of which less than a tenth is left, freshly read. Needs no membership.
    /// `heartbeats` are those of the nodes that ever joined.
    #[must_use]
    pub fn scarce<F: Fabric>(
        layout: &Layout,
        protocol: LockProtocol,
        heartbeats: &[NodeHeartbeat],
        fabric: &F,
    ) -> Vec<Self> {
        let term = newest_claim(layout, fabric).map_or(0, |(_, claim)| claim.term);
        let mut found = vec![Self { number: EndingNumber::Terms, used: term, most: TERM_MAX }];
        for heartbeat in heartbeats {
            let (node, used) = (heartbeat.node, u64::from(heartbeat.incarnation.0));
            let number = EndingNumber::Incarnations { node };
            found.push(Self { number, used, most: u64::from(u32::MAX) });
        }
        let ballots = Ballots::fresh(layout, fabric, layout.nodes());
        found.extend(layout.nodes().filter_map(|victim| {
            let used = u64::from(ballots.highest_bid(victim)?);
            let number = EndingNumber::Ballots { victim };
            Some(Self { number, used, most: u64::from(u32::MAX) })
        }));
        if protocol == LockProtocol::Arbitrated {
            refresh_all(fabric, layout.nodes().map(|node| layout.requests(node).range()));
            for node in layout.nodes() {
                found.extend((0..layout.locks()).map(LockId).map(|lock| {
                    let ticket = tickets_used(layout.request(node, lock).cached(fabric));
                    // One beyond all counting is damaged, and not gone on from (MEM-M5).
                    let (number, most) = (EndingNumber::Tickets { node, lock }, TICKET_END);
                    Self { number, used: ticket.min(most), most }
                }));
            }
        }
        found.retain(NumberUse::is_scarce);
        found
    }

    /// How many are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.most.saturating_sub(self.used)
    }

    fn is_scarce(&self) -> bool {
        self.left() < self.most / 10
    }

    /// What is scarce, and what to do.
    #[must_use]
    pub fn in_words(&self) -> String {
        let (left, most) = (self.left(), self.most);
        let of = format!("{left} of {most} left");
        match self.number {
            EndingNumber::Tickets { node, lock } => format!(
                "tickets of node {node} for lock {lock}: {of}; when none is left the node can no \
                 longer acquire the lock: plan a stop of all hosts, and format the region again \
                 with `rackline format --force`"
            ),
            EndingNumber::Terms => format!(
                "terms of lock managers: {of}; each start of a lock manager uses some: find out \
                 why lock managers start so often. When none is left no lock manager can start: \
                 plan a stop of all hosts, and format the region again with `rackline format \
                 --force`"
            ),
            EndingNumber::Incarnations { node } => format!(
                "incarnations of node {node}: {of}; each start of its first process uses one: find \
                 out why the node starts so often. When none is left the node cannot join: give \
                 the host another node number"
            ),
            EndingNumber::Ballots { victim } => format!(
                "ballots on the recovery of node {victim}: {of}; lock managers outbid each other: \
                 leave one running, and stop the others. When none is left node {victim} cannot be \
                 declared dead: start Rackline on its host again, or plan a stop of all hosts, and \
                 format the region again with `rackline format --force`"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::OwnedDoubleBuffer;
    use crate::layout::{Appointment, BallotRecord, Case, ManagerClaim};
    use crate::units::Incarnation;
    use crate::verify::fixture::{SMALL, SmallRegion};

    #[test]
    fn numbers_are_told_of_when_less_than_a_tenth_is_left() {
        let SmallRegion { rack, layout, .. } = SmallRegion::new(SMALL, LockProtocol::Arbitrated);
        let host = rack.host(0);
        let scarce = || NumberUse::scarce(&layout, LockProtocol::Arbitrated, &[], &host);
        assert_eq!(scarce(), []);

        let (node, lock) = (NodeId(1), LockId(3));
        let tenth = TERM_MAX / 10;
        let claim = |term| {
            let claim = ManagerClaim { term, serving: true };
            layout
                .manager_claim(NodeId(u16::try_from(term % 2).unwrap()))
                .claim()
                .publish(&host, claim.word());
        };
        claim(TERM_MAX - tenth - 1);
        layout.request(node, lock).claim().publish(&host, TICKET_END - TICKET_END / 10);
        assert_eq!(scarce(), []);
        claim(TERM_MAX - 7);
        layout.request(node, lock).claim().publish(&host, TICKET_END - 20);
        let tickets = EndingNumber::Tickets { node, lock };
        assert_eq!(
            scarce(),
            [
                NumberUse { number: EndingNumber::Terms, used: TERM_MAX - 7, most: TERM_MAX },
                NumberUse { number: tickets, used: TICKET_END - 20, most: TICKET_END },
            ]
        );
        assert_eq!(scarce().iter().map(NumberUse::left).collect::<Vec<_>>(), [7, 20]);
        // Of an open case, what the highest bidder has used; of a decided one nothing.
        let case = Case { incarnation: Incarnation(3), appointment: 1 };
        let double_buffer = OwnedDoubleBuffer::of(layout.ballots(node).claim(), NodeId(0));
        let bid = BallotRecord::promise(case, u32::MAX - 9, 0);
        double_buffer.publish(&host, bid);
        let ballots = scarce()
            .into_iter()
            .find(|it| it.number == EndingNumber::Ballots { victim: NodeId(0) } && it.left() == 9);
        assert!(ballots.is_some_and(|it| it.in_words().contains("leave one running")));
        let value = Appointment { recoverer: node, incarnation: Incarnation(1), epoch: 1 };
        double_buffer.publish(&host, bid.with_accepted(value).with_decided());
        assert_eq!(scarce().len(), 2);
        // Numbers of the bakery start again.
        assert_eq!(NumberUse::scarce(&layout, LockProtocol::Bakery, &[], &host).len(), 1);
        // A word that no node has written is no reason to continue.
        layout.request(node, lock).claim().publish(&host, u64::MAX);
        assert_eq!(scarce()[1].left(), 0);
    }
}
