//! The mutation suite: removes each flush and each fence of the protocols in turn and demands that
//! some scenario fails without it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::catch_unwind;
use std::path::Path;

use cxl_shm::fabric::simulated::{SimulatedRack, Site};

use crate::rack::{Mutant, watch};

/// A scenario: panics when the program does not do what it should under `seed`.
pub type Scenario = fn(Mutant, u64);

/// A removal that no scenario noticed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Survivor {
    /// Source file, from the root of the workspace.
    pub file: String,
    /// What was removed.
    pub op: String,
    /// The line of the source, without its indentation: it stays the same when code moves.
    pub source: String,
}

impl fmt::Display for Survivor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | {}", self.file, self.op, self.source)
    }
}

/// What came of a suite.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Places and operations that were removed.
    pub removed: usize,
    /// Those that were noticed.
    pub caught: usize,
    /// Those that were not.
    pub survivors: Vec<Survivor>,
}

/// A mutant that goes on for this many times as long as the sound program has failed: what it
/// misses mostly is that something never becomes visible.
const PATIENCE: u64 = 4;
/// Operations that every mutant is given.
const STEPS_MIN: u64 = 100_000;

/// Removes every site that any scenario reaches under any of `seeds`, one at a time.
pub fn run(root: &Path, scenarios: &[Scenario], seeds: u64) -> Outcome {
    let mut sites: BTreeMap<Site, Vec<(Scenario, u64, u64)>> = BTreeMap::new();
    for seed in 0..seeds {
        for scenario in scenarios {
            let watched = watch(|| scenario(Mutant::NONE, seed));
            let steps_max = watched.steps * PATIENCE + STEPS_MIN;
            for site in watched.racks.iter().flat_map(SimulatedRack::sites) {
                sites.entry(site).or_default().push((*scenario, seed, steps_max));
            }
        }
    }
    let mut outcome = Outcome { removed: sites.len(), ..Outcome::default() };
    for (site, runs) in sites {
        let caught = runs.iter().any(|(scenario, seed, steps_max)| {
            let mutant = Mutant { removed: Some(site), steps_max: *steps_max };
            catch_unwind(|| scenario(mutant, *seed)).is_err()
        });
        if caught {
            outcome.caught += 1;
        } else {
            outcome.survivors.push(survivor(root, site));
        }
    }
    outcome
}

fn survivor(root: &Path, site: Site) -> Survivor {
    let text = std::fs::read_to_string(root.join(site.file)).unwrap_or_default();
    let line = usize::try_from(site.line).unwrap_or(usize::MAX);
    let source = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim().to_owned();
    Survivor { file: site.file.to_owned(), op: format!("{:?}", site.op), source }
}
