//! One process: its thread, its baton, and how it ends.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread, ThreadId};

use super::super::SimulatedRack;
use super::faults::Stall;

/// What a process does.
pub(super) enum Job {
    Once(Box<dyn FnOnce() + Send>),
    Again(Box<dyn Fn(u32) + Send>),
}

/// Why a task is to unwind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doom {
    Crash,
    /// The run is over.
    Dismissal,
}

/// How one life of a task came to its end.
#[derive(Debug)]
pub(super) enum End {
    Finished,
    Unwound,
    Panicked(String),
}

/// What the schedule knows of a process.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) host: usize,
    pub(super) name: String,
    /// The run does not wait for it.
    pub(super) daemon: bool,
    pub(super) baton: Arc<Baton>,
    pub(super) thread: Option<ThreadId>,
    pub(super) asleep_until_ns: u64,
    pub(super) stall: Stall,
    pub(super) doom: Option<Doom>,
    pub(super) outcome: Option<super::Outcome>,
    pub(super) steps: u64,
    pub(super) crashes: u32,
}

impl Task {
    pub(super) fn new(host: usize, name: String, daemon: bool) -> Self {
        Self {
            host,
            name,
            daemon,
            baton: Arc::default(),
            thread: None,
            asleep_until_ns: 0,
            stall: Stall::default(),
            doom: None,
            outcome: None,
            steps: 0,
            crashes: 0,
        }
    }

    pub(super) fn live(&self) -> bool {
        self.outcome.is_none()
    }
}

/// The right to run.
#[derive(Debug, Default)]
pub(super) struct Baton {
    turn: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Baton {
    /// Lets the thread run that waits for this baton, or will.
    pub(super) fn pass(&self) {
        self.turn.store(true, Ordering::Release);
        self.thread.get().expect("set before the first baton is passed").unpark();
    }

    /// Names the thread that waits. Once, before the first pass.
    pub(super) fn belongs_to(&self, thread: &Thread) {
        self.thread.get_or_init(|| thread.clone());
    }

    pub(super) fn wait(&self) {
        while !self.turn.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}

/// The task that a thread runs.
pub(super) struct Current {
    rack: SimulatedRack,
    pub(super) index: usize,
    pub(super) baton: Arc<Baton>,
    dead: Cell<bool>,
}

/// What a crash throws. Private, so that nobody else can tell it from a panic, and not a panic,
/// so that nothing is printed.
struct Unwinding;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Current>>> = const { RefCell::new(None) };
}

/// The task of this thread, if it belongs to a schedule of `rack`.
pub(super) fn current(rack: &SimulatedRack) -> Option<Rc<Current>> {
    let here = |current: &&Rc<Current>| Arc::ptr_eq(&current.rack.inner, &rack.inner);
    CURRENT.with_borrow(|current| current.as_ref().filter(here).cloned())
}

/// The task of this thread and its rack.
pub(super) fn current_anywhere() -> Option<(SimulatedRack, usize)> {
    CURRENT.with_borrow(|current| current.as_ref().map(|it| (it.rack.clone(), it.index)))
}

impl Current {
    /// Whether the task has crashed and only unwinds.
    pub(super) fn dead(&self) -> bool {
        self.dead.get()
    }

    /// Unwinds the task. Never during a panic, which would stop the program.
    pub(super) fn die(&self) -> ! {
        self.dead.set(true);
        resume_unwind(Box::new(Unwinding))
    }
}

/// Starts the thread of task `index`. It waits for its baton.
pub(super) fn start(rack: &SimulatedRack, index: usize, job: Job) -> JoinHandle<()> {
    let rack = rack.clone();
    let name = rack.lock().run_mut().tasks[index].name.clone();
    let body = move || live(&rack, index, job);
    std::thread::Builder::new().name(name).spawn(body).expect("the system has a thread left")
}

/// All lives of a task.
fn live(rack: &SimulatedRack, index: usize, job: Job) {
    let baton = Arc::clone(&rack.lock().run_mut().tasks[index].baton);
    let dead = Cell::new(false);
    let current = Rc::new(Current { rack: rack.clone(), index, baton, dead });
    CURRENT.set(Some(Rc::clone(&current)));
    match job {
        Job::Once(body) => {
            live_once(rack, &current, false, body);
        }
        Job::Again(body) => {
            let mut crashes = 0;
            while live_once(rack, &current, true, || body(crashes)) {
                crashes += 1;
            }
        }
    }
    CURRENT.set(None);
}

/// One life; says whether another follows. The baton goes on at its end.
fn live_once(rack: &SimulatedRack, current: &Current, again: bool, body: impl FnOnce()) -> bool {
    current.baton.wait();
    let doomed = rack.lock().run_mut().tasks[current.index].doom.is_some();
    let end = if doomed {
        End::Unwound
    } else {
        match catch_unwind(AssertUnwindSafe(body)) {
            // A body that swallowed the crash has crashed all the same.
            Ok(()) if !current.dead() => End::Finished,
            Ok(()) => End::Unwound,
            Err(thrown) if thrown.is::<Unwinding>() => End::Unwound,
            Err(thrown) => End::Panicked(message(thrown.as_ref())),
        }
    };
    current.dead.set(false);
    super::point::end_life(rack, current.index, end, again)
}

fn message(thrown: &(dyn Any + Send)) -> String {
    let text = thrown.downcast_ref::<&str>().copied();
    let text = text.or_else(|| thrown.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("something that is not text").to_owned()
}
