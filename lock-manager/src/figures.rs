//! What a lock manager has done, for its metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cxl_shm::lifecycle::{DeathEvent, RecoveryEvent};

use crate::role::{RoleChange, StepOutcome};

/// What a lock manager does at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ManagerActivity {
    /// It has not begun.
    #[default]
    Starting,
    /// Another one serves.
    StandingBy,
    /// It has claimed a term, and waits for nodes to acknowledge it.
    Collecting,
    /// It grants locks.
    Serving,
}

impl ManagerActivity {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Starting, Self::StandingBy, Self::Collecting, Self::Serving];

    /// The activity in a word.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::StandingBy => "standing_by",
            Self::Collecting => "collecting",
            Self::Serving => "serving",
        }
    }
}

/// Counters of a lock manager since its start, shared with the thread that shows them.
#[derive(Debug, Default)]
pub struct ManagerFigures(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    activity: ManagerActivity,
    term: u64,
    steps: u64,
    granted: u64,
    handed_over: u64,
    deposed: u64,
    suspected: u64,
    declared: u64,
    not_fenced: u64,
    recovery_steps: u64,
    adopted_chunks: u64,
}

impl ManagerFigures {
    /// What the manager does.
    #[must_use]
    pub fn activity(&self) -> ManagerActivity {
        self.counts().activity
    }

    /// What the manager does, in a few words.
    pub(crate) fn in_words(&self) -> String {
        let Counts { activity, term, .. } = *self.counts();
        match activity {
            ManagerActivity::Starting => "starts".to_owned(),
            ManagerActivity::StandingBy => format!("stands by; the active one has term {term}"),
            ManagerActivity::Collecting => {
                format!("claimed term {term}, waits for nodes to acknowledge it")
            }
            ManagerActivity::Serving => format!("grants locks, term {term}"),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters, each with its name and what it counts.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, &'static str, u64); 9] {
        let counts = self.counts();
        [
            ("rackline_manager_steps_total", "Turns of the lock manager.", counts.steps),
            ("rackline_manager_grants_total", "Locks that were granted.", counts.granted),
            (
                "rackline_manager_handovers_total",
                "Locks that were granted to a host which waited until another released them.",
                counts.handed_over,
            ),
            (
                "rackline_manager_deposed_total",
                "Times another lock manager took over from this one.",
                counts.deposed,
            ),
            (
                "rackline_nodes_suspected_total",
                "Times a node's heartbeat stopped for so long that its death was proposed.",
                counts.suspected,
            ),
            ("rackline_nodes_declared_dead_total", "Nodes declared dead.", counts.declared),
            (
                "rackline_nodes_not_fenced_total",
                "Tries to fence a dead node that failed: the node is quarantined.",
                counts.not_fenced,
            ),
            (
                "rackline_recovery_steps_total",
                "Steps of recoveries of dead nodes that this host has reached.",
                counts.recovery_steps,
            ),
            (
                "rackline_adopted_chunks_total",
                "Heap chunks of dead nodes that this host has adopted.",
                counts.adopted_chunks,
            ),
        ]
    }

    /// The term that the manager has claimed or watches; 0 before it knows one.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.counts().term
    }

    /// Counts a step.
    pub(crate) fn count(&self, outcome: &StepOutcome) {
        let mut counts = self.counts();
        counts.steps += 1;
        counts.granted += outcome.granted;
        counts.handed_over += outcome.handed_over;
        let set = |counts: &mut Counts, activity, term| {
            (counts.activity, counts.term) = (activity, term);
        };
        match outcome.change {
            Some(RoleChange::StandingBy { term, .. }) => {
                set(&mut counts, ManagerActivity::StandingBy, term)
            }
            Some(RoleChange::Collecting { term, .. }) => {
                set(&mut counts, ManagerActivity::Collecting, term)
            }
            Some(RoleChange::Serving { term }) => set(&mut counts, ManagerActivity::Serving, term),
            Some(RoleChange::Deposed { by_term }) => {
                counts.deposed += 1;
                set(&mut counts, ManagerActivity::StandingBy, by_term);
            }
            None => {}
        }
        for (_, event) in &outcome.deaths {
            match event {
                DeathEvent::Suspected => counts.suspected += 1,
                DeathEvent::Declared(_) => counts.declared += 1,
                DeathEvent::Unreadable { .. } => {}
                DeathEvent::Recovery(RecoveryEvent::NotFenced(_)) => counts.not_fenced += 1,
                DeathEvent::Recovery(RecoveryEvent::Reached(_)) => counts.recovery_steps += 1,
                DeathEvent::Recovery(RecoveryEvent::Adopted(chunks)) => {
                    counts.adopted_chunks += chunks.len() as u64;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_counted_by_what_it_did() {
        let figures = ManagerFigures::default();
        assert_eq!(figures.activity(), ManagerActivity::Starting);
        let serving = Some(RoleChange::Serving { term: 7 });
        let granted = StepOutcome { granted: 3, handed_over: 1, ..Default::default() };
        figures.count(&StepOutcome { change: serving, ..granted });
        assert_eq!((figures.activity(), figures.term()), (ManagerActivity::Serving, 7));
        let deposed = Some(RoleChange::Deposed { by_term: 8 });
        figures.count(&StepOutcome { change: deposed, ..Default::default() });
        assert_eq!((figures.activity(), figures.term()), (ManagerActivity::StandingBy, 8));
        let counts = figures.counters().map(|(.., count)| count);
        assert_eq!(counts, [2, 3, 1, 1, 0, 0, 0, 0, 0]);
    }
}
