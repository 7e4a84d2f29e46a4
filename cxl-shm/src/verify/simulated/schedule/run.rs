//! The state of a run: which task may continue, and which does.

use std::fmt;

use super::super::actor::Actor;
use super::super::machine::Machine;
use super::super::trace::Trace;
use super::super::{Random, Settings};
use super::faults::{Crash, CrashObserver, Faults, Plan, Stall};
use super::point::Point;
use super::report::{Outcome, Report, ScheduleError, ScheduleFailure, TaskReport};
use super::task::{Doom, End, Task};

/// Time that one operation takes.
const STEP_NS: u64 = 200;
/// Longest time from a crash to the start of the next life, in time and in steps.
const RESTART_MAX: Stall = Stall { until_ns: 10_000_000, until_step: 1_000 };

/// What the task at a point does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    Stay,
    /// The baton goes to another.
    Switch,
}

/// See the module.
pub(in super::super) struct Run {
    pub(super) seed: u64,
    /// Tells the tasks of one run from those of another on the same rack.
    pub(super) number: u64,
    pub(super) random: Random,
    /// Most operations that a task runs on end, drawn once: races need switches close together
    /// in some runs and far apart in others.
    turn_max: u64,
    /// Step at which the running task's turn ends.
    turn_until: u64,
    /// Whether the next turn is as long as any: what it does is to be seen by one that waits.
    long_turn_next: bool,
    pub(super) steps: u64,
    steps_max: u64,
    pub(super) tasks: Vec<Task>,
    pub(super) host_steps: Vec<u64>,
    pub(super) host_stalls: Vec<Stall>,
    pub(super) spared: Vec<bool>,
    pub(super) faults: Faults,
    pub(super) plans: Vec<Plan>,
    pub(super) untold: Vec<Crash>,
    pub(super) on_crash: Option<CrashObserver>,
    pub(super) host_crashes: u32,
    pub(super) process_crashes: u32,
    /// None before the first turn.
    running: Option<usize>,
    failure: Option<ScheduleFailure>,
}

impl Run {
    pub(super) fn new(seed: u64, steps_max: u64, hosts: usize, tasks: Vec<Task>) -> Self {
        let mut random = Random::new(seed ^ 0x7363_6865_6475_6c65);
        let turn_max = 2 << (2 * random.below(4));
        Self {
            seed,
            number: 0,
            random,
            turn_max,
            turn_until: 0,
            long_turn_next: false,
            steps: 0,
            steps_max,
            tasks,
            host_steps: vec![0; hosts],
            host_stalls: vec![Stall::default(); hosts],
            spared: vec![false; hosts],
            faults: Faults::default(),
            plans: Vec::new(),
            untold: Vec::new(),
            on_crash: None,
            host_crashes: 0,
            process_crashes: 0,
            running: None,
            failure: None,
        }
    }

    /// The task that holds the baton.
    pub(in super::super) fn running(&self) -> Option<usize> {
        self.running
    }

    /// What task `index` is called where it flushes.
    pub(in super::super) fn actor(&self, index: usize) -> Actor {
        Actor::Task { run: self.number, index }
    }

    /// Its host.
    pub(in super::super) fn running_host(&self) -> Option<usize> {
        self.running.map(|task| self.tasks[task].host)
    }

    /// Makes the running task's next operation a moment to switch.
    pub(in super::super) fn end_turn(&mut self) {
        self.turn_until = self.steps;
        self.long_turn_next = true;
    }

    pub(super) fn running_name(&self) -> String {
        let name = self.running.map_or("none", |task| &self.tasks[task].name);
        format!("seed {}: task {name}", self.seed)
    }

    pub(super) fn over(&self) -> bool {
        !self.tasks.iter().any(Task::live)
    }

    /// The first failure counts; everybody unwinds.
    fn fail(&mut self, failure: ScheduleFailure) {
        self.failure.get_or_insert(failure);
        self.dismiss();
    }

    fn dismiss(&mut self) {
        for task in self.tasks.iter_mut().filter(|task| task.live()) {
            task.doom = Some(Doom::Dismissal);
        }
    }

    /// A task that can run now, drawn evenly from those that do not already. A doomed one always
    /// can, to unwind.
    fn draw_runnable(&mut self, now_ns: u64, paused: &[bool]) -> Option<usize> {
        let runnable = |task: &Task| {
            task.live()
                && (task.doom.is_some()
                    || task.asleep_until_ns <= now_ns
                        && !task.stall.lasts(now_ns, self.steps)
                        && !self.host_stalls[task.host].lasts(now_ns, self.steps)
                        && !paused[task.host])
        };
        let others = |index: usize| Some(index) != self.running;
        let mut runnable = self.tasks.iter().enumerate().filter(|(_, task)| runnable(task));
        let count = runnable.clone().filter(|(index, _)| others(*index)).count();
        match self.random.index(count) {
            Some(nth) => runnable.filter(|(index, _)| others(*index)).nth(nth),
            // Nobody but the one that runs already.
            None => runnable.next(),
        }
        .map(|(index, _)| index)
    }

