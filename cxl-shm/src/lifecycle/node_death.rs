//! The death of a node as every host may see it: for status and for operators.

use std::path::Path;

use super::consensus::{Decision, decided_about};
use crate::fabric::Fabric;
use crate::host::{HostTier, HostTierError, HostTierFile};
use crate::layout::{Layout, Machine, NodeState, RecoveryStep, Superblock};
use crate::node::{Slot, recoveries_of};
use crate::units::{Incarnation, NodeId};

/// The last life of a node slot was declared dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeDeath {
    /// The decision, and the appointed recoverer.
    pub decision: Decision,
    /// How far the recoverer says that it is; `None` when it has not said anything.
    pub step: Option<RecoveryStep>,
    /// The slot may be joined again.
    pub over: bool,
    /// It is the death of a host in admission to the slot (JOIN-J4): the line of the
    /// slot, and the name there, are of the host before.
    pub in_admission: bool,
    /// Which machine is dead, as far as line and join mark say.
    pub machine: Option<Machine>,
}

impl NodeDeath {
    /// Looks, freshly; `None` when the present or last life of `node` was not declared dead.
    /// Needs no membership.
    #[must_use]
    pub fn of<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Option<Self> {
        let slot = Slot::fresh(layout, fabric, node)?;
        let decision = decided_about(layout, fabric, node, slot.incarnation)?;
        let left = slot.line.is_some_and(|line| line.state() == Some(NodeState::Left));
        if left && decision.case.incarnation > slot.incarnation {
            // Somebody came after it had left, and gave up.
            return None;
        }
        let of_recoverer = |it: &&(NodeId, crate::layout::RecoveryRecord)| {
            it.0 == decision.appointment.recoverer && it.1.case() == decision.case
        };
        let recoveries = recoveries_of(layout, fabric, node);
        let step = recoveries.iter().find(of_recoverer).and_then(|(_, record)| record.step());
        // As its recoverer sees it: also one in admission to a slot that was not left.
        let slot = Slot::up_to(layout, fabric, node, decision.case.incarnation)?;
        let Slot { vacant: over, in_admission, machine, .. } = slot;
        Some(Self { decision, step, over, in_admission, machine })
    }

    /// The dead host, for people; `host` is the name that the slot has.
    #[must_use]
    pub fn whom_in_words(&self, host: &str) -> String {
        if !self.in_admission {
            return format!("host \"{host}\"");
        }
        let id = |[high, low]: [u64; 2]| match (high, low) {
            (0, 0) => "unknown".to_owned(),
            _ => format!("{high:016x}{low:016x}"),
        };
        let which = self.machine.map_or_else(
            || "nothing says which".to_owned(),
            |it| format!("machine-id {}, boot {}", id(it.machine_id), id(it.boot_id)),
        );
        format!("a host that died while joining ({which})")
    }

    /// Whether nothing of it is touched, because nothing keeps it from writing.
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        !self.over && {
            // One that yielded to a new life, which did not come in the end, begins again.
            let unfenced = |step| {
                matches!(
                    step,
                    RecoveryStep::Unfenced
                        | RecoveryStep::Superseded
                        | RecoveryStep::ResignedUnfenced
                )
            };
            self.step.is_none_or(unfenced)
        }
    }

    /// How it stands, for people.
    #[must_use]
    pub fn in_words(&self) -> String {
        let by = self.decision.appointment.recoverer;
        match self.step {
            _ if self.over => "recovered, any host may join the slot".to_owned(),
            None | Some(RecoveryStep::Superseded) => {
                format!("declared dead, waits for the lock manager on node {by}")
            }
            Some(RecoveryStep::Unfenced) => {
                format!("quarantined, node {by} waits until it is fenced (`rackline fence --help`)")
            }
            Some(RecoveryStep::Fenced) => format!("fenced, being recovered by node {by}"),
            Some(RecoveryStep::Redone) => format!("being recovered by node {by}: updates redone"),
            Some(RecoveryStep::Freed) => format!("being recovered by node {by}: locks are free"),
            Some(RecoveryStep::Adopted) => format!("being recovered by node {by}: heap adopted"),
            Some(RecoveryStep::Done) => "recovered".to_owned(),
            Some(RecoveryStep::ResignedUnfenced | RecoveryStep::ResignedFenced) => {
                format!(
                    "declared dead; the lock manager on node {by} is gone, waits for another one"
                )
            }
        }
    }
}

impl NodeState {
    /// The state in a word, for people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Joined => "joined",
            Self::Left => "left",
            Self::Dead => "dead",
        }
    }
}

/// Tells the lock manager on `recoverer`, when that node is on this machine, what an operator
/// asserts: the host that life `incarnation` of `victim` ran on is off, or cut off from the memory.
/// That is a fence; when it is not so, memory that others use is overwritten.
///
/// Returns whether the recoverer is on this machine. `folder` is
/// [`HOST_TIER_FOLDER`](crate::host::HOST_TIER_FOLDER).
///
/// # Errors
/// [`HostTierError`].
pub fn confirm_off_here(
    folder: &Path,
    superblock: &Superblock,
    recoverer: NodeId,
    victim: NodeId,
    incarnation: Incarnation,
) -> Result<bool, HostTierError> {
    let path = HostTierFile::path_in(folder, superblock, recoverer);
    if !path.exists() {
        return Ok(false);
    }
    let file = HostTierFile::lock(&path)?;
    let memory = file.map(HostTier::words_of(&superblock.geometry))?;
    let tier = HostTier::new(memory, superblock.geometry.locks);
    // Made by nobody yet: it was there for a moment between our look and our lock.
    if tier.life(superblock.uuid, recoverer).is_none() {
        file.remove_if_new()?;
        return Ok(false);
    }
    tier.set_confirmed_off(victim, incarnation);
    Ok(true)
}
