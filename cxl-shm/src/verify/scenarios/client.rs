//! A thread that takes a lock between hosts, adds one to a counter, and releases it.

use super::ground::{ExploredHandle, word};
use crate::fabric::Fabric;
use crate::lock::{Competitor, Held, SharedTier};
use crate::mutant::{self, Mutant};
use crate::units::{LineOffset, LineRange, LockId};
use crate::verify::explored::{Step, World};

/// Bit of a client's view: it is inside.
pub(super) const INSIDE: u64 = 1;
/// Bit of a client's view: it has done all that it had to.
pub(super) const DONE: u64 = 2;
/// The rest of a client's view: how often it has counted.
pub(super) const COUNTED_SHIFT: u32 = 2;

/// What a client is to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Plan {
    pub(super) lock: LockId,
    /// How often it takes the lock.
    pub(super) rounds: u64,
    /// How often it may give up waiting, at any time.
    pub(super) withdrawals: u64,
}

/// The counter that the lock guards, on one line or, seen half done by a thread that is inside
/// together with another, on two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Counter {
    pub(super) lines: [LineOffset; 2],
    pub(super) used: usize,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Client {
    handle: ExploredHandle,
    plan: Plan,
    counter: Counter,
    counted: u64,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Outside,
    Waiting(Competitor),
    Inside(Held),
    Leaving(Held),
    /// Has released, and did not publish before.
    Late(u64),
}

impl Client {
    pub(super) fn new(handle: ExploredHandle, plan: Plan, counter: Counter) -> Self {
        Self { handle, plan, counter, counted: 0, stage: Stage::Outside }
    }

    /// A client that asked for its lock before the model starts. That was the first of its rounds.
    pub(super) fn waiting(
        handle: ExploredHandle,
        plan: Plan,
        counter: Counter,
        asked: Competitor,
    ) -> Self {
        Self::begun(handle, plan, counter, Stage::Waiting(asked))
    }

    /// A client that took its lock before the model starts. That was the first of its rounds.
    pub(super) fn inside(handle: ExploredHandle, plan: Plan, counter: Counter, held: Held) -> Self {
        Self::begun(handle, plan, counter, Stage::Inside(held))
    }

    fn begun(handle: ExploredHandle, plan: Plan, counter: Counter, stage: Stage) -> Self {
        let plan = Plan { rounds: plan.rounds - 1, ..plan };
        Self { stage, ..Self::new(handle, plan, counter) }
    }

    pub(super) fn step(&mut self, world: World) -> Step {
        let (handle, fabric) = (self.handle.clone(), world.fabric());
        self.stage = match std::mem::replace(&mut self.stage, Stage::Outside) {
            Stage::Outside if self.plan.rounds == 0 => return Step::Ends,
            Stage::Outside => {
                self.plan.rounds -= 1;
                Stage::Waiting(Competitor::begin(&*handle, &fabric, self.plan.lock))
            }
            Stage::Waiting(waiting) if self.plan.withdrawals > 0 && world.choose(2) == 1 => {
                self.plan.withdrawals -= 1;
                waiting.withdraw(&*handle, &fabric);
                Stage::Outside
            }
            Stage::Waiting(mut waiting) => match waiting.poll(&*handle, &fabric) {
                Ok(Some(held)) => Stage::Inside(held),
                Ok(None) => Stage::Waiting(waiting),
                Err(damaged) => world.refute(damaged.to_string()),
            },
            Stage::Inside(held) => {
                // Others may see us inside also when we do nothing.
                world.pause();
                let next = self.read(world) + 1;
                self.counted += 1;
                if mutant::is(Mutant::PublishesAfterRelease) {
                    Competitor::release(held, &*handle, &fabric);
                    Stage::Late(next)
                } else {
                    self.write(world, next);
                    Stage::Leaving(held)
                }
            }
            Stage::Leaving(held) => {
                Competitor::release(held, &*handle, &fabric);
                Stage::Outside
            }
            Stage::Late(value) => {
                self.write(world, value);
                Stage::Outside
            }
        };
        Step::Goes
    }

    pub(super) fn view(&self) -> u64 {
        let inside = u64::from(matches!(self.stage, Stage::Inside(_)));
        let done = u64::from(self.plan.rounds == 0 && matches!(self.stage, Stage::Outside));
        self.counted << COUNTED_SHIFT | done << 1 | inside
    }

    /// LOCK-L1, then a look at the counter.
    fn read(&self, world: World) -> u64 {
        let lines = &self.counter.lines[..self.counter.used];
        crate::fabric::refresh_all(&world.fabric(), lines.iter().map(|line| LineRange::one(*line)));
        let values = lines.iter().map(|line| world.fabric().load(word(*line, 0)));
        let values: Vec<u64> = values.collect();
        if values.iter().any(|value| *value != values[0]) {
            world.refute(format!("an update was seen half done: {values:?}"));
        }
        values[0]
    }

    fn write(&self, world: World, value: u64) {
        for line in &self.counter.lines[..self.counter.used] {
            world.fabric().store(word(*line, 0), value);
            world.fabric().publish(LineRange::one(*line));
        }
    }
}
