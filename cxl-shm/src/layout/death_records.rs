//! The records by which hosts agree that another is dead, and say how far its recovery is.

use bytemuck::{Pod, Zeroable};
use static_assertions::assert_eq_size;

use crate::fabric::Record;
use crate::units::{Incarnation, NodeId};

/// One question that hosts agree on: which node recovers this life of a node slot?
///
/// Ordered: a later case supersedes every earlier one of the slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Case {
    /// The life of the slot that has ended.
    pub incarnation: Incarnation,
    /// Counts from 1: the first appointed recoverer, the one after its death, and so on.
    pub appointment: u32,
}

/// The answer: the recoverer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Appointment {
    /// The appointed recoverer.
    pub recoverer: NodeId,
    /// In which of its lives.
    pub incarnation: Incarnation,
    /// Grows with each decision about the slot.
    pub epoch: u64,
}

/// What a node has promised and accepted in a case: its block of Disk Paxos.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BallotRecord {
    sequence: u32,
    decided: u32,
    incarnation: u32,
    appointment: u32,
    promised: u32,
    accepted: u32,
    recoverer: u32,
    recoverer_incarnation: u32,
    epoch: u64,
    epoch_seen: u64,
    reserved: u64,
}

impl Record for BallotRecord {
    const KIND: u32 = u32::from_le_bytes(*b"BALT");
}

impl BallotRecord {
    /// Promises ballot `promised` of `case`, with nothing accepted. `epoch_seen` is the largest
    /// epoch of the slot that the node knows of.
    #[must_use]
    pub fn promise(case: Case, promised: u32, epoch_seen: u64) -> Self {
        let Case { incarnation, appointment } = case;
        let incarnation = incarnation.0;
        Self { incarnation, appointment, promised, epoch_seen, ..Self::zeroed() }
    }

    /// The same with a higher promise; what was accepted stays.
    #[must_use]
    pub fn with_promise(self, promised: u32) -> Self {
        Self { promised, ..self }
    }

    /// The same with `value` accepted at the promised ballot.
    #[must_use]
    pub fn with_accepted(self, value: Appointment) -> Self {
        Self {
            accepted: self.promised,
            recoverer: u32::from(value.recoverer.0),
            recoverer_incarnation: value.incarnation.0,
            epoch: value.epoch,
            ..self
        }
    }

    /// The same, saying that what it accepted is decided.
    #[must_use]
    pub fn with_decided(self) -> Self {
        Self { decided: 1, ..self }
    }

    /// The case it speaks of.
    #[must_use]
    pub fn case(&self) -> Case {
        Case { incarnation: Incarnation(self.incarnation), appointment: self.appointment }
    }

    /// The highest ballot that the node has promised.
    #[must_use]
    pub fn promised(&self) -> u32 {
        self.promised
    }

    /// The highest ballot at which it has accepted an answer, and the answer. The recoverer is
    /// not checked to be a node of the region.
    #[must_use]
    pub fn accepted(&self) -> Option<(u32, Appointment)> {
        let recoverer = NodeId(u16::try_from(self.recoverer).ok()?);
        let incarnation = Incarnation(self.recoverer_incarnation);
        let value = Appointment { recoverer, incarnation, epoch: self.epoch };
        (self.accepted != 0).then_some((self.accepted, value))
    }

    /// The answer, when the node knows it to be decided.
    #[must_use]
    pub fn decided(&self) -> Option<Appointment> {
        self.accepted().filter(|_| self.decided == 1).map(|(_, value)| value)
    }

    /// The largest epoch of the slot that the record names.
    #[must_use]
    pub fn epoch_seen(&self) -> u64 {
        self.epoch.max(self.epoch_seen)
    }

    /// The largest epoch of the slot that the node knew of when it opened the case.
    #[must_use]
    pub fn epoch_known(&self) -> u64 {
        self.epoch_seen
    }

    /// Which of two writes is the later one.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The same as a later write.
    #[must_use]
    pub fn with_sequence(self, sequence: u32) -> Self {
        Self { sequence, ..self }
    }
}

