//! What was decided about each node, as every host may read it.

use crate::fabric::{Fabric, refresh_all};
use crate::layout::{Appointment, BallotRecord, Case, Layout};
use crate::layout::{PeerDoubleBuffer, Unreadable};
use crate::units::{Incarnation, NodeId};

/// A life of a node slot was declared dead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decision {
    /// Whose.
    pub victim: NodeId,
    /// Which life, and the how many-th recoverer.
    pub case: Case,
    /// Its recoverer.
    pub appointment: Appointment,
}

/// The ballot records of all nodes, read at one time.
#[derive(Debug)]
pub(crate) struct Ballots {
    records: Vec<(NodeId, NodeId, Result<Option<BallotRecord>, Unreadable>)>,
}

impl Ballots {
    /// What every node says about each of `victims`, with one fence for all (MEM-M3).
    pub(crate) fn fresh<F: Fabric>(
        layout: &Layout,
        fabric: &F,
        victims: impl IntoIterator<Item = NodeId>,
    ) -> Self {
        let all = |victim| layout.nodes().map(move |node| (node, victim));
        Self::read(layout, fabric, victims.into_iter().flat_map(all).collect())
    }

    /// What every node but `me` says about `victim`.
    pub(super) fn of_others<F: Fabric>(
        layout: &Layout,
        fabric: &F,
        me: NodeId,
        victim: NodeId,
    ) -> Self {
        let others = layout.nodes().filter(|node| *node != me);
        Self::read(layout, fabric, others.map(|node| (node, victim)).collect())
    }

    fn read<F: Fabric>(layout: &Layout, fabric: &F, pairs: Vec<(NodeId, NodeId)>) -> Self {
        let double_buffer =
            |node, victim| PeerDoubleBuffer::<BallotRecord>::of(layout.ballots(node), victim);
        refresh_all(
            fabric,
            pairs.iter().flat_map(|(node, victim)| double_buffer(*node, *victim).ranges()),
        );
        let read = |(node, victim)| (node, victim, double_buffer(node, victim).cached(fabric));
        Self { records: pairs.into_iter().map(read).collect() }
    }

    /// What `node` says about `victim`.
    pub(crate) fn of(
        &self,
        node: NodeId,
        victim: NodeId,
    ) -> Result<Option<BallotRecord>, Unreadable> {
        let at = self.records.iter().find(|(by, about, _)| (*by, *about) == (node, victim));
        at.map_or(Ok(None), |(_, _, record)| *record)
    }

    fn about(&self, victim: NodeId) -> impl Iterator<Item = BallotRecord> + '_ {
        let about = move |(_, of, record): &(_, NodeId, Result<Option<BallotRecord>, _>)| {
            record.ok().flatten().filter(|_| *of == victim)
        };
        self.records.iter().filter_map(about)
    }

    /// The last case that any node has opened about `victim`.
    pub(crate) fn last_case(&self, victim: NodeId) -> Option<Case> {
        self.about(victim).map(|record| record.case()).max()
    }

    /// The highest ballot that any node has promised in the last case about `victim`; `None` when
    /// none has opened one, or it is decided.
    pub(crate) fn highest_bid(&self, victim: NodeId) -> Option<u32> {
        let case = self.last_case(victim)?;
        let of_case = self.about(victim).filter(|record| record.case() == case);
        let highest = of_case.map(|record| record.promised()).max();
        highest.filter(|_| self.decision(victim, case).is_none())
    }

    /// The decision of `case`, when any node knows it.
    pub(crate) fn decision(&self, victim: NodeId, case: Case) -> Option<Decision> {
        let of_case = |record: &BallotRecord| record.case() == case;
        let appointment = self.about(victim).filter(of_case).find_map(|it| it.decided())?;
        Some(Decision { victim, case, appointment })
    }

    /// Whether life `incarnation` of `victim` was declared dead, or a later one was (DEATH-C2).
    pub(crate) fn is_dead(&self, victim: NodeId, incarnation: Incarnation) -> bool {
        self.about(victim).any(|record| {
            // A further recoverer is sought only after the first was appointed.
            let further = record.case().appointment > 1;
            record.case().incarnation >= incarnation && (further || record.decided().is_some())
        })
    }

    /// The largest epoch that was decided about `victim`, as far as any record remembers.
    fn epoch(&self, victim: NodeId) -> u64 {
        let known = |record: BallotRecord| match record.decided() {
            Some(appointment) => appointment.epoch,
            // What it knew when it opened this case.
            None => record.epoch_known(),
        };
        self.about(victim).map(known).max().unwrap_or(0)
    }
}

/// The last decision about the life `incarnation` of `victim`, or about a later one, which says the
/// same of it (DEATH-C2), freshly read. Needs no membership.
#[must_use]
pub fn decided_about<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    victim: NodeId,
    incarnation: Incarnation,
) -> Option<Decision> {
    let ballots = Ballots::fresh(layout, fabric, [victim]);
    let last = ballots.last_case(victim).filter(|case| case.incarnation >= incarnation)?;
    let incarnation = last.incarnation;
    // The last case may still be open: then the one before it was decided.
    let cases = (1..=last.appointment).rev().map(|appointment| Case { incarnation, appointment });
    cases.take(2).find_map(|case| ballots.decision(victim, case))
}

/// The epoch of the rack's membership, freshly read: grows with every death that is declared. Needs
/// no membership.
#[must_use]
pub fn membership_epoch<F: Fabric>(layout: &Layout, fabric: &F) -> u64 {
    let ballots = Ballots::fresh(layout, fabric, layout.nodes());
    layout.nodes().map(|node| ballots.epoch(node)).fold(0, u64::saturating_add)
}

/// Whether the life `incarnation` of `victim` was declared dead, or a later one, which says the
/// same of it (DEATH-C2), freshly read. Needs no membership.
#[must_use]
pub fn is_declared_dead<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    victim: NodeId,
    incarnation: Incarnation,
) -> bool {
    Ballots::fresh(layout, fabric, [victim]).is_dead(victim, incarnation)
}
