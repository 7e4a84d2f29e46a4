//! A host's memory that lets others act between any two operations of a program, without a
//! schedule: "everything up to step k, then all of that, then the rest".

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use cxl_shm::fabric::simulated::SimulatedHost;
use cxl_shm::fabric::{Fabric, LineWords};
use cxl_shm::units::{LineOffset, LineRange, WordOffset};

type Act<'a> = Box<dyn FnOnce() + 'a>;

#[derive(Default)]
struct Plan<'a> {
    steps: u64,
    at: Option<(u64, Act<'a>)>,
}

/// See the module. Clones count together.
#[derive(Clone)]
pub struct Stepped<'a> {
    host: SimulatedHost,
    plan: Rc<RefCell<Plan<'a>>>,
}

impl<'a> Stepped<'a> {
    /// The memory of `host`.
    #[must_use]
    pub fn new(host: SimulatedHost) -> Self {
        Self { host, plan: Rc::default() }
    }

    /// Calls `act` just before operation `step` (from 1), counted from now.
    pub fn interrupt_at(&self, step: u64, act: impl FnOnce() + 'a) {
        *self.plan.borrow_mut() = Plan { steps: 0, at: Some((step, Box::new(act))) };
    }

    /// Operations since the last [`interrupt_at`](Self::interrupt_at).
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.plan.borrow().steps
    }

    fn step(&self) {
        let act = {
            let mut plan = self.plan.borrow_mut();
            plan.steps += 1;
            let due = plan.at.as_ref().is_some_and(|(step, _)| *step == plan.steps);
            if due { plan.at.take() } else { None }
        };
        if let Some((_, act)) = act {
            act();
        }
    }
}

impl Fabric for Stepped<'_> {
    fn bytes(&self) -> u64 {
        self.host.bytes()
    }

    fn load(&self, at: WordOffset) -> u64 {
        self.step();
        self.host.load(at)
    }

    #[track_caller]
    fn store(&self, at: WordOffset, value: u64) {
        self.step();
        self.host.store(at, value);
    }

    fn read_line(&self, at: LineOffset) -> LineWords {
        self.step();
        self.host.read_line(at)
    }

    #[track_caller]
    fn write_line(&self, at: LineOffset, words: &LineWords) {
        self.step();
        self.host.write_line(at, words);
    }

    #[track_caller]
    fn write_back(&self, lines: LineRange) {
        self.step();
        self.host.write_back(lines);
    }

    #[track_caller]
    fn invalidate(&self, lines: LineRange) {
        self.step();
        self.host.invalidate(lines);
    }

    #[track_caller]
    fn fence(&self) {
        self.step();
        self.host.fence();
    }

    #[track_caller]
    fn read_back(&self, lines: LineRange) {
        self.step();
        self.host.read_back(lines);
    }
}

impl fmt::Debug for Stepped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepped").field("host", &self.host).finish_non_exhaustive()
    }
}
