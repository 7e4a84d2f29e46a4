//! What a death needs from a lock manager, as values, for models.

use crate::clock::Clock;
use crate::lifecycle::consensus::{Ballots, Proposal};
use crate::lifecycle::deaths::{Deaths, PendingCase};
use crate::lifecycle::failure_detector::Suspicion;
use crate::lifecycle::recovery::Remembered;
use crate::node::Slot;
use crate::node::{Backend, Member};
use crate::units::NodeId;

/// What the death of a node needs from one host.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Need {
    /// To be declared, or another recoverer is to be appointed.
    Propose(Proposal),
    /// To be recovered by this host.
    Recover(Remembered),
}

/// What [`Deaths::look`] finds that `victim` needs, whose heartbeat is taken to stand still; `None`
/// when nobody lives in the slot, or nothing is to be done at the moment.
pub(crate) fn need_of<B: Backend>(
    member: &Member<B>,
    clock: &dyn Clock,
    victim: NodeId,
) -> Option<Need> {
    let suspicion = Suspicion::default();
    let deaths = Deaths {
        slots: Default::default(),
        member,
        clock,
        declare_ms: 0,
        suspicion,
        look_at_ms: 0,
        cases: Vec::new(),
    };
    let slots = Slot::all(member.layout(), member.fabric());
    let slot = slots.iter().find(|slot| slot.node == victim && !slot.vacant)?;
    let ballots = Ballots::fresh(member.layout(), member.fabric(), [victim]);
    match deaths.case_for(slot, &ballots, true)? {
        PendingCase::Proposing { proposal, .. } => Some(Need::Propose(proposal)),
        PendingCase::Recovering(recovery) => Some(Need::Recover(recovery.remembered())),
        PendingCase::Over => None,
    }
}
