//! Runs the processes of several hosts one operation at a time, in an order that a seed decides.
//!
//! Each task is a process (with one thread) of a host. Only the task that holds the baton runs.
//! Every operation on the shared memory, on a host's DRAM and on a clock is a point at which the
//! baton may be passed on, time may advance, and faults strike. Everything that tasks share must
//! therefore go through the rack: a task that blocks on a lock of the operating system while
//! another holds it stops the run, which is reported after a minute.
//!
//! A crashed task is unwound. What its destructors do to the rack has no effect: loads give 0,
//! stores are dropped, exchanges seem to succeed. A destructor must not wait for another task.

mod faults;
mod point;
mod report;
mod run;
mod task;

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

pub use faults::{Crash, Faults};
pub(super) use point::{Point, crash_host, point};
pub use point::{crash_this_process, host_if_cut_off};
pub use report::{Outcome, Report, ScheduleError, ScheduleFailure, TaskReport};
pub(super) use run::Run;

use super::SimulatedRack;
use faults::{CrashObserver, Plan, Target};
use task::{Coroutine, Job, Task};

/// Operations after which a run counts as one that never ends.
const STEPS_MAX: u64 = 1_000_000;
/// How long one operation of one task may take on the real clock before the run counts as stuck
/// outside the simulator.
const BLOCKED_AFTER: Duration = Duration::from_secs(60);

/// Tasks on a rack, to be run under a seed.
///
/// # Example
/// ```
/// use cxl_shm::fabric::Fabric;
/// use cxl_shm::verify::simulated::{Schedule, SimulatedRack};
/// use cxl_shm::units::{LineRange, WordOffset};
///
/// let rack = SimulatedRack::sticky(2, 4096);
/// let (writer, reader) = (rack.host(0), rack.host(1));
/// let word = WordOffset::new(64).unwrap();
/// let line = LineRange::one(word.line());
/// Schedule::builder(&rack, 7)
///     .task(0, "writer", move || {
///         writer.store(word, 1);
///         writer.publish(line);
///     })
///     .task(1, "reader", move || {
///         while reader.load(word) == 0 {
///             reader.refresh(line);
///         }
///     })
///     .run();
/// ```
#[must_use = "nothing runs before `run`"]
pub struct Schedule {
    rack: SimulatedRack,
    seed: u64,
    steps_max: u64,
    faults: Faults,
    plans: Vec<Plan>,
    process_plans: Vec<(String, u64)>,
    spared: Vec<bool>,
    tasks: Vec<(Task, Job)>,
    on_crash: Option<CrashObserver>,
}

impl Schedule {
    /// A schedule without tasks, faults as in [`Faults::default`].
    pub fn builder(rack: &SimulatedRack, seed: u64) -> Self {
        Self {
            rack: rack.clone(),
            seed,
            steps_max: STEPS_MAX,
            faults: Faults::default(),
            plans: Vec::new(),
            process_plans: Vec::new(),
            spared: vec![false; rack.hosts()],
            tasks: Vec::new(),
            on_crash: None,
        }
    }

    /// Adds a process of `host` that runs once. Names are unique.
    ///
    /// # Panics
    /// When there is no such host, or the name is taken.
    pub fn task(
        self,
        host: usize,
        name: impl Into<String>,
        body: impl FnOnce() + Send + 'static,
    ) -> Self {
        self.add(Task::new(host, name.into(), false), Job::Once(Box::new(body)))
    }

    /// Adds a process of `host` that is started again after each crash, of itself or its host,
    /// until it has once come to its end. `body` is told how often it has crashed.
    ///
    /// # Panics
    /// As [`task`](Self::task).
    pub fn restarting(
        self,
        host: usize,
        name: impl Into<String>,
        body: impl Fn(u32) + Send + 'static,
    ) -> Self {
        self.add(Task::new(host, name.into(), false), Job::Again(Box::new(body)))
    }

    /// Adds a process like [`restarting`](Self::restarting) that the run does not wait for: it is
    /// unwound, as by a crash, when all others have ended.
    ///
    /// # Panics
    /// As [`task`](Self::task).
    pub fn daemon(
        self,
        host: usize,
        name: impl Into<String>,
        body: impl Fn(u32) + Send + 'static,
    ) -> Self {
        self.add(Task::new(host, name.into(), true), Job::Again(Box::new(body)))
    }

    /// Sets which faults strike by chance.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Sets the number of operations, one million if not set, after which the run has failed.
    pub fn steps_max(mut self, steps_max: u64) -> Self {
        self.steps_max = steps_max;
        self
    }

