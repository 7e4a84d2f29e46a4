//! The mutation suite: removes each flush and each fence of the protocols in turn and demands that
//! some scenario fails without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cxl_shm::clock::SystemClock;
use cxl_shm::verify;
use cxl_shm::verify::explored::{Exploration, Limits, Memory, Verdict};
use cxl_shm::verify::simulated::Site;

use crate::parallel::in_parallel;
use crate::rack::{Mutant, Watched, message_of, steps_of, watch};
use crate::scenario::Scenario;

/// A flush or fence as the list of survivors names it: by its text, which stays the same when code
/// moves.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteText {
    /// Source file, from the root of the workspace.
    pub file: String,
    /// What is removed.
    pub op: String,
    /// The line of the source, without its indentation; when the file has it more than once, with
    /// the number of its occurrence.
    pub source: String,
}

impl SiteText {
    /// Of `site`, whose file is below `root`.
    #[must_use]
    pub fn of(root: &Path, site: Site) -> Self {
        Self::at(root, site.file, site.line, &format!("{:?}", site.op))
    }

    /// Of `op` in line `line` of `file`, which is below `root`.
    #[must_use]
    pub fn at(root: &Path, file: &str, line: u32, op: &str) -> Self {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let index = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
        let line = text.lines().nth(index).unwrap_or_default().trim();
        let same = |other: &&str| other.trim() == line;
        let occurrence = text.lines().take(index + 1).filter(same).count();
        let source = match text.lines().filter(same).count() {
            0 | 1 => line.to_owned(),
            _ => format!("{line} [{occurrence}]"),
        };
        Self { file: file.to_owned(), op: op.to_owned(), source }
    }
}

impl fmt::Display for SiteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | {}", self.file, self.op, self.source)
    }
}

/// What to remove, and how hard to look for somebody who misses it.
pub struct Plan<'a> {
    /// Each of them.
    pub scenarios: &'a [Scenario],
    /// Small configurations that are explored, by name: slow, and no chance in them. Only what none
    /// of the scenarios misses is left out of these.
    pub explored: &'a [&'a str],
    /// The first seed.
    pub first_seed: u64,
    /// Seeds under which each scenario runs with each removal.
    pub seeds: u64,
    /// Further seeds for what nobody has missed so far.
    pub further_seeds: u64,
    /// Threads that work on it.
    pub threads: usize,
    /// The sites that are removed.
    pub choose: &'a (dyn Fn(&Site) -> bool + Sync),
    /// Sites of which it is said, with a reason, that nobody misses them: no further seeds for
    /// them.
    pub is_listed: &'a (dyn Fn(&Site) -> bool + Sync),
}

impl fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("scenarios", &self.scenarios.len())
            .field("explored", &self.explored)
            .field("first_seed", &self.first_seed)
            .finish_non_exhaustive()
    }
}

/// Who noticed a removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A scenario under a seed.
    Run {
        /// The scenario.
        scenario: &'static str,
        /// The seed.
        seed: u64,
    },
    /// An exploration.
    Exploration {
        /// The configuration.
        scenario: &'static str,
        /// The memory.
        memory: Memory,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { scenario, seed } => write!(f, "{scenario}, seed {seed}"),
            Self::Exploration { scenario, memory } => {
                write!(f, "the exploration of {scenario}, {memory}")
            }
        }
    }
}

/// What came of one removal.
#[derive(Clone, Debug)]
pub struct Removal {
    /// What was removed.
    pub site: Site,
    /// Who noticed; `None` when nobody did.
    pub noticed_by: Option<Notice>,
}

/// What came of a suite.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Where the sound program flushes and fences, chosen or not.
    pub reached: BTreeSet<Site>,
    /// Every removal, in the order of the sites.
    pub removals: Vec<Removal>,
    /// Runs of a scenario, sound ones included.
    pub runs: u64,
    /// Explorations, sound ones included.
    pub explorations: u64,
}

/// One run that reaches a site.
#[derive(Clone, Copy, Debug)]
struct Reach {
    scenario: usize,
    seed: u64,
    steps_max: u64,
    /// How long the sound program took.
    cost_us: u64,
}

/// One exploration that reaches a site.
#[derive(Clone, Copy, Debug)]
struct Explored {
    scenario: verify::scenarios::Scenario,
    memory: Memory,
    states: usize,
}

