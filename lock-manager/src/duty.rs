//! Standing by and serving, as one state machine without a clock of its own.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::lock::arbitrated::ManagerState;
use cxl_shm::member::{
    DeathNews, Deaths, Fence, Liveness, Manage, ManageError, ManagerSeen, Member, MembershipLost,
    SUSPECT_MS,
};
use cxl_shm::units::NodeId;

/// What changed since the last step, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DutyChange {
    /// Another manager serves; this one stands by.
    StandingBy {
        /// Where it runs.
        node: NodeId,
        /// Its term.
        term: u64,
    },
    /// Claimed a term; waits for this node to acknowledge it.
    Collecting {
        /// The term.
        term: u64,
        /// A node that has not acknowledged yet.
        waiting_for: NodeId,
    },
    /// Grants.
    Serving {
        /// The term.
        term: u64,
    },
    /// Another manager claimed a newer term.
    Deposed {
        /// The newer term.
        by_term: u64,
    },
}

/// How long a lock manager waits for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// How long after the active manager is suspected a standby takes over.
    pub takeover_ms: u64,
    /// How long the heart of a host stands still before it is declared dead.
    pub declare_ms: u64,
}

/// Why a process cannot be the lock manager any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DutyError {
    /// It may not manage.
    #[error(transparent)]
    Manage(#[from] ManageError),
    /// This host does not take part any more.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

/// What came of one step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stepped {
    /// Something was granted or claimed, or somebody has begun to wait for a holder: the next step
    /// should follow at once.
    pub busy: bool,
    /// What the process does now, when that has changed.
    pub change: Option<DutyChange>,
    /// What is new about dead hosts.
    pub deaths: Vec<(NodeId, DeathNews)>,
}

/// A process that is, or may become, the lock manager.
#[derive(Debug)]
pub struct Duty<'m, F: Fabric, H: HostMemory, L: Liveness> {
    member: &'m Member<F, H, L>,
    manage: Manage<'m, F, H, L>,
    deaths: Deaths<'m, F, H, L>,
    takeover_ms: u64,
    term: Option<u64>,
    /// Term and heartbeat of the active manager, and since when they have been so.
    watched: Option<(u64, u64, u64)>,
    told: Option<DutyChange>,
    waited_for: bool,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> Duty<'m, F, H, L> {
    /// Makes `member`'s process the one of its host that may be lock manager.
    ///
    /// # Errors
    /// [`ManageError::OneOnThisHost`].
    pub fn new(
        member: &'m Member<F, H, L>,
        clock: &'m (impl Clock + 'm),
        patience: Patience,
    ) -> Result<Self, ManageError> {
        let manage = member.manage()?;
        let Patience { takeover_ms, declare_ms } = patience;
        let deaths = Deaths::watch(&manage, clock, declare_ms);
        Ok(Self {
            member,
            manage,
            deaths,
            takeover_ms,
            term: None,
            watched: None,
            told: None,
            waited_for: false,
        })
    }

    /// One step: of granting, or of standing by, and of what the dead need. `fence` makes certain
    /// that who was declared dead writes no more.
    ///
    /// # Errors
    /// [`DutyError`].
    pub fn step(&mut self, now_ms: u64, fence: &mut impl Fence) -> Result<Stepped, DutyError> {
        self.member.check_member()?;
        let mut stepped = Stepped::default();
        let change = match self.term {
            Some(term) => Some(match self.manage.attend() {
                Some(ManagerState::Collecting { waiting_for }) => {
                    DutyChange::Collecting { term, waiting_for }
                }
                Some(ManagerState::Serving { granted }) => {
                    let waited_for = self.manage.is_waited_for();
                    let before = std::mem::replace(&mut self.waited_for, waited_for);
                    stepped.busy = granted > 0 || (waited_for && !before);
                    DutyChange::Serving { term }
                }
                Some(ManagerState::Deposed { by_term }) => {
                    self.term = None;
                    DutyChange::Deposed { by_term }
                }
                None => unreachable!("polled only between claim and deposition"),
            }),
            None => {
                let change = self.stand_by(now_ms)?;
                stepped.busy = change.is_none();
                change
            }
        };
        // The active manager declares deaths, also where the locks need none; a standby does when it
        // has taken over. What this node was appointed to it carries on in any case.
        let declares = self.term.is_some();
        stepped.deaths = self.deaths.step(now_ms, declares, fence);
        stepped.change = change.filter(|change| self.told != Some(*change));
        self.told = change.or(self.told);
        Ok(stepped)
    }

    /// Watches the active manager, and claims the next term when there is none: `None` then.
    fn stand_by(&mut self, now_ms: u64) -> Result<Option<DutyChange>, ManageError> {
        // One that ran on this node is dead: we hold the node's right to manage.
        let elsewhere = |seen: &ManagerSeen| seen.serving && seen.node != self.member.node();
        let seen = self.member.manager_seen().filter(elsewhere);
        if let Some(seen) = seen {
            let now = (seen.term, seen.heartbeat);
            let since_ms = match self.watched {
                Some((term, beat, since_ms)) if (term, beat) == now => since_ms,
                _ => {
                    self.watched = Some((now.0, now.1, now_ms));
                    now_ms
                }
            };
            // Our own clock only. That it is silent is a suspicion, and a wrong one costs
            // nothing but a change of term: no grant of the new one comes before every node has
            // acknowledged it (T4).
            if now_ms.saturating_sub(since_ms) < SUSPECT_MS.saturating_add(self.takeover_ms) {
                let (node, term) = (seen.node, seen.term);
                return Ok(Some(DutyChange::StandingBy { node, term }));
            }
        }
        self.watched = None;
        self.term = Some(self.manage.claim()?);
        Ok(None)
    }
}
