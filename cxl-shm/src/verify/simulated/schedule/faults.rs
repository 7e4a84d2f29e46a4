//! Faults that strike hosts and processes, by chance or as planned.

use super::super::machine::Machine;
use super::super::trace::EventKind;
use super::run::Run;
use super::task::{Doom, Task};

/// What strikes by chance. `..._one_in` is the average number of operations (of all tasks
/// together) between two strikes; 0 is never.
///
/// # Example
/// ```
/// use cxl_shm::verify::simulated::Faults;
///
/// let faults =
///     Faults { host_crash_one_in: 500, host_crashes_max: 2, ..Faults::default() };
/// assert_ne!(faults.pause_one_in, 0);
/// assert_eq!(faults.process_crash_one_in, 0);
/// ```
#[derive(Clone, Debug)]
pub struct Faults {
    /// Crashes of a host.
    pub host_crash_one_in: u32,
    /// Most crashes of hosts in a run, planned ones not counted.
    pub host_crashes_max: u32,
    /// Crashes of a single process.
    pub process_crash_one_in: u32,
    /// Most crashes of processes in a run, planned ones not counted.
    pub process_crashes_max: u32,
    /// Pauses of a host or a process.
    pub pause_one_in: u32,
    /// Longest pause in milliseconds. Short and long ones are equally likely.
    pub pause_ms_max: u64,
    /// Jumps of time, for all hosts at once.
    pub time_jump_one_in: u32,
    /// Longest jump in milliseconds. Short and long ones are equally likely.
    pub time_jump_ms_max: u64,
}

impl Faults {
    /// Nothing but the order of operations is left to chance.
    pub const NONE: Self = Self {
        host_crash_one_in: 0,
        host_crashes_max: 0,
        process_crash_one_in: 0,
        process_crashes_max: 0,
        pause_one_in: 0,
        pause_ms_max: 0,
        time_jump_one_in: 0,
        time_jump_ms_max: 0,
    };
}

impl Default for Faults {
    /// Pauses of up to three seconds, nothing else.
    fn default() -> Self {
        Self { pause_one_in: 1000, pause_ms_max: 3000, ..Self::NONE }
    }
}

/// What a test is told of a crash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Crash {
    /// A host lost its caches, its DRAM and all its tasks.
    Host {
        /// Which.
        host: usize,
    },
    /// A single process died, or was cut off (FAULT-F4): that is the same to all others.
    Process {
        /// Its host, which lives on.
        host: usize,
        /// Its name.
        task: String,
    },
}

/// Tells the test of a crash.
pub(super) type CrashObserver = Box<dyn FnMut(&Crash) + Send>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Host(usize),
    Task(usize),
}

/// A crash just before a given step of its target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) step: u64,
}

/// Standing still until a moment or a step, whichever comes first: the second bound keeps a task
/// that spins without a clock from using up the run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    pub(super) until_ns: u64,
    pub(super) until_step: u64,
}

impl Stall {
    pub(super) fn lasts(self, now_ns: u64, step: u64) -> bool {
        now_ns < self.until_ns && step < self.until_step
    }
}

/// Steps after which a pause ends even when time stands still.
const PAUSE_STEPS_MAX: u64 = 10_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Crash(Target),
    Pause(Target, Stall),
    TimeJump { ns: u64 },
}

impl Run {
    /// The fault that strikes at this step of task `me`. At most one a step.
    pub(super) fn draw_fault(&mut self, me: usize) -> Option<Fault> {
        let host = self.tasks[me].host;
        let due = |plan: &Plan| match plan.target {
            Target::Host(target) => target == host && self.host_steps[host] == plan.step,
            Target::Task(target) => target == me && self.tasks[me].steps == plan.step,
        };
        if let Some(plan) = self.plans.iter().position(due) {
            return Some(Fault::Crash(self.plans.swap_remove(plan).target));
        }
        let Self { random, faults, .. } = self;
        if faults.host_crashes_max > 0 && random.one_in(faults.host_crash_one_in) {
            let target = self.draw_victim()?;
            self.faults.host_crashes_max -= 1;
            return Some(Fault::Crash(Target::Host(self.tasks[target].host)));
        }
        if faults.process_crashes_max > 0 && random.one_in(faults.process_crash_one_in) {
            let target = self.draw_victim()?;
            self.faults.process_crashes_max -= 1;
            return Some(Fault::Crash(Target::Task(target)));
        }
        if random.one_in(faults.pause_one_in) {
            return self.draw_pause();
        }
        if random.one_in(faults.time_jump_one_in) {
            let ns = random.magnitude(faults.time_jump_ms_max * 1_000_000);
            return Some(Fault::TimeJump { ns });
        }
        None
    }

