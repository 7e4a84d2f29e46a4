//! Many seeded schedules: the same scenarios as the suites run, as often as there is time for.
//!
//! A schedule is one run of one scenario under one seed, from a formatted region to the audit of
//! the region after it. A round of a plan runs each scenario as often as its family says, every time under
//! the next seed of that scenario, so that a failure is replayed by its scenario and its seed
//! alone.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::verify;

use crate::parallel::in_parallel;
use crate::rack::{Mutant, message_of, steps_of};
use crate::scenario::Scenario;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Each in turn.
    pub scenarios: &'a [Scenario],
    /// Seed of the first.
    pub first_seed: u64,
    /// How many; no bound when `None`.
    pub schedules: Option<u64>,
    /// How long to begin new ones; no bound when `None`.
    pub seconds: Option<u64>,
    /// Fewest and most hosts.
    pub hosts: (usize, usize),
    /// Threads that work on them.
    pub threads: usize,
    /// Which rule of the protocols is broken, if one is.
    pub broken: Option<verify::Mutant>,
}

/// A schedule that failed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Failure {
    /// The scenario.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// What it said.
    pub message: String,
}

/// What came of a plan.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Schedules that ran, by scenario.
    pub schedules: BTreeMap<&'static str, u64>,
    /// Operations of their longest runs, all together.
    pub steps: u64,
    /// Those that failed, in order.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub elapsed_ms: u64,
}

impl Tally {
    /// All schedules.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.schedules.values().sum()
    }
}

/// Failures after which no further schedules begin.
const FAILURES_MAX: usize = 5;
/// Schedules that a thread takes at a time.
const PORTION: u64 = 8;

/// One schedule of a round: the `nth` of its scenario.
#[derive(Clone, Copy, Debug)]
struct Turn {
    scenario: Scenario,
    nth: u64,
}

/// Finer than any two turns of a round are apart.
const SPREAD: u64 = 1 << 20;

/// Schedules of `scenario` in a round: one that is run alone takes all turns, whatever its share.
fn turns_of(scenario: &Scenario, plan: &Plan<'_>) -> u64 {
    if plan.scenarios.len() == 1 { 1 } else { scenario.family.turns() }
}

/// Runs a plan.
#[must_use]
pub fn run(plan: &Plan<'_>) -> Tally {
    let clock = SystemClock::start();
    let next = Mutex::new(0);
    let tally = Mutex::new(Tally::default());
    let over = AtomicBool::new(plan.scenarios.is_empty());
    let mutant = Mutant { hosts: Some(plan.hosts), ..Mutant::NONE };
    let take = || {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        let end = (*next + PORTION).min(plan.schedules.unwrap_or(u64::MAX));
        let portion = *next..end;
        *next = end;
        let in_time = plan.seconds.is_none_or(|seconds| clock.now_ms() < seconds * 1000);
        (!portion.is_empty() && in_time && !over.load(Ordering::Relaxed)).then_some(portion)
    };
    let turns = |scenario: &Scenario| {
        let scenario = *scenario;
        (0..turns_of(&scenario, plan)).map(move |nth| Turn { scenario, nth })
    };
    let mut round: Vec<Turn> = plan.scenarios.iter().flat_map(turns).collect();
    // Spread evenly, so that a part of a round has about the shares of a whole one.
    round.sort_by_key(|turn| (2 * turn.nth + 1) * SPREAD / turn.scenario.family.turns().max(1));
    let workers: Vec<()> = vec![(); plan.threads];
    in_parallel(&workers, plan.threads, |()| {
        while let Some(portion) = take() {
            for index in portion {
                let turns = round.len() as u64;
                let Turn { scenario, nth } = &round[usize::try_from(index % turns).unwrap_or(0)];
                let Scenario { name, run, .. } = *scenario;
                let before = index / turns * turns_of(scenario, plan);
                let seed = plan.first_seed.wrapping_add(before + nth);
                let outcome = catch_unwind(|| {
                    verify::as_mutant(plan.broken, || steps_of(|| run(mutant, seed)))
                });
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                *tally.schedules.entry(name).or_default() += 1;
                match outcome {
                    Ok(steps) => tally.steps += steps,
                    Err(panic) => {
                        let message = message_of(panic.as_ref());
                        tally.failures.push(Failure { scenario: name, seed, message });
                        if tally.failures.len() >= FAILURES_MAX {
                            over.store(true, Ordering::Relaxed);
                        }
                    }
                }
            }
        }
    });
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.failures.sort();
    tally.elapsed_ms = clock.now_ms();
    tally
}
