//! One proposer of one case, as a state machine.

use super::decisions::Ballots;
use crate::crash::{self, CrashPoint};
use crate::fabric::Fabric;
use crate::layout::OwnedDoubleBuffer;
use crate::layout::{Appointment, BallotRecord, Case, Layout};
use crate::mutant::{self, Mutant};
use crate::units::{Incarnation, NodeId};

/// What the next [`Proposal::poll`] does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Promise,
    Accept,
    Decide,
}

/// Where a proposal stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Progress {
    /// Poll again.
    Pending,
    /// Another proposer has promised a higher ballot. The next poll bids higher: wait a little
    /// first, each node for another time, or both continue outbidding each other.
    Outbid,
    /// Decided, perhaps otherwise than proposed.
    Decided(Appointment),
    /// A later case is open: this one is superseded.
    Over {
        /// The later case.
        by: Case,
    },
    /// What a node has promised cannot be read. For a moment that is a write in progress; when it
    /// stays so, the memory is damaged, and nothing about this slot can be decided any more.
    Unreadable {
        /// The node.
        node: NodeId,
    },
    /// No ballots are left: other proposers have outbid us billions of times.
    Exhausted,
}

/// A proposal that this node recovers a life of `victim`. At most one a node and victim at a time:
/// the process that may be the host's lock manager makes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Proposal {
    me: NodeId,
    incarnation: Incarnation,
    victim: NodeId,
    case: Case,
    ballot: u32,
    /// The highest ballot that any node was seen to have promised.
    highest: u32,
    phase: Phase,
}

impl Proposal {
    /// Proposes that `me`, in its life `incarnation`, recovers `victim` in `case`. Nothing is
    /// written before the first poll.
    pub(crate) fn begin(me: NodeId, incarnation: Incarnation, victim: NodeId, case: Case) -> Self {
        Self { me, incarnation, victim, case, ballot: 0, highest: 0, phase: Phase::Promise }
    }

    /// A proposal of the same host in another case.
    #[cfg(feature = "verify")]
    pub(crate) fn in_case(&self, case: Case) -> Self {
        Self::begin(self.me, self.incarnation, self.victim, case)
    }

    /// The node to be declared dead.
    #[must_use]
    pub fn victim(&self) -> NodeId {
        self.victim
    }

    /// Which life of it, and the how many-th recoverer.
    #[must_use]
    pub fn case(&self) -> Case {
        self.case
    }

    /// One step: at most one publish and one look at all records.
    pub(crate) fn poll<F: Fabric>(&mut self, layout: &Layout, fabric: &F) -> Progress {
        let outcome = match self.phase {
            Phase::Promise => self.promise(layout, fabric),
            Phase::Accept => self.accept(layout, fabric),
            Phase::Decide => self.decide(layout, fabric),
        };
        outcome.map_or_else(|end| end, |()| Progress::Pending)
    }

    fn promise<F: Fabric>(&mut self, layout: &Layout, fabric: &F) -> Result<(), Progress> {
        let double_buffer = self.double_buffer(layout);
        // What a process of this host wrote before it died may still be in our caches only.
        double_buffer.flush_both(fabric);
        let own = self.own(&double_buffer, fabric)?;
        let (base, promised) = match own {
            Some(own) if own.case() > self.case => return Err(Progress::Over { by: own.case() }),
            // DEATH-C2: what we said in an earlier case is nothing here, except for the epochs it
            // names.
            Some(own) if own.case() < self.case => (self.blank(own.epoch_seen()), 0),
            Some(own) => match own.decided() {
                Some(value) => return Err(Progress::Decided(value)),
                None => (own, own.promised()),
            },
            None => (self.blank(0), 0),
        };
        let nodes = u32::from(layout.geometry().nodes);
        let above = self.highest.max(promised);
        let next = above.checked_add(1 + nodes).ok_or(Progress::Exhausted)? - nodes;
        let mine = u32::from(self.me.0);
        self.ballot = next + (mine + nodes - next % nodes) % nodes;
        double_buffer.publish(fabric, base.with_promise(self.ballot));
        crash::reach(CrashPoint::DeathPromised);
        self.phase = Phase::Accept;
        Ok(())
    }