    /// When the first of those that sleep or stand still can run.
    fn next_wake_ns(&self, now_ns: u64, paused: &[bool]) -> Option<u64> {
        let end = |stall: Stall| {
            if stall.lasts(now_ns, self.steps) { stall.until_ns } else { 0 }
        };
        let waiting = self.tasks.iter().filter(|task| task.live() && !paused[task.host]);
        let wake = |task: &Task| {
            task.asleep_until_ns.max(end(task.stall)).max(end(self.host_stalls[task.host]))
        };
        waiting.map(wake).min()
    }

    pub(super) fn finish(
        self,
        now_ns: u64,
        trace: &Trace,
        settings: &Settings,
    ) -> Result<Report, Box<ScheduleError>> {
        let seed = self.seed;
        let tasks: Vec<_> = self.tasks.into_iter().map(TaskReport::from).collect();
        if let Some(failure) = self.failure {
            let history = trace.last().collect();
            let settings = settings.clone();
            return Err(Box::new(ScheduleError { seed, settings, failure, tasks, history }));
        }
        Ok(Report {
            seed,
            steps: self.steps,
            trace_hash: trace.hash(),
            now_ms: now_ns / 1_000_000,
            host_crashes: self.host_crashes,
            process_crashes: self.process_crashes,
            host_steps: self.host_steps,
            tasks,
        })
    }
}

impl Machine {
    /// The run that this machine is in: only tasks and their starter ask.
    pub(super) fn run_mut(&mut self) -> &mut Run {
        self.run.as_mut().expect("there are tasks only in a run")
    }

    /// One step of task `me`, which holds the baton.
    pub(super) fn step(&mut self, me: usize, point: Point) -> Decision {
        self.now_ns += STEP_NS;
        let now_ns = self.now_ns;
        let run = self.run_mut();
        let host = run.tasks[me].host;
        run.steps += 1;
        run.tasks[me].steps += 1;
        run.host_steps[host] += 1;
        if run.steps > run.steps_max {
            run.fail(ScheduleFailure::OutOfSteps { steps: run.steps_max });
        }
        if let Some(fault) = run.draw_fault(me) {
            self.inflict(fault);
        }
        let paused = self.paused[host];
        let run = self.run_mut();
        if run.tasks[me].doom.is_some() {
            return Decision::Stay;
        }
        if let Point::Pause { ns } = point {
            run.tasks[me].asleep_until_ns = now_ns + ns / 2 + run.random.below(ns + 1);
        }
        let stands = paused
            || run.tasks[me].asleep_until_ns > now_ns
            || run.tasks[me].stall.lasts(now_ns, run.steps)
            || run.host_stalls[host].lasts(now_ns, run.steps);
        let interrupted = point == Point::Interruption && run.random.one_in(2);
        if !stands && !interrupted && run.steps < run.turn_until {
            return Decision::Stay;
        }
        let next = self.pass_baton();
        if next == me { Decision::Stay } else { Decision::Switch }
    }

    /// Draws who runs next. Time advances to the next moment when somebody can.
    pub(super) fn pass_baton(&mut self) -> usize {
        loop {
            let Self { run, now_ns, paused, .. } = self;
            let run = run.as_mut().expect("there are tasks only in a run");
            if let Some(next) = run.draw_runnable(*now_ns, paused) {
                run.running = Some(next);
                let turn = if std::mem::take(&mut run.long_turn_next) {
                    run.turn_max
                } else {
                    run.random.magnitude(run.turn_max)
                };
                run.turn_until = run.steps + 1 + turn;
                return next;
            }
            match run.next_wake_ns(*now_ns, paused) {
                Some(wake_ns) => *now_ns = wake_ns,
                None => run.fail(ScheduleFailure::Stuck),
            }
        }
    }

    /// Ends one life of a task; says whether it is to live again.
    pub(super) fn end_life(&mut self, index: usize, end: End, again: bool) -> bool {
        let now_ns = self.now_ns;
        let actor = self.run_mut().actor(index);
        self.failed.map_anew(actor);
        let run = self.run_mut();
        let delay = Stall {
            until_ns: now_ns + run.random.magnitude(RESTART_MAX.until_ns),
            until_step: run.steps + run.random.magnitude(RESTART_MAX.until_step),
        };
        let task = &mut run.tasks[index];
        let lives_again = match end {
            End::Unwound if task.doom == Some(Doom::Crash) && again => {
                task.doom = None;
                task.stall = delay;
                task.asleep_until_ns = 0;
                true
            }
            End::Unwound => {
                let crashed = task.doom == Some(Doom::Crash);
                task.outcome = Some(if crashed { Outcome::Crashed } else { Outcome::Dismissed });
                false
            }
            End::Finished => {
                task.outcome = Some(Outcome::Finished);
                false
            }
            End::Panicked(message) => {
                task.outcome = Some(Outcome::Crashed);
                let task = task.name.clone();
                run.fail(ScheduleFailure::Panicked { task, message });
                false
            }
        };
        if !run.tasks.iter().any(|task| task.live() && !task.daemon) {
            run.dismiss();
        }
        lives_again
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("seed", &self.seed)
            .field("steps", &self.steps)
            .field("tasks", &self.tasks)
            .finish_non_exhaustive()
    }
}
