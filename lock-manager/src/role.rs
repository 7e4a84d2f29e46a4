//! Standing by and serving, as one state machine without a clock of its own.

use cxl_shm::clock::Clock;
use cxl_shm::host::MembershipLost;
use cxl_shm::lifecycle::{DeathEvent, Deaths, Fence};
use cxl_shm::lock::arbitrated::ManagerState;
use cxl_shm::lock::{Manage, ManageError, ManagerSeen};
use cxl_shm::node::{Backend, Member, SUSPECT_MS, Stillness};
use cxl_shm::units::NodeId;

/// What changed since the last step, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoleChange {
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
pub struct Timeouts {
    /// How long after the active manager is suspected a standby takes over.
    pub takeover_ms: u64,
    /// How long the heartbeat of a host stands still before it is declared dead.
    pub declare_ms: u64,
}

/// Why a process cannot be the lock manager any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RoleError {
    /// It may not manage.
    #[error(transparent)]
    Manage(#[from] ManageError),
    /// This host does not take part any more.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

/// What one step did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StepOutcome {
    /// Something was granted or claimed, or a thread has begun to wait for a holder: the next step
    /// should follow at once.
    pub busy: bool,
    /// Locks that were granted.
    pub granted: u64,
    /// Those of them for which a host waited until another released the lock.
    pub handed_over: u64,
    /// What the process does now, when that has changed.
    pub change: Option<RoleChange>,
    /// What is new about dead hosts.
    pub deaths: Vec<(NodeId, DeathEvent)>,
}

/// A process that is, or may become, the lock manager.
#[derive(Debug)]
pub struct ManagerRole<'m, B: Backend> {
    member: &'m Member<B>,
    manage: Manage<'m, B>,
    deaths: Deaths<'m, B>,
    takeover_ms: u64,
    term: Option<u64>,
    /// Term and heartbeat of the active manager.
    watched: Stillness<(u64, u64)>,
    reported: Option<RoleChange>,
    waited_for: bool,
}

impl<'m, B: Backend> ManagerRole<'m, B> {
    /// Makes `member`'s process the one of its host that may be lock manager.
    ///
    /// # Errors
    /// [`ManageError::OneOnThisHost`].
    pub fn new(
        member: &'m Member<B>,
        clock: &'m (impl Clock + 'm),
        timeouts: Timeouts,
    ) -> Result<Self, ManageError> {
        let manage = member.manage()?;
        let Timeouts { takeover_ms, declare_ms } = timeouts;
        let deaths = Deaths::watch(&manage, clock, declare_ms);
        Ok(Self {
            member,
            manage,
            deaths,
            takeover_ms,
            term: None,
            watched: Stillness::default(),
            reported: None,
            waited_for: false,
        })
    }

    /// Waits for others as `timeouts` say from now on.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) {
        let Timeouts { takeover_ms, declare_ms } = timeouts;
        self.takeover_ms = takeover_ms;
        self.deaths.set_declare_ms(declare_ms);
    }

    /// One step: of granting, or of standing by, and of what the dead need. `fence` makes certain
    /// that a declared host writes no more.
    ///
    /// # Errors
    /// [`RoleError`].
    pub fn step(&mut self, now_ms: u64, fence: &mut impl Fence) -> Result<StepOutcome, RoleError> {
        self.member.check_member()?;
        let mut outcome = StepOutcome::default();
        let change = match self.term {
            Some(term) => Some(match self.manage.attend() {
                Some(ManagerState::Collecting { waiting_for }) => {
                    RoleChange::Collecting { term, waiting_for }
                }
                Some(ManagerState::Serving { granted, handed_over }) => {
                    let waited_for = self.manage.is_waited_for();
                    let before = std::mem::replace(&mut self.waited_for, waited_for);
                    outcome.granted = granted as u64;
                    outcome.handed_over = u64::from(handed_over);
                    outcome.busy = granted > 0 || (waited_for && !before);
                    RoleChange::Serving { term }
                }
                Some(ManagerState::Deposed { by_term }) => {
                    self.term = None;
                    RoleChange::Deposed { by_term }
                }
                None => unreachable!("polled only between claim and deposition"),
            }),
            None => {
                let change = self.stand_by(now_ms)?;
                outcome.busy = change.is_none();
                change
            }
        };
        // The active manager declares deaths, also where the locks need none; a standby does when
        // it has taken over. What this node was appointed to it carries on in any case.
        let declares = self.term.is_some();
        outcome.deaths = self.deaths.step(now_ms, declares, fence);
        outcome.change = change.filter(|change| self.reported != Some(*change));
        self.reported = change.or(self.reported);
        Ok(outcome)
    }

    /// Watches the active manager, and claims the next term when there is none: `None` then.
    fn stand_by(&mut self, now_ms: u64) -> Result<Option<RoleChange>, ManageError> {
        // One that ran on this node is dead: we hold the node's right to manage.
        let elsewhere = |seen: &ManagerSeen| seen.serving && seen.node != self.member.node();
        let seen = self.member.manager_seen().filter(elsewhere);
        if let Some(seen) = seen {
            // Our own clock only, and no time in which this manager itself did not look (BEAT-G0).
            // That it is silent is a suspicion, and a wrong one costs nothing but a change of term:
            // no grant of the new one comes before every node has acknowledged it (LOCK-T4).
            let silent_ms = self.watched.look((seen.term, seen.heartbeat), now_ms);
            if silent_ms < SUSPECT_MS.saturating_add(self.takeover_ms) {
                let (node, term) = (seen.node, seen.term);
                return Ok(Some(RoleChange::StandingBy { node, term }));
            }
        }
        self.watched = Stillness::default();
        self.term = Some(self.manage.claim()?);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use cxl_shm::clock::SystemClock;
    use cxl_shm::layout::LockProtocol;
    use cxl_shm::lifecycle::NoFence;
    use cxl_shm::verify::fixture::{EvenLive, SMALL, SmallRegion};

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts { takeover_ms: 1000, declare_ms: 3000 };

    /// Both managers are stopped, and the standby goes on a moment before the active one.
    #[test]
    fn a_standby_that_was_stopped_itself_takes_nothing_over() {
        let region = SmallRegion::new(SMALL, LockProtocol::Arbitrated);
        let clock = SystemClock::start();
        let [first, second] = [0, 1].map(|host| region.join(host, 2, EvenLive, &clock));
        let mut active = ManagerRole::new(&first, &clock, TIMEOUTS).unwrap();
        let mut standby = ManagerRole::new(&second, &clock, TIMEOUTS).unwrap();
        let mut step = |now_ms, both: bool| {
            first.beat();
            second.beat();
            if both {
                active.step(now_ms, &mut NoFence).unwrap();
            }
            standby.step(now_ms, &mut NoFence).unwrap();
            first.manager_seen().unwrap().node
        };
        assert_eq!(step(0, true), NodeId(0));
        assert_eq!(step(10, true), NodeId(0));
        // Four seconds in which nobody did anything, then five steps of the standby alone.
        for now_ms in (4010..4060).step_by(10) {
            assert_eq!(step(now_ms, false), NodeId(0), "at {now_ms} ms");
        }
        for now_ms in (4060..8000).step_by(10) {
            assert_eq!(step(now_ms, true), NodeId(0), "at {now_ms} ms");
        }
        // It does take over when the active one alone is silent.
        let until_ms = 8000 + SUSPECT_MS + TIMEOUTS.takeover_ms;
        let taken = (8000..until_ms + 100).step_by(10).map(|now_ms| step(now_ms, false)).last();
        assert_eq!(taken, Some(NodeId(1)));
    }
}