    /// A task that can crash, drawn evenly.
    fn draw_victim(&mut self) -> Option<usize> {
        let may = |task: &Task| task.live() && task.doom.is_none() && !self.spared[task.host];
        let count = self.tasks.iter().filter(|task| may(task)).count();
        let nth = self.random.index(count)?;
        let mut victims = self.tasks.iter().enumerate().filter(|(_, task)| may(task));
        victims.nth(nth).map(|(index, _)| index)
    }

    fn draw_pause(&mut self) -> Option<Fault> {
        let task = self.random.index(self.tasks.len())?;
        let target = if self.random.one_in(2) {
            Target::Host(self.tasks[task].host)
        } else {
            Target::Task(task)
        };
        let ns = self.random.magnitude(self.faults.pause_ms_max * 1_000_000);
        let steps = self.random.magnitude(PAUSE_STEPS_MAX);
        // The moment is made absolute where the time is known.
        Some(Fault::Pause(target, Stall { until_ns: ns, until_step: self.steps + steps }))
    }

    fn doom(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        if task.live() && task.doom.is_none() {
            task.doom = Some(Doom::Crash);
            task.crashes += 1;
        }
    }
}

impl Machine {
    pub(super) fn inflict(&mut self, fault: Fault) {
        match fault {
            Fault::Crash(Target::Host(host)) => self.crash_host(host),
            Fault::Crash(Target::Task(task)) => self.crash_task(task),
            Fault::Pause(target, mut stall) => {
                let ns = stall.until_ns;
                stall.until_ns += self.now_ns;
                let run = self.run_mut();
                let (host, who) = match target {
                    Target::Host(host) => {
                        run.host_stalls[host] = stall;
                        (host, u64::MAX)
                    }
                    Target::Task(task) => {
                        run.tasks[task].stall = stall;
                        (run.tasks[task].host, task as u64)
                    }
                };
                self.note(host, EventKind::Pause, who, ns);
            }
            Fault::TimeJump { ns } => {
                self.now_ns += ns;
                self.note(0, EventKind::TimeJump, 0, ns);
            }
        }
    }

    /// A task goes on, cut off (FAULT-F4). To all others it died.
    pub(in super::super) fn tell_cut_off(&mut self, host: usize, index: usize) {
        let run = self.run_mut();
        let task = run.tasks[index].name.clone();
        run.untold.push(Crash::Process { host, task });
    }

    /// A task and all it had in flight are gone.
    pub(super) fn crash_task(&mut self, index: usize) {
        let run = self.run_mut();
        let (host, actor) = (run.tasks[index].host, run.actor(index));
        self.note(host, EventKind::ProcessCrash, index as u64, 0);
        self.hosts[host].forget_actor(&mut self.device, &mut self.random, actor);
        let run = self.run_mut();
        run.process_crashes += 1;
        run.doom(index);
        let task = run.tasks[index].name.clone();
        run.untold.push(Crash::Process { host, task });
    }

    /// A host and all its tasks are gone.
    pub(in super::super) fn crash_host(&mut self, host: usize) {
        self.lose_host(host);
        if let Some(run) = &mut self.run {
            run.host_crashes += 1;
            run.untold.push(Crash::Host { host });
            (0..run.tasks.len())
                .filter(|index| run.tasks[*index].host == host)
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|index| run.doom(index));
        }
    }
}