/// A mutant that continues for this many times as long as the sound program has failed: what it
/// misses mostly is that something never becomes visible.
const STEPS_FACTOR: u64 = 4;
/// Operations that every mutant is given.
const STEPS_MIN: u64 = 20_000;
/// States of an exploration of the sound program. Mutants are refuted, or have not many more.
const LIMITS: Limits = Limits { states: 2_000_000, ms: u64::MAX };

/// A scenario that fails although nothing is removed: then there is nothing to learn from it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SoundFailure {
    /// On a simulated rack.
    #[error(
        "{scenario} fails with seed {seed} although nothing is removed; see why with `prove \
         simulate --scenario {scenario} --seed {seed} --schedules 1`: {message}"
    )]
    Run {
        /// The scenario.
        scenario: &'static str,
        /// The seed.
        seed: u64,
        /// What it said.
        message: String,
    },
    /// Explored.
    #[error(
        "{scenario} on {memory} does not hold although nothing is removed; see why with `prove \
         explore --scenario {scenario}`"
    )]
    Exploration {
        /// The configuration, or what was asked for and is none.
        scenario: String,
        /// The memory.
        memory: Memory,
    },
}

/// Removes each site that is chosen and anybody reaches, one at a time. Of the runs that reach it,
/// the cheap ones come first. `told` hears of every removal as it is done.
///
/// # Errors
/// [`SoundFailure`].
pub fn run(plan: &Plan<'_>, told: impl Fn(&Removal) + Sync) -> Result<Outcome, SoundFailure> {
    let sites = reached_by_runs(plan)?;
    let explored = reached_by_explorations(plan)?;
    let counts = Counts::default();
    let reached: BTreeSet<Site> = sites.keys().chain(explored.keys()).copied().collect();
    let chosen: Vec<Site> = reached.iter().copied().filter(plan.choose).collect();
    let removals = in_parallel(&chosen, plan.threads, |site| {
        let reaches = sites.get(site).map_or(&[][..], Vec::as_slice);
        let explorations = explored.get(site).map_or(&[][..], Vec::as_slice);
        let first = noticed_by_run(plan, *site, reaches, &counts)
            .or_else(|| noticed_by_exploration(*site, explorations, &counts));
        let noticed_by = match first {
            None if !(plan.is_listed)(site) => noticed_later(plan, *site, reaches, &counts)?,
            noticed => noticed,
        };
        let removal = Removal { site: *site, noticed_by };
        told(&removal);
        Ok(removal)
    });
    let sound = plan.seeds * plan.scenarios.len() as u64;
    let (runs, explorations) = counts.add(sound, (plan.explored.len() * Memory::ALL.len()) as u64);
    let removals = removals.into_iter().collect::<Result<_, _>>()?;
    Ok(Outcome { reached, removals, runs, explorations })
}

/// Runs and explorations so far.
#[derive(Default)]
struct Counts(Mutex<(u64, u64)>);

impl Counts {
    fn add(&self, runs: u64, explorations: u64) -> (u64, u64) {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sum = (sum.0 + runs, sum.1 + explorations);
        *sum
    }
}

/// One run of the sound program.
fn sound(scenario: &Scenario, seed: u64) -> Result<Watched, SoundFailure> {
    let Scenario { name, run, .. } = *scenario;
    catch_unwind(|| watch(|| run(Mutant::NONE, seed))).map_err(|panic| SoundFailure::Run {
        scenario: name,
        seed,
        message: message_of(panic.as_ref()),
    })
}

fn reached_by_runs(plan: &Plan<'_>) -> Result<BTreeMap<Site, Vec<Reach>>, SoundFailure> {
    let seeds = plan.first_seed..plan.first_seed + plan.seeds;
    let runs: Vec<(usize, u64)> =
        seeds.flat_map(|seed| (0..plan.scenarios.len()).map(move |index| (index, seed))).collect();
    let clock = SystemClock::start();
    let reached = in_parallel(&runs, plan.threads, |(index, seed)| {
        let start_us = clock.now_us();
        let Watched { sites, steps, .. } = sound(&plan.scenarios[*index], *seed)?;
        let cost_us = clock.now_us() - start_us;
        let steps_max = steps * STEPS_FACTOR + STEPS_MIN;
        Ok((sites, Reach { scenario: *index, seed: *seed, steps_max, cost_us }))
    });
    let mut sites: BTreeMap<Site, Vec<Reach>> = BTreeMap::new();
    for reached in reached {
        let (reaches, reach) = reached?;
        for site in reaches {
            sites.entry(site).or_default().push(reach);
        }
    }
    for reaches in sites.values_mut() {
        reaches.sort_by_key(|reach| reach.cost_us);
    }
    Ok(sites)
}

