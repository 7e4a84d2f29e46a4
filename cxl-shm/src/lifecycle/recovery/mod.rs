//! Recovery of a dead host after it was fenced: the appointed recoverer, as a state machine.
//!
//! ```text
//! decided -> Unfenced -> Fenced -> Redone -> Freed -> Adopted -> Done
//!                 \         \
//!                  +---------+--> Superseded: the slot was left or has a new life
//! ```
//!
//! - **DEATH-R1** The recoverer touches nothing of the dead host before [`RecoveryStep::Fenced`] is
//!   published. That is published only when the host can write no more. Fencing passes the host's
//!   lines to the one recoverer (MEM-M1); `Done` passes them on.
//! - **DEATH-R2** First redo and close the host's intents, then end its requests, then the rest
//!   (LOCK-L2). Every step may be repeated, by the recoverer's next process or by the next
//!   appointed recoverer. Before each step the recoverer checks whether the slot's line names a
//!   later life, and stops if so. It never writes over a life that continues, whatever else went
//!   wrong.
//! - **DEATH-R3** The former life may also end in another way: a process finds it gone on its own
//!   machine. That process publishes its *arrival*, then looks for a recovery under way, and waits
//!   for it. A recoverer publishes `Fenced`, then looks for an arrival, and yields to it. So one of
//!   the two sees the other, and they never both write. Both may withdraw: then the arrival is
//!   taken back, and the recoverer begins again, or is replaced like any recoverer that has not
//!   begun. An unreadable record counts as a recovery under way while the life of its writer is not
//!   over.
//! - **DEATH-R4** A recoverer of a later life waits while a recovery of an earlier life is under
//!   way. It does not wait when the slot's line says that the earlier life is past, whatever the
//!   earlier recoverer last said. A recoverer of an earlier life that has not begun yields. The
//!   next recoverer is appointed only when the former one is certainly over, or has resigned. A
//!   recoverer resigns when its host lives but runs no lock manager any more: another process of
//!   that host says so.
//! - **DEATH-R5** Locks come first, because a lock manager may wait for them (LOCK-T4). Chunks are
//!   adopted under the chunk lock, so they come after that. The slot is opened at the very end: a
//!   host that joins finds nothing of its former life half recovered.

mod adopt;
#[cfg(feature = "verify")]
mod remembered;
mod resign;
#[cfg(test)]
mod tests;

use super::consensus::Ballots;
use super::fencing::{Fence, FenceOrder, FenceState};
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::Fabric;
use crate::intent::redo_of_dead;
use crate::layout::OwnedDoubleBuffer;
use crate::layout::{Arrival, Case, NodeLine, NodeState, RecoveryRecord, RecoveryStep};
use crate::lock::clear_requests_of;
use crate::mutant::{self, Mutant};
use crate::node::Member;
use crate::node::{Backend, Slot, recoverers_at_work, recoveries_of};
use crate::units::{ChunkId, NodeId};

use adopt::Adoption;
#[cfg(feature = "verify")]
pub(crate) use remembered::Remembered;
pub(crate) use resign::{give_up_earlier, resign};

/// What changed by a step of a recovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecoveryEvent {
    /// The fence does not hold, and why: nothing of the dead host is touched.
    NotFenced(String),
    /// A step is done.
    Reached(RecoveryStep),
    /// These chunks of the dead host's heap belong to this node now.
    Adopted(Vec<ChunkId>),
}

/// The recovery of one life of a node by this node.
#[derive(Debug)]
pub(crate) struct Recovery<'m, B: Backend> {
    victim: NodeId,
    case: Case,
    step: RecoveryStep,
    /// DEATH-R3 and DEATH-R4 were seen to hold after `Fenced` was published.
    alone: bool,
    reported: Option<String>,
    adoption: Adoption<'m, B>,
}

impl<'m, B: Backend> Recovery<'m, B> {
    /// Begins, or continues where a process of this host before us stopped. This node was
    /// appointed, in its present life.
    pub(crate) fn begin(member: &Member<B>, victim: NodeId, case: Case) -> Self {
        let double_buffer = double_buffer(member, victim);
        // What a process before us wrote may still be in our caches only.
        double_buffer.flush_both(member.fabric());
        let own = double_buffer.own(member.fabric()).ok().flatten();
        let step = own.filter(|own| own.case() == case).and_then(|own| own.step());
        // Whom we yielded to did not come.
        let step = step.filter(|step| *step != RecoveryStep::Superseded);
        Self {
            victim,
            case,
            step: step.unwrap_or(RecoveryStep::Unfenced),
            alone: false,
            reported: None,
            adoption: Adoption::default(),
        }
    }

