//! Standing by and serving, as one state machine without a clock of its own.

use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::lock::arbitrated::ManagerState;
use cxl_shm::member::{Liveness, Manage, ManageError, ManagerSeen, Member, SUSPECT_MS};
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

/// A process that is, or may become, the lock manager.
#[derive(Debug)]
pub struct Duty<'m, F: Fabric, H: HostMemory, L: Liveness> {
    member: &'m Member<F, H, L>,
    manage: Manage<'m, F, H, L>,
    takeover_ms: u64,
    term: Option<u64>,
    /// Term and heartbeat of the active manager, and since when they have been so.
    watched: Option<(u64, u64, u64)>,
    told: Option<DutyChange>,
}

impl<'m, F: Fabric, H: HostMemory, L: Liveness> Duty<'m, F, H, L> {
    /// Makes `member`'s process the one of its host that may be lock manager.
    ///
    /// # Errors
    /// [`ManageError::OneOnThisHost`].
    pub fn new(member: &'m Member<F, H, L>, takeover_ms: u64) -> Result<Self, ManageError> {
        let manage = member.manage()?;
        Ok(Self { member, manage, takeover_ms, term: None, watched: None, told: None })
    }

    /// One step, and what changed by it. Returns also whether anything was granted: then the next
    /// step should follow at once.
    ///
    /// # Errors
    /// [`ManageError::NoTermsLeft`].
    pub fn step(&mut self, now_ms: u64) -> Result<(bool, Option<DutyChange>), ManageError> {
        let mut busy = false;
        let change = match self.term {
            Some(term) => match self.manage.poll() {
                Some(ManagerState::Collecting { waiting_for }) => {
                    DutyChange::Collecting { term, waiting_for }
                }
                Some(ManagerState::Serving { granted }) => {
                    busy = granted > 0;
                    DutyChange::Serving { term }
                }
                Some(ManagerState::Deposed { by_term }) => {
                    self.term = None;
                    DutyChange::Deposed { by_term }
                }
                None => unreachable!("polled only between claim and deposition"),
            },
            None => match self.stand_by(now_ms)? {
                Some(change) => change,
                None => return Ok((true, None)),
            },
        };
        let news = self.told != Some(change);
        self.told = Some(change);
        Ok((busy, news.then_some(change)))
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
