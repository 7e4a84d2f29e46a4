//! The suite: every scenario by name.

use super::arbitrated::{Clients, serve};
use crate::fabric::explored::{Exploration, Limits, Memory, Model, Task, explore};
use crate::fabric::simulated::Site;
use crate::mutant::{self, Mutant};

/// A model by its name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What happens in it, and what is claimed.
    pub about: &'static str,
    /// Takes minutes: not part of the short form.
    pub long: bool,
    run: fn(Variant) -> Exploration,
}

/// What is explored: on which memory, with what left out, how far.
#[derive(Clone, Copy, Debug)]
struct Variant {
    memory: Memory,
    removed: Option<Site>,
    limits: Limits,
}

impl Variant {
    fn explore<T: Task>(self, model: &Model<T>) -> Exploration {
        explore(model, self.memory, self.removed, self.limits)
    }
}

impl Scenario {
    /// Explores it on `memory`, with a flush or fence `removed`, or a rule broken.
    #[must_use]
    pub fn explore(
        &self,
        memory: Memory,
        removed: Option<Site>,
        mutant: Option<Mutant>,
        limits: Limits,
    ) -> Exploration {
        mutant::with(mutant, || (self.run)(Variant { memory, removed, limits }))
    }
}

/// All scenarios, the short ones first.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "arbitrated-2x1",
            about: "arbitrated lock, 2 nodes, 1 round each",
            long: false,
            run: |variant| variant.explore(&serve(Clients::new(2, 1))),
        },
        Scenario {
            name: "arbitrated-2x2",
            about: "arbitrated lock, 2 nodes, 2 rounds each",
            long: false,
            run: |variant| variant.explore(&serve(Clients::new(2, 2))),
        },
        Scenario {
            name: "arbitrated-2x2-withdraw",
            about: "arbitrated lock, 2 nodes, 2 rounds each, one of which may be withdrawn",
            long: true,
            run: |variant| {
                variant.explore(&serve(Clients { withdrawals: 1, ..Clients::new(2, 2) }))
            },
        },
        Scenario {
            name: "arbitrated-3x1",
            about: "arbitrated lock, 3 nodes, 1 round each",
            long: true,
            run: |variant| variant.explore(&serve(Clients::new(3, 1))),
        },
    ]
}
