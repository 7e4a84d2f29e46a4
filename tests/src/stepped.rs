//! A host's memory that lets others act between any two operations of a program, without a
//! schedule: "everything up to step k, then all of that, then the rest".

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use cxl_shm::verify::simulated::{Access, Interposed, Interposer, SimulatedHost};

type Act<'a> = Box<dyn FnOnce() + 'a>;

#[derive(Default)]
struct Plan<'a> {
    steps: u64,
    at: Option<(u64, Act<'a>)>,
}

/// Counts the operations of a host, and lets others act before one. Clones count together.
#[derive(Clone, Default)]
pub struct Steps<'a>(Rc<RefCell<Plan<'a>>>);

/// A host's memory that lets others act: see the module.
pub type Stepped<'a> = Interposed<Steps<'a>>;

/// The memory of `host`, stepped.
#[must_use]
pub fn stepped<'a>(host: SimulatedHost) -> Stepped<'a> {
    Interposed::new(host, Steps::default())
}

impl<'a> Steps<'a> {
    /// Calls `act` just before operation `step` (from 1), counted from now.
    pub fn interrupt_at(&self, step: u64, act: impl FnOnce() + 'a) {
        *self.0.borrow_mut() = Plan { steps: 0, at: Some((step, Box::new(act))) };
    }

    /// Operations since the last [`interrupt_at`](Self::interrupt_at).
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.borrow().steps
    }
}

impl Interposer for Steps<'_> {
    fn before(&self, _: Access) {
        let act = {
            let mut plan = self.0.borrow_mut();
            plan.steps += 1;
            let due = plan.at.as_ref().is_some_and(|(step, _)| *step == plan.steps);
            if due { plan.at.take() } else { None }
        };
        if let Some((_, act)) = act {
            act();
        }
    }
}

impl fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").field("steps", &self.steps()).finish_non_exhaustive()
    }
}
