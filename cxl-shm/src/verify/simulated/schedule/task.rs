//! One process: its coroutine, and how it ends.
//!
//! Tasks are coroutines of one thread: passing on between two of them is the most frequent thing
//! that a run does, and takes a hundredth of the time it would take between threads.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use generator::{Generator, Gn};

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

/// Words of a task's stack: room for the message of a panic in a debug build. Only what is touched
/// takes memory.
const STACK_WORDS: usize = 128 << 10;

/// The task that this thread runs at the moment.
pub(super) struct Current {
    rack: SimulatedRack,
    pub(super) index: usize,
    dead: AtomicBool,
}

/// What a crash throws. Private, so that nobody else can tell it from a panic, and not a panic,
/// so that nothing is printed.
struct Unwinding;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Current>>> = const { RefCell::new(None) };
}

/// The task of this thread, if it belongs to a schedule of `rack`.
pub(super) fn current(rack: &SimulatedRack) -> Option<Arc<Current>> {
    let here = |current: &&Arc<Current>| Arc::ptr_eq(&current.rack.inner, &rack.inner);
    CURRENT.with_borrow(|current| current.as_ref().filter(here).cloned())
}

/// The number of the task of this thread, if it belongs to a schedule of `rack`, and whether it
/// only unwinds: asked at every operation.
pub(super) fn running(rack: &SimulatedRack) -> Option<(usize, bool)> {
    let here = |current: &&Arc<Current>| Arc::ptr_eq(&current.rack.inner, &rack.inner);
    CURRENT.with_borrow(|current| current.as_ref().filter(here).map(|it| (it.index, it.dead())))
}

/// The task of this thread and its rack.
pub(super) fn current_anywhere() -> Option<(SimulatedRack, usize)> {
    CURRENT.with_borrow(|current| current.as_ref().map(|it| (it.rack.clone(), it.index)))
}

impl Current {
    /// Whether the task has crashed and only unwinds.
    pub(super) fn dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Unwinds the task. Never during a panic, which would stop the program.
    pub(super) fn die(&self) -> ! {
        self.dead.store(true, Ordering::Relaxed);
        resume_unwind(Box::new(Unwinding))
    }
}

/// A task that can be run for as long as it has the baton.
pub(super) struct Coroutine {
    current: Arc<Current>,
    body: Generator<'static, (), ()>,
}

impl Coroutine {
    /// Task `index`. It does nothing before it is first resumed.
    pub(super) fn new(rack: &SimulatedRack, index: usize, job: Job) -> Self {
        let current = Arc::new(Current { rack: rack.clone(), index, dead: AtomicBool::new(false) });
        let task = Arc::clone(&current);
        let body = Gn::new_opt(STACK_WORDS, move || live(&task, job));
        Self { current, body }
    }

    /// Runs the task until it passes the baton on.
    pub(super) fn resume(&mut self) {
        CURRENT.set(Some(Arc::clone(&self.current)));
        self.body.resume();
        CURRENT.set(None);
    }
}

/// Waits until the running task has the baton again.
#[expect(
    deprecated,
    reason = "what replaces it is handed to the body, out of reach of an operation inside it"
)]
pub(super) fn wait_for_baton() {
    generator::yield_with(());
}

/// All lives of a task.
fn live(current: &Current, job: Job) {
    match job {
        Job::Once(body) => {
            live_once(current, false, body);
        }
        Job::Again(body) => {
            let mut crashes = 0;
            while live_once(current, true, || body(crashes)) {
                crashes += 1;
                wait_for_baton();
            }
        }
    }
}

/// One life; says whether another follows. The baton is passed on at its end.
fn live_once(current: &Current, again: bool, body: impl FnOnce()) -> bool {
    let rack = &current.rack;
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
    current.dead.store(false, Ordering::Relaxed);
    super::point::end_life(rack, current.index, end, again)
}

fn message(thrown: &(dyn Any + Send)) -> String {
    let text = thrown.downcast_ref::<&str>().copied();
    let text = text.or_else(|| thrown.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("something that is not text").to_owned()
}
