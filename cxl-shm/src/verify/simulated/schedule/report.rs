//! How a run ended.

use std::fmt;

use super::super::{Event, Settings};
use super::task::Task;

/// Events that a failure prints.
const EVENTS_SHOWN: usize = 60;

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Its body returned.
    Finished,
    /// It crashed, or its host did, and it was not one that starts again.
    Crashed,
    /// It was unwound because the run was over.
    Dismissed,
}

/// How one task ended.
#[derive(Clone, Debug)]
pub struct TaskReport {
    /// Its name.
    pub name: String,
    /// Its host.
    pub host: usize,
    /// How it ended in the end.
    pub outcome: Outcome,
    /// How often it crashed, together with its host or alone.
    pub crashes: u32,
    /// Its operations, of all its lives.
    pub steps: u64,
}

impl From<Task> for TaskReport {
    fn from(task: Task) -> Self {
        let Task { name, host, outcome, crashes, steps, .. } = task;
        Self { name, host, outcome: outcome.unwrap_or(Outcome::Dismissed), crashes, steps }
    }
}

/// A run that came to its end.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seed of the schedule.
    pub seed: u64,
    /// Operations of all tasks.
    pub steps: u64,
    /// Fingerprint of everything that happened on the rack so far. The same rack settings, seed
    /// and tasks give the same one.
    pub trace_hash: u64,
    /// Simulated time since the rack was made, in milliseconds.
    pub now_ms: u64,
    /// Crashes of hosts.
    pub host_crashes: u32,
    /// Crashes of single processes.
    pub process_crashes: u32,
    /// Operations of the tasks of each host.
    pub host_steps: Vec<u64>,
    /// The tasks in the order in which they were added.
    pub tasks: Vec<TaskReport>,
}

impl Report {
    /// What became of task `name`; `None` when there was no such task.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&TaskReport> {
        self.tasks.iter().find(|task| task.name == name)
    }
}

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleFailure {
    /// A task panicked.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// Its name.
        task: String,
        /// What it said.
        message: String,
    },
    /// The tasks did not come to their ends: they wait for something that will not happen, or
    /// the run needs a larger budget.
    #[error("not at its end after {steps} steps")]
    OutOfSteps {
        /// The budget.
        steps: u64,
    },
    /// All tasks that are left are on hosts that the test paused and nobody can resume.
    #[error("all tasks that are left are on paused hosts")]
    Stuck,
}

/// A run that failed, with what is needed to see why and to run it again.
#[derive(Clone, thiserror::Error)]
pub struct ScheduleError {
    /// Seed of the schedule.
    pub seed: u64,
    /// Settings of the rack, with its own seed.
    pub settings: Settings,
    /// What went wrong first.
    pub failure: ScheduleFailure,
    /// The tasks in the order in which they were added.
    pub tasks: Vec<TaskReport>,
    /// The last events, oldest first.
    pub history: Vec<Event>,
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule with seed {} on {:?}: {}", self.seed, self.settings, self.failure)?;
        for (index, task) in self.tasks.iter().enumerate() {
            let TaskReport { name, host, outcome, crashes, steps } = task;
            writeln!(
                f,
                "task {index} {name} of host {host}: {outcome:?}, {steps} steps, {crashes} crashes"
            )?;
        }
        writeln!(f, "last events (offset, value):")?;
        let skipped = self.history.len().saturating_sub(EVENTS_SHOWN);
        for event in &self.history[skipped..] {
            writeln!(f, "{event}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ScheduleError {
    /// As it is displayed, so that `unwrap` tells what there is to tell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