    fn accept<F: Fabric>(&mut self, layout: &Layout, fabric: &F) -> Result<(), Progress> {
        let double_buffer = self.double_buffer(layout);
        let own =
            self.own(&double_buffer, fabric)?.ok_or(Progress::Unreadable { node: self.me })?;
        // DEATH-C1: our promise was published by the poll before.
        let others = self.look(layout, fabric)?;
        let accepted = |record: &BallotRecord| {
            let counts = record.case() == self.case || mutant::is(Mutant::AcceptsAcrossCases);
            counts.then(|| record.accepted()).flatten()
        };
        let records = || others.iter().chain([&own]);
        let latest = records().filter_map(accepted).max_by_key(|(ballot, _)| *ballot);
        let value = latest.map_or_else(
            || {
                let seen = records().map(BallotRecord::epoch_seen).max().unwrap_or(0);
                let (recoverer, incarnation) = (self.me, self.incarnation);
                Appointment { recoverer, incarnation, epoch: seen.saturating_add(1) }
            },
            |(_, value)| value,
        );
        double_buffer.publish(fabric, own.with_accepted(value));
        crash::reach(CrashPoint::DeathAccepted);
        self.phase = Phase::Decide;
        Ok(())
    }

    fn decide<F: Fabric>(&mut self, layout: &Layout, fabric: &F) -> Result<(), Progress> {
        let double_buffer = self.double_buffer(layout);
        let own =
            self.own(&double_buffer, fabric)?.ok_or(Progress::Unreadable { node: self.me })?;
        let (_, value) = own.accepted().ok_or(Progress::Unreadable { node: self.me })?;
        // DEATH-C1: that we accepted was published by the poll before.
        if !mutant::is(Mutant::DecidesUnseen) {
            self.look(layout, fabric)?;
        }
        // So that all hosts see it, the victim too.
        double_buffer.publish(fabric, own.with_decided());
        crash::reach(CrashPoint::DeathDecided);
        Err(Progress::Decided(value))
    }

    /// What the others say, freshly.
    ///
    /// # Errors
    /// When this proposal cannot go on: outbid, over, decided by another, unreadable.
    fn look<F: Fabric>(
        &mut self,
        layout: &Layout,
        fabric: &F,
    ) -> Result<Vec<BallotRecord>, Progress> {
        let ballots = Ballots::of_others(layout, fabric, self.me, self.victim);
        let mut records = Vec::new();
        for node in layout.nodes().filter(|node| *node != self.me) {
            let read = ballots.of(node, self.victim);
            let Some(record) = read.map_err(|_| Progress::Unreadable { node })? else { continue };
            if record.case() > self.case {
                return Err(Progress::Over { by: record.case() });
            }
            if record.case() == self.case {
                if let Some(value) = record.decided() {
                    return Err(Progress::Decided(value));
                }
                self.highest = self.highest.max(record.promised());
            }
            records.push(record);
        }
        if self.highest > self.ballot {
            self.phase = Phase::Promise;
            return Err(Progress::Outbid);
        }
        Ok(records)
    }

    fn own<F: Fabric>(
        &self,
        double_buffer: &OwnedDoubleBuffer<BallotRecord>,
        fabric: &F,
    ) -> Result<Option<BallotRecord>, Progress> {
        double_buffer.own(fabric).map_err(|_| Progress::Unreadable { node: self.me })
    }

    fn blank(&self, epoch_seen: u64) -> BallotRecord {
        BallotRecord::promise(self.case, 0, epoch_seen)
    }

    /// MEM-M1: made by the one process of this host that may be its lock manager.
    fn double_buffer(&self, layout: &Layout) -> OwnedDoubleBuffer<BallotRecord> {
        OwnedDoubleBuffer::of(layout.ballots(self.me).claim(), self.victim)
    }
}