fn reached_by_explorations(plan: &Plan<'_>) -> Result<BTreeMap<Site, Vec<Explored>>, SoundFailure> {
    let wanted: Vec<(&str, Memory)> = plan
        .explored
        .iter()
        .flat_map(|name| Memory::ALL.into_iter().map(move |memory| (*name, memory)))
        .collect();
    let all = verify::scenarios::scenarios();
    let explorations = in_parallel(&wanted, plan.threads, |(name, memory)| {
        let memory = *memory;
        let unsound = || SoundFailure::Exploration { scenario: (*name).to_owned(), memory };
        let scenario = *all.iter().find(|scenario| scenario.name == *name).ok_or_else(unsound)?;
        let Exploration { sites, verdict, states, .. } =
            scenario.explore(memory, None, None, LIMITS);
        if verdict != Verdict::Holds {
            return Err(unsound());
        }
        Ok((sites, Explored { scenario, memory, states }))
    });
    let mut sites: BTreeMap<Site, Vec<Explored>> = BTreeMap::new();
    for reached in explorations {
        let (reaches, explored) = reached?;
        for site in reaches {
            sites.entry(site).or_default().push(explored);
        }
    }
    for explorations in sites.values_mut() {
        explorations.sort_by_key(|explored| explored.states);
    }
    Ok(sites)
}

/// Whether the program without `site` fails in that run.
fn fails_without(plan: &Plan<'_>, site: Site, reach: &Reach, counts: &Counts) -> bool {
    counts.add(1, 0);
    let mutant = Mutant { removed: Some(site), steps_max: reach.steps_max, ..Mutant::NONE };
    let run = plan.scenarios[reach.scenario].run;
    catch_unwind(|| steps_of(|| run(mutant, reach.seed))).is_err()
}

fn noticed_by_run(
    plan: &Plan<'_>,
    site: Site,
    reaches: &[Reach],
    counts: &Counts,
) -> Option<Notice> {
    let noticed = reaches.iter().find(|reach| fails_without(plan, site, reach, counts))?;
    Some(Notice::Run { scenario: plan.scenarios[noticed.scenario].name, seed: noticed.seed })
}

fn noticed_by_exploration(
    site: Site,
    explorations: &[Explored],
    counts: &Counts,
) -> Option<Notice> {
    let noticed = explorations.iter().find(|explored| {
        counts.add(0, 1);
        let without = explored.scenario.explore(explored.memory, Some(site), None, LIMITS);
        matches!(without.verdict, Verdict::Refuted(_))
    })?;
    Some(Notice::Exploration { scenario: noticed.scenario.name, memory: noticed.memory })
}

/// Tries seeds that nobody has tried yet: of what only some schedules miss, chance decides whether
/// the first seeds have one.
fn noticed_later(
    plan: &Plan<'_>,
    site: Site,
    reaches: &[Reach],
    counts: &Counts,
) -> Result<Option<Notice>, SoundFailure> {
    let mut scenarios: Vec<usize> = Vec::new();
    for reach in reaches {
        if !scenarios.contains(&reach.scenario) {
            scenarios.push(reach.scenario);
        }
    }
    let first = plan.first_seed + plan.seeds;
    for seed in first..first + plan.further_seeds {
        for scenario in &scenarios {
            counts.add(1, 0);
            let Watched { steps, .. } = sound(&plan.scenarios[*scenario], seed)?;
            let steps_max = steps * STEPS_FACTOR + STEPS_MIN;
            let reach = Reach { scenario: *scenario, seed, steps_max, cost_us: 0 };
            if fails_without(plan, site, &reach, counts) {
                let scenario = plan.scenarios[*scenario].name;
                return Ok(Some(Notice::Run { scenario, seed }));
            }
        }
    }
    Ok(None)
}
