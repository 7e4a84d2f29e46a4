//! One plan for all ranks of an engine with tensor parallelism.
//!
//! The engine has a broadcast of its own, and it is used: [`Lead`] gives rank 0 the bytes, [`Rank`]
//! takes them, on rank 0 as on all others.

use super::message::{MessageError, PlanMessage};
use super::moves::{Installed, Move};
use crate::placement::{Controller, Decision, Job, Measured, Placement, PlanError};

/// What an iteration took, for all ranks together (PLAN-X4); `None` of no rank.
#[must_use]
pub fn slowest(ranks: &[Measured]) -> Option<Measured> {
    let merge = |one: Measured, other: &Measured| Measured {
        layer_ns: one.layer_ns.max(other.layer_ns),
        block_ns: one.block_ns.max(other.block_ns),
    };
    let (first, others) = ranks.split_first()?;
    Some(others.iter().fold(*first, merge))
}

/// The controller on rank 0, and the number of its last plan.
#[derive(Debug)]
pub struct Lead {
    controller: Controller,
    layers: u16,
    version: u64,
    installed: Installed,
    /// What was broadcast last.
    told: Installed,
}

impl Lead {
    /// A lead that has no requests. `layers` is the number of layers of the model, as the
    /// controller knows it.
    #[must_use]
    pub fn new(controller: Controller, layers: u16) -> Self {
        let (installed, told) = (Installed::default(), Installed::default());
        Self { controller, layers, version: 0, installed, told }
    }

    /// A request came: [`Controller::arrive`].
    pub fn arrive(&mut self, job: Job) {
        self.installed.forget(job.id);
        self.controller.arrive(job);
    }

    /// A request is over: [`Controller::finish`].
    pub fn finish(&mut self, id: u64) {
        self.controller.finish(id);
        self.installed.forget(id);
    }

    /// An iteration ended at `now_ns`, with these times of the ranks that told theirs. A rank whose times differ from
    /// those planned with makes the controller plan again ([`Trigger::ProfileMismatch`]).
    ///
    /// [`Trigger::ProfileMismatch`]: crate::placement::Trigger::ProfileMismatch
    pub fn stepped(&mut self, now_ns: u64, ranks: &[Measured]) {
        self.controller.stepped(now_ns, slowest(ranks));
    }

    /// The tokens that the readers get at `now_ns`: [`Controller::release`]. Rank 0 has them, as it
    /// samples.
    pub fn release(&mut self, now_ns: u64) -> Vec<(u64, usize)> {
        self.controller.release(now_ns)
    }

    /// Tokens of a request that are computed and not released: [`Controller::deposited`].
    #[must_use]
    pub fn deposited(&self, id: u64) -> usize {
        self.controller.deposited(id)
    }

    /// What was decided, and the plan to broadcast before the next iteration; `None` while the last
    /// one stands. `proceed` may stop the search for a plan early.
    ///
    /// # Errors
    /// The policy, or a request, is beyond what can be planned.
    pub fn decide(
        &mut self,
        proceed: &mut dyn FnMut() -> bool,
    ) -> Result<(Decision, Option<PlanMessage>), PlanError> {
        let decision = self.controller.decide(proceed)?;
        decision.actions.iter().for_each(|action| self.installed.apply(action));
        self.installed.number(self.version + 1);
        if self.installed == self.told {
            return Ok((decision, None));
        }
        self.version += 1;
        self.told = self.installed.clone();
        let (version, layers) = (self.version, self.layers);
        let message = PlanMessage { version, layers, installed: self.installed.clone() };
        Ok((decision, Some(message)))
    }
}

/// Why a plan was not installed. The rank has the plan that it had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The bytes are no plan.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A plan was missed, or came twice.
    #[error(
        "plan {got} came to a rank that expects plan {expected}: every rank takes each broadcast \
         once, in order; start the ranks again together"
    )]
    Version {
        /// The number of the plan.
        got: u64,
        /// The next number.
        expected: u64,
    },
    /// The plan is one of another model.
    #[error("the plan is for {got} layers, this rank has {expected}: run one model on all ranks")]
    Layers {
        /// Layers of the plan.
        got: u16,
        /// Layers of this rank's model.
        expected: u16,
    },
}

/// The plan that a rank has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rank {
    layers: u16,
    version: u64,
    installed: Installed,
}

impl Rank {
    /// A rank without requests, of a model with so many layers.
    #[must_use]
    pub fn new(layers: u16) -> Self {
        Self { layers, version: 0, installed: Installed::default() }
    }

    /// Takes a broadcast plan, and says what this rank has to move (PLAN-X1, PLAN-X3).
    ///
    /// # Errors
    /// [`InstallError`]; nothing is changed then.
    pub fn install(&mut self, bytes: &[u8]) -> Result<Vec<Move>, InstallError> {
        let message = PlanMessage::decode(bytes)?;
        let (got, expected) = (message.version, self.version.saturating_add(1));
        if got != expected {
            return Err(InstallError::Version { got, expected });
        }
        if message.layers != self.layers {
            return Err(InstallError::Layers { got: message.layers, expected: self.layers });
        }
        let moves = self.installed.moves_to(&message.installed);
        self.version = got;
        self.installed = message.installed;
        Ok(moves)
    }

    /// The number of the plan that it has; 0 before the first.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The requests of the batch, with their placements.
    #[must_use]
    pub fn batch(&self) -> Vec<(u64, Placement)> {
        self.installed.batch()
    }
}