    /// Nothing is left to do.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.step, RecoveryStep::Done | RecoveryStep::Superseded)
            || self.step.has_resigned()
    }

    /// Waits for the chunk lock, or is about to.
    pub(crate) fn is_adopting(&self) -> bool {
        self.step == RecoveryStep::Freed
    }

    /// One step.
    pub(crate) fn poll(
        &mut self,
        member: &'m Member<B>,
        clock: &'m dyn Clock,
        fence: &mut impl Fence,
    ) -> Option<RecoveryEvent> {
        let (layout, fabric) = (member.layout(), member.fabric());
        if self.is_overtaken(member) {
            tracing::error!(
                node = %member.node(), victim = %self.victim, life = %self.case.incarnation,
                "the slot has a later life than the one that is recovered: stops, and writes nothing \
                 there any more"
            );
            return self.reach(member, RecoveryStep::Done);
        }
        match self.step {
            RecoveryStep::Unfenced => self.fence(member, clock.now_ms(), fence),
            RecoveryStep::Fenced => {
                if !self.alone {
                    return self.look_around(member);
                }
                if mutant::is(Mutant::FinalizesFirst) {
                    self.finalize(member);
                }
                if mutant::is(Mutant::FreesBeforeRedo) {
                    self.free(member);
                } else {
                    redo_of_dead(layout, fabric, self.victim);
                }
                self.reach(member, RecoveryStep::Redone)
            }
            RecoveryStep::Redone => {
                if mutant::is(Mutant::FreesBeforeRedo) {
                    redo_of_dead(layout, fabric, self.victim);
                } else {
                    self.free(member);
                }
                self.reach(member, RecoveryStep::Freed)
            }
            RecoveryStep::Freed => {
                let adopted = self.adoption.poll(member, clock, self.victim)?;
                self.reach(member, RecoveryStep::Adopted);
                Some(RecoveryEvent::Adopted(adopted))
            }
            RecoveryStep::Adopted => {
                self.finalize(member);
                self.reach(member, RecoveryStep::Done)
            }
            RecoveryStep::Done
            | RecoveryStep::Superseded
            | RecoveryStep::ResignedUnfenced
            | RecoveryStep::ResignedFenced => None,
        }
    }

    fn fence(
        &mut self,
        member: &Member<B>,
        now_ms: u64,
        fence: &mut impl Fence,
    ) -> Option<RecoveryEvent> {
        let (layout, fabric) = (member.layout(), member.fabric());
        // DEATH-R4: it may be quarantined for long, and a recoverer with a case of its own takes
        // part in no later one.
        if self.is_past(member) {
            return self.reach(member, RecoveryStep::Superseded);
        }
        // A host that wrote its join mark without knowing of this case did so before it was opened:
        // it is seen here.
        let slot = Slot::up_to(layout, fabric, self.victim, self.case.incarnation);
        let Some(slot) = slot.filter(|slot| self.is_of(slot)) else {
            return self.reach(member, RecoveryStep::Superseded);
        };
        // A host that died in admission (JOIN-J4) has not given its name: the line has the name
        // before it.
        let host = layout.host_name(self.victim).fresh(fabric).ok().filter(|_| !slot.in_admission);
        let order = FenceOrder {
            victim: self.victim,
            case: self.case,
            incarnation: slot.incarnation,
            host: host.map(|name| name.to_string()),
            machine: slot.machine,
        };
        // Fencing is a fact about the life, whichever recoverer brought it about.
        let fenced_before = |(_, record): &(NodeId, RecoveryRecord)| {
            record.case().incarnation >= slot.incarnation
                && record.step().is_some_and(RecoveryStep::is_fenced)
        };
        let is_off = |incarnation| member.is_confirmed_off(self.victim, incarnation);
        let fenced = [self.case.incarnation, slot.incarnation].into_iter().any(is_off)
            || recoveries_of(layout, fabric, self.victim).iter().any(fenced_before);
        // FAULT-F7: no host is fenced, nor named, by zeros.
        if member.check_reads().is_err() {
            return None;
        }
        let state = if fenced { FenceState::Fenced } else { fence.poll(&order, now_ms) };
        match state {
            FenceState::Fenced => self.reach(member, RecoveryStep::Fenced),
            FenceState::Running if mutant::is(Mutant::RecoversUnfenced) => {
                self.reach(member, RecoveryStep::Fenced)
            }
            FenceState::Running => None,
            FenceState::NotFenced(reason) => {
                if self.reported.is_none() {
                    // For `status` and for joiners: we are appointed, and wait.
                    self.publish(member);
                }
                let is_new = self.reported.as_ref() != Some(&reason);
                self.reported = Some(reason.clone());
                is_new.then_some(RecoveryEvent::NotFenced(reason))
            }
        }
    }

    fn free(&self, member: &Member<B>) {
        let protocol = member.superblock().lock_protocol;
        clear_requests_of(protocol, member.layout(), member.fabric(), self.victim);
    }

    /// DEATH-R3 and DEATH-R4, after `Fenced` was published.
    fn look_around(&mut self, member: &Member<B>) -> Option<RecoveryEvent> {
        let (layout, fabric) = (member.layout(), member.fabric());
        let slot = Slot::fresh(layout, fabric, self.victim);
        let yields = self.is_past(member) || !slot.is_some_and(|slot| self.is_of(&slot));
        if yields && !mutant::is(Mutant::BeginsUnseen) {
            return self.reach(member, RecoveryStep::Superseded);
        }
        let at_work = recoverers_at_work(layout, fabric, self.victim);
        self.alone = at_work.into_iter().all(|node| node == member.node())
            || mutant::is(Mutant::RecoversBeside);
        None
    }

    /// Whether the line of the slot names a later life, although this recovery is under way.
    /// DEATH-R3 and DEATH-R4 keep that from happening. Were one of them broken, what is written
    /// here would land on a life that continues (MEM-M1).
    fn is_overtaken(&self, member: &Member<B>) -> bool {
        let begun = self.alone || (RecoveryStep::Redone..RecoveryStep::Done).contains(&self.step);
        let slot = || Slot::inside(member.layout(), member.fabric(), self.victim);
        begun && slot().is_some_and(|slot| slot.said > self.case.incarnation)
    }

    /// The last write to the lines of the dead: the slot may be joined again. Never over the line
    /// of a later life ([`Self::is_overtaken`], a moment ago).
    fn finalize(&self, member: &Member<B>) {
        let (layout, fabric) = (member.layout(), member.fabric());
        crate::chunk::end_request_of_dead(layout, fabric, self.victim);
        // MEM-M1: by the fence (DEATH-R1). MEM-M8: what our caches hold of the line is old.
        fabric.refresh(layout.node_line(self.victim).range());
        let line = layout.node_line(self.victim).claim();
        let last = line.own(fabric);
        let (boot_id, machine_id) =
            last.map_or(([0; 2], [0; 2]), |line| (line.boot_id(), line.machine_id()));
        let incarnation = self.case.incarnation;
        // The look at the slot that led here has refreshed it.
        let arrival = layout.arrival(self.victim);
        if Arrival::from_word(arrival.cached(fabric)) == Arrival::Damaged {
            arrival.claim().publish(fabric, Arrival::Life(incarnation).word());
        }
        let dead = NodeLine::new(NodeState::Dead, incarnation, boot_id, machine_id);
        line.publish(fabric, &dead);
        crash::reach(CrashPoint::RecoveryFinalized);
    }

    /// Whether a case of a later life is open (DEATH-C2): the recoverer appointed in that case does
    /// everything, and waits for us if we have begun.
    fn is_past(&self, member: &Member<B>) -> bool {
        let ballots = Ballots::fresh(member.layout(), member.fabric(), [self.victim]);
        let last = ballots.last_case(self.victim);
        last.is_some_and(|last| last.incarnation > self.case.incarnation)
    }

    /// Whether the slot is still that of the life to recover, or of the one before, when that life
    /// was given up during admission (DEATH-C2).
    fn is_of(&self, slot: &Slot) -> bool {
        !slot.vacant && slot.incarnation <= self.case.incarnation
    }

    fn reach(&mut self, member: &Member<B>, step: RecoveryStep) -> Option<RecoveryEvent> {
        self.step = step;
        self.publish(member);
        crash::reach(match step {
            RecoveryStep::Unfenced | RecoveryStep::Fenced => CrashPoint::RecoveryFenced,
            RecoveryStep::Redone => CrashPoint::RecoveryRedone,
            RecoveryStep::Freed => CrashPoint::RecoveryFreed,
            RecoveryStep::Adopted => CrashPoint::RecoveryAdopted,
            RecoveryStep::Done
            | RecoveryStep::Superseded
            | RecoveryStep::ResignedUnfenced
            | RecoveryStep::ResignedFenced => CrashPoint::RecoveryDone,
        });
        Some(RecoveryEvent::Reached(step))
    }

    fn publish(&self, member: &Member<B>) {
        let record = RecoveryRecord::new(self.case, member.incarnation(), self.step);
        double_buffer(member, self.victim).publish(member.fabric(), record);
    }
}

/// MEM-M1: written by the one process of this host that may be its lock manager.
fn double_buffer<B: Backend>(
    member: &Member<B>,
    victim: NodeId,
) -> OwnedDoubleBuffer<RecoveryRecord> {
    OwnedDoubleBuffer::of(member.node_handle().recoveries(), victim)
}