    /// Keeps chance from crashing `host` and its processes.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn spare(mut self, host: usize) -> Self {
        self.rack.check_host(host);
        self.spared[host] = true;
        self
    }

    /// Crashes `host` just before operation `step` (from 1) of its tasks, counted together.
    /// With [`Report::host_steps`] a test can crash a host at each of its steps in turn.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn crash_host_at(mut self, host: usize, step: u64) -> Self {
        self.rack.check_host(host);
        self.plans.push(Plan { target: Target::Host(host), step });
        self
    }

    /// Crashes the process `name` just before its operation `step` (from 1). [`run`](Self::run)
    /// panics when there is no such task.
    pub fn crash_process_at(mut self, name: impl Into<String>, step: u64) -> Self {
        self.process_plans.push((name.into(), step));
        self
    }

    /// Calls `told` at each crash, when what is lost is lost and nothing else has happened. It
    /// may ask the rack, but not use hosts, host memories or clocks.
    pub fn on_crash(mut self, told: impl FnMut(&Crash) + Send + 'static) -> Self {
        self.on_crash = Some(Box::new(told));
        self
    }

    /// Runs all tasks to their ends.
    ///
    /// # Panics
    /// With the seed in the message when [`try_run`](Self::try_run) fails or panics.
    pub fn run(self) -> Report {
        self.try_run().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs all tasks to their ends.
    ///
    /// # Errors
    /// When a task panics, the run takes too many steps, or nobody can run any more.
    ///
    /// # Panics
    /// When a task that is to crash does not exist, the rack is already running a schedule, the
    /// system has no thread left, or a task blocks outside the simulator.
    pub fn try_run(mut self) -> Result<Report, Box<ScheduleError>> {
        for (name, step) in std::mem::take(&mut self.process_plans) {
            let task = self.tasks.iter().position(|(task, _)| task.name == name);
            let task = task.unwrap_or_else(|| panic!("there is no task {name} to crash"));
            let target = Target::Task(task);
            self.plans.push(Plan { target, step });
        }
        let (rack, seed) = (self.rack.clone(), self.seed);
        let (tasks, jobs): (Vec<_>, Vec<_>) = self.tasks.into_iter().unzip();
        if tasks.is_empty() {
            return Ok(Report { seed, trace_hash: rack.trace_hash(), ..Report::default() });
        }
        let mut run = Run::new(seed, self.steps_max, rack.hosts(), tasks);
        (run.faults, run.plans, run.spared) = (self.faults, self.plans, self.spared);
        run.on_crash = self.on_crash;
        {
            let mut machine = rack.lock();
            assert!(machine.run.is_none(), "this rack is already running a schedule");
            machine.runs += 1;
            run.number = machine.runs;
            machine.run = Some(run);
            machine.pass_baton();
        }
        let of_tasks = rack.clone();
        let runner = std::thread::Builder::new().name(format!("schedule {seed}"));
        #[cfg(feature = "verify")]
        let runner = {
            // Its tasks run the program that the thread runs which starts them.
            let mutant = crate::mutant::present();
            runner.spawn(move || crate::mutant::with(mutant, || drive(&of_tasks, jobs)))
        };
        #[cfg(not(feature = "verify"))]
        let runner = runner.spawn(move || drive(&of_tasks, jobs));
        let runner = runner.expect("the system has a thread left");
        wait(&rack);
        runner.join().expect("a task catches whatever its body throws");
        let mut machine = rack.lock();
        let run = machine.run.take().expect("this run put it there");
        let (now_ns, trace) = (machine.now_ns, &machine.trace);
        run.finish(now_ns, trace, rack.settings())
    }

    fn add(mut self, task: Task, job: Job) -> Self {
        self.rack.check_host(task.host);
        let taken = self.tasks.iter().any(|(other, _)| other.name == task.name);
        assert!(!taken, "there are two tasks named {}", task.name);
        self.tasks.push((task, job));
        self
    }
}

/// Runs the task that has the baton, until the run is over.
fn drive(rack: &SimulatedRack, jobs: Vec<Job>) {
    let tasks = jobs.into_iter().enumerate();
    let mut tasks: Vec<_> = tasks.map(|(index, job)| Coroutine::new(rack, index, job)).collect();
    loop {
        let next = {
            let mut machine = rack.lock();
            let run = machine.run_mut();
            if run.over() {
                break;
            }
            run.running().expect("the first baton was passed before")
        };
        tasks[next].resume();
    }
    rack.inner.ended.notify_all();
}

/// Waits for the end of the run.
fn wait(rack: &SimulatedRack) {
    let mut machine = rack.lock();
    let mut steps = None;
    while !machine.run_mut().over() {
        let answer = rack.inner.ended.wait_timeout(machine, BLOCKED_AFTER);
        let (guard, timeout) = answer.unwrap_or_else(PoisonError::into_inner);
        machine = guard;
        let run = machine.run_mut();
        assert!(
            run.over() || !timeout.timed_out() || steps != Some(run.steps),
            "{} blocks outside the simulator: share only what the rack has",
            run.running_name(),
        );
        steps = timeout.timed_out().then_some(run.steps);
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("seed", &self.seed)
            .field("tasks", &self.tasks.iter().map(|(task, _)| &task.name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
