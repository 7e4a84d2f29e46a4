//! The mutation suite: removes each flush and each fence of the protocols in turn and demands that
//! some scenario fails without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::catch_unwind;
use std::path::Path;

use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::simulated::{SimulatedRack, Site};

use crate::parallel::in_parallel;
use crate::rack::{Mutant, message_of, watch};
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
        let text = std::fs::read_to_string(root.join(site.file)).unwrap_or_default();
        let index = usize::try_from(site.line).unwrap_or(usize::MAX).saturating_sub(1);
        let line = text.lines().nth(index).unwrap_or_default().trim();
        let same = |other: &&str| other.trim() == line;
        let occurrence = text.lines().take(index + 1).filter(same).count();
        let source = match text.lines().filter(same).count() {
            0 | 1 => line.to_owned(),
            _ => format!("{line} [{occurrence}]"),
        };
        Self { file: site.file.to_owned(), op: format!("{:?}", site.op), source }
    }
}

impl fmt::Display for SiteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | {}", self.file, self.op, self.source)
    }
}

/// What came of one removal.
#[derive(Clone, Debug)]
pub struct Removal {
    /// What was removed.
    pub site: Site,
    /// The scenario and the seed that noticed; `None` when none did.
    pub caught_by: Option<(&'static str, u64)>,
}

/// What came of a suite.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every removal, in the order of the sites.
    pub removals: Vec<Removal>,
    /// Sites that were reached and left alone: those that `choose` did not want.
    pub left_alone: Vec<Site>,
    /// Runs of a scenario, sound ones included.
    pub runs: u64,
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

/// A mutant that goes on for this many times as long as the sound program has failed: what it
/// misses mostly is that something never becomes visible.
const PATIENCE: u64 = 4;
/// Operations that every mutant is given.
const STEPS_MIN: u64 = 20_000;

/// A scenario that fails although nothing is removed: then there is nothing to learn from it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{scenario} fails with seed {seed} although nothing is removed; see why with `prove simulate \
     --scenario {scenario} --seed {seed} --schedules 1`: {message}"
)]
pub struct SoundFailure {
    /// The scenario.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// What it said.
    pub message: String,
}

/// Removes each site that `choose` wants and any scenario reaches under any of `seeds`, one at a
/// time, on `threads` threads. Of the runs that reach it, the cheap ones come first. `told` hears
/// of every removal as it is done.
///
/// # Errors
/// [`SoundFailure`].
pub fn run(
    scenarios: &[Scenario],
    seeds: u64,
    threads: usize,
    choose: impl Fn(&Site) -> bool + Sync,
    told: impl Fn(&Removal) + Sync,
) -> Result<Outcome, SoundFailure> {
    let runs: Vec<(usize, u64)> =
        (0..seeds).flat_map(|seed| (0..scenarios.len()).map(move |index| (index, seed))).collect();
    let clock = SystemClock::start();
    let reached = in_parallel(&runs, threads, |(index, seed)| {
        let Scenario { name, run, .. } = scenarios[*index];
        let start_us = clock.now_us();
        let watched = catch_unwind(|| watch(|| run(Mutant::NONE, *seed))).map_err(|panic| {
            SoundFailure { scenario: name, seed: *seed, message: message_of(panic.as_ref()) }
        })?;
        let cost_us = clock.now_us() - start_us;
        let steps_max = watched.steps * PATIENCE + STEPS_MIN;
        let sites: BTreeSet<Site> = watched.racks.iter().flat_map(SimulatedRack::sites).collect();
        Ok((sites, Reach { scenario: *index, seed: *seed, steps_max, cost_us }))
    });
    let mut sites: BTreeMap<Site, Vec<Reach>> = BTreeMap::new();
    for reached in reached {
        let (reaches, reach) = reached?;
        for site in reaches {
            sites.entry(site).or_default().push(reach);
        }
    }
    let (chosen, left): (Vec<_>, Vec<_>) = sites.into_iter().partition(|(site, _)| choose(site));
    let mutated = in_parallel(&chosen, threads, |(site, reaches)| {
        let mut reaches = reaches.clone();
        reaches.sort_by_key(|reach| reach.cost_us);
        let mut runs = 0;
        let caught = reaches.iter().find(|reach| {
            runs += 1;
            let removed = Some(*site);
            let mutant = Mutant { removed, steps_max: reach.steps_max, ..Mutant::NONE };
            catch_unwind(|| (scenarios[reach.scenario].run)(mutant, reach.seed)).is_err()
        });
        let caught_by = caught.map(|reach| (scenarios[reach.scenario].name, reach.seed));
        let removal = Removal { site: *site, caught_by };
        told(&removal);
        (removal, runs)
    });
    Ok(Outcome {
        runs: runs.len() as u64 + mutated.iter().map(|(_, runs)| runs).sum::<u64>(),
        removals: mutated.into_iter().map(|(removal, _)| removal).collect(),
        left_alone: left.into_iter().map(|(site, _)| site).collect(),
    })
}