/// How far a recovery is. Ordered as it goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RecoveryStep {
    /// Nothing keeps the dead host from writing yet: nothing of it is touched.
    Unfenced,
    /// It can write no more. From here on its lines are the recoverer's (MEM-M1).
    Fenced,
    /// Its open intents are redone and closed.
    Redone,
    /// Its requests are ended: the locks that it held are free.
    Freed,
    /// Its heap chunks belong to the recoverer.
    Adopted,
    /// Its line says that it is dead: the slot may be joined again.
    Done,
    /// The slot was left or had a new life before the recovery began: nothing was touched.
    Superseded,
    /// No lock manager runs on the recoverer's host any more, and another host is to recover; the
    /// dead one was not fenced.
    ResignedUnfenced,
    /// As [`Self::ResignedUnfenced`], but the dead one was fenced. What was begun may be half done.
    ResignedFenced,
}

impl RecoveryStep {
    const ALL: [Self; 9] = [
        Self::Unfenced,
        Self::Fenced,
        Self::Redone,
        Self::Freed,
        Self::Adopted,
        Self::Done,
        Self::Superseded,
        Self::ResignedUnfenced,
        Self::ResignedFenced,
    ];

    /// Whether the dead host was known to write no more.
    #[must_use]
    pub fn is_fenced(self) -> bool {
        (Self::Fenced..=Self::Done).contains(&self) || self == Self::ResignedFenced
    }

    /// Whether the recoverer has given up, for another to be appointed.
    #[must_use]
    pub fn has_resigned(self) -> bool {
        matches!(self, Self::ResignedUnfenced | Self::ResignedFenced)
    }

    /// Whether the recoverer may be writing the lines of the dead.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        (Self::Fenced..Self::Done).contains(&self)
    }
}

/// How far a node is with the recovery of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RecoveryRecord {
    sequence: u32,
    step: u32,
    incarnation: u32,
    appointment: u32,
    recoverer_incarnation: u32,
    reserved_word: u32,
    reserved: [u64; 4],
}

impl Record for RecoveryRecord {
    const KIND: u32 = u32::from_le_bytes(*b"RCVR");
}

impl RecoveryRecord {
    /// The recoverer, in its life `recoverer_incarnation`, has come to `step` in `case`.
    #[must_use]
    pub fn new(case: Case, recoverer_incarnation: Incarnation, step: RecoveryStep) -> Self {
        let code = RecoveryStep::ALL.iter().position(|other| *other == step);
        Self {
            step: code.and_then(|code| u32::try_from(code + 1).ok()).unwrap_or(0),
            incarnation: case.incarnation.0,
            appointment: case.appointment,
            recoverer_incarnation: recoverer_incarnation.0,
            ..Self::zeroed()
        }
    }

    /// What says nothing of any case: in place of a record that is damaged.
    pub(crate) fn nothing() -> Self {
        Self::zeroed()
    }

    /// The case it speaks of.
    #[must_use]
    pub fn case(&self) -> Case {
        Case { incarnation: Incarnation(self.incarnation), appointment: self.appointment }
    }

    /// The life of the recoverer in which it wrote this.
    #[must_use]
    pub fn recoverer_incarnation(&self) -> Incarnation {
        Incarnation(self.recoverer_incarnation)
    }

    /// How far it is; `None` when it is no step that this version knows.
    #[must_use]
    pub fn step(&self) -> Option<RecoveryStep> {
        let index = usize::try_from(self.step.checked_sub(1)?).ok()?;
        RecoveryStep::ALL.get(index).copied()
    }

    /// Which of two writes is the later one.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The same as a later write.
    #[must_use]
    pub fn with_sequence(self, sequence: u32) -> Self {
        Self { sequence, ..self }
    }
}

// A record fills its line except for the seal.
assert_eq_size!(BallotRecord, [u8; 56]);
assert_eq_size!(RecoveryRecord, [u8; 56]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_give_back_what_they_were_made_of() {
        let case = Case { incarnation: Incarnation(7), appointment: 2 };
        let value = Appointment { recoverer: NodeId(3), incarnation: Incarnation(9), epoch: 11 };
        let ballot = BallotRecord::promise(case, 5, 10);
        assert_eq!((ballot.accepted(), ballot.epoch_seen()), (None, 10));
        let ballot = ballot.with_accepted(value).with_promise(8);
        assert_eq!(
            (ballot.case(), ballot.promised(), ballot.accepted()),
            (case, 8, Some((5, value)))
        );
        assert_eq!((ballot.decided(), ballot.with_decided().decided()), (None, Some(value)));
        assert_eq!(ballot.epoch_seen(), 11);
        for step in RecoveryStep::ALL {
            let record = RecoveryRecord::new(case, Incarnation(9), step);
            assert_eq!((record.case(), record.step()), (case, Some(step)));
        }
    }
}
