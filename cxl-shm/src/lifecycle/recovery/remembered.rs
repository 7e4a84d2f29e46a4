//! A recovery as a value, for models: what it remembers between two steps.

use super::adopt::Adoption;
use crate::layout::{Case, RecoveryStep};
use crate::lifecycle::recovery::Recovery;
use crate::node::Backend;
use crate::units::NodeId;

/// What a [`Recovery`] remembers between two steps while it adopts no chunks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Remembered {
    victim: NodeId,
    case: Case,
    step: RecoveryStep,
    alone: bool,
    reported: Option<String>,
}

impl Remembered {
    /// Whether its next steps write what the dead host left.
    pub(crate) fn writes(&self) -> bool {
        self.alone && (RecoveryStep::Fenced..RecoveryStep::Adopted).contains(&self.step)
            || (RecoveryStep::Redone..RecoveryStep::Adopted).contains(&self.step)
    }

    /// It yielded to another life of the slot, or to another recovery.
    pub(crate) fn is_superseded(&self) -> bool {
        self.step == RecoveryStep::Superseded
    }
}

impl<B: Backend> Recovery<'_, B> {
    /// What it remembers.
    ///
    /// # Panics
    /// When it waits for the chunk lock or has adopted chunks, which a model has none of.
    pub(crate) fn remembered(&self) -> Remembered {
        assert!(self.adoption.is_idle(), "a model of a recovery has no chunks to adopt");
        let reported = self.reported.clone();
        let Self { victim, case, step, alone, .. } = *self;
        Remembered { victim, case, step, alone, reported }
    }

    /// A recovery that continues from there.
    pub(crate) fn of_remembered(remembered: Remembered) -> Self {
        let Remembered { victim, case, step, alone, reported } = remembered;
        Self { victim, case, step, alone, reported, adoption: Adoption::default() }
    }
}
