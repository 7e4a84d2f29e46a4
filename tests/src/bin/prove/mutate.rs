//! `prove mutate`: which flushes and fences does no scenario miss when they are removed?

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use cxl_shm::verify::simulated::Site;
use rackline_tests::flush_sites::{self, Place};
use rackline_tests::mutation::{self, Outcome, Plan, SiteText};
use rackline_tests::scenario::ALL;
use rackline_tests::survivors::{Listed, Verdict};

/// Removes each flush and each fence in turn, and runs the scenarios. Fails when a removal goes
/// unnoticed, or a place is reached by no scenario, unless a list gives the reason.
#[derive(Args)]
pub(crate) struct Options {
    /// Seeds under which each scenario runs with each removal.
    #[arg(long, default_value_t = 2)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Further seeds for removals that went unnoticed and are not listed.
    #[arg(long, default_value_t = 24)]
    further_seeds: u64,
    /// Only places whose file name contains this, and only scenarios that reach them. The list of
    /// survivors is then not checked for entries that are out of date.
    #[arg(long)]
    filter: Option<String>,
    /// Removes nothing: tells only which places of the sources no scenario reaches.
    #[arg(long)]
    places: bool,
    /// Threads, one a core when not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
}

/// Small configurations that are explored with what no run of a scenario misses.
const EXPLORED: [&str; 2] = ["consensus-2", "dead-holder"];

/// Crates whose own tests remove each of their flushes in turn, on racks of their own.
const PROVED_ELSEWHERE: [(&str, &str); 2] = [
    ("kv-cache/src/", "cargo test -p kv-cache every_flush_and_fence_is_needed"),
    ("connector/src/", "cargo test -p rackline simulated"),
];

pub(crate) fn run(options: &Options) -> ExitCode {
    let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() else {
        eprintln!("prove: the sources of the workspace are not where they were built");
        return ExitCode::FAILURE;
    };
    let listed = match Listed::read(&root.join("tests/mutation-survivors.txt")) {
        Ok(listed) => listed,
        Err(error) => {
            eprintln!("prove: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Mutants fail by the hundred, each with a message that says nothing new.
    std::panic::set_hook(Box::new(|_| ()));
    let wanted = |site: &Site| {
        // Just those whose places are counted: what is flushed there is removed, too.
        !options.places
            && flush_sites::is_scanned(site.file)
            && options.filter.as_ref().is_none_or(|filter| site.file.contains(filter))
    };
    let scenarios: Vec<_> =
        ALL.iter().copied().filter(|scenario| scenario.family.is_mutated()).collect();
    let plan = Plan {
        scenarios: &scenarios,
        explored: &EXPLORED,
        first_seed: options.seed,
        seeds: options.seeds.max(1),
        further_seeds: options.further_seeds,
        threads: options.threads.unwrap_or_else(crate::cores),
        choose: &wanted,
        is_listed: &|site| listed.contains(&SiteText::of(root, *site)),
    };
    let outcome = mutation::run(&plan, |removal| {
        if !options.json {
            let text = SiteText::of(root, removal.site);
            let line = removal.site.line;
            match removal.noticed_by {
                Some(notice) => println!("{text} (line {line}): missed by {notice}"),
                None => println!("{text} (line {line}): missed by nobody"),
            }
        }
    });
    match outcome {
        Ok(outcome) => report(options, root, &listed, &outcome),
        Err(failure) => {
            eprintln!("prove: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// What the sources have, and what of it the scenarios reach.
struct Coverage {
    places: usize,
    reached: usize,
    /// Places that nobody reaches, and that are not listed with a reason.
    unlisted: Vec<SiteText>,
    /// Entries of places that are reached by now, or gone.
    outdated: Vec<SiteText>,
}

impl Coverage {
    fn of(
        options: &Options,
        root: &Path,
        outcome: &Outcome,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let listed = Listed::read(&root.join("tests/mutation-unreached.txt"))?;
        let mut places = flush_sites::scan(root)?;
        let sites: BTreeSet<(&str, u32)> =
            outcome.reached.iter().map(|site| (site.file, site.line)).collect();
        places.retain(|place| {
            options.filter.as_ref().is_none_or(|filter| place.file.contains(filter))
        });
        let is_reached = |place: &&Place| sites.contains(&(place.file.as_str(), place.line));
        let text = |place: &Place| place.text(root);
        let all: Vec<SiteText> = places.iter().map(text).collect();
        let unreached: Vec<SiteText> =
            places.iter().filter(|place| !is_reached(place)).map(text).collect();
        let Verdict { unlisted, outdated } = listed.judge(&all, &unreached);
        let outdated = if options.filter.is_none() { outdated } else { Vec::new() };
        let reached = places.iter().filter(is_reached).count();
        Ok(Self { places: places.len(), reached, unlisted, outdated })
    }
}

fn report(options: &Options, root: &Path, listed: &Listed, outcome: &Outcome) -> ExitCode {
    let coverage = match Coverage::of(options, root, outcome) {
        Ok(coverage) => coverage,
        Err(error) => {
            eprintln!("prove: {error}");
            return ExitCode::FAILURE;
        }
    };
    let text = |site: Site| SiteText::of(root, site);
    let caught = outcome.removals.iter().filter(|removal| removal.noticed_by.is_some());
    let survivors: Vec<_> = outcome
        .removals
        .iter()
        .filter(|removal| removal.noticed_by.is_none())
        .map(|removal| text(removal.site))
        .collect();
    let removed: Vec<_> = outcome.removals.iter().map(|removal| text(removal.site)).collect();
    let Verdict { unlisted, outdated } = listed.judge(&removed, &survivors);
    let all = options.filter.is_none() && !options.places;
    let outdated = if all { outdated } else { Vec::new() };
    let caught = caught.count();
    let covered = coverage.unlisted.is_empty() && coverage.outdated.is_empty();
    let passed = unlisted.is_empty() && outdated.is_empty() && covered;
    if options.json {
        let object = serde_json::json!({
            "removed": removed.len(),
            "caught": caught,
            "survivors": texts(&survivors),
            "unlisted": texts(&unlisted),
            "outdated": texts(&outdated),
            "places": coverage.places,
            "places_reached": coverage.reached,
            "unreached_unlisted": texts(&coverage.unlisted),
            "unreached_outdated": texts(&coverage.outdated),
            "runs": outcome.runs,
            "explorations": outcome.explorations,
            "passed": passed,
        });
        println!("{object}");
    } else {
        for (prefix, command) in PROVED_ELSEWHERE {
            println!("{prefix}: every flush and fence is removed in turn by `{command}`");
        }
        for survivor in &unlisted {
            println!("not listed, and missed by nobody: {survivor}");
        }
        for entry in &outdated {
            println!("listed as a survivor, and missed or gone: {entry}");
        }
        for place in &coverage.unlisted {
            println!("reached by no scenario, and not listed: {place}");
        }
        for entry in &coverage.outdated {
            println!("listed as reached by no scenario, and reached or gone: {entry}");
        }
        println!(
            "{} places in the sources flush, refresh or fence; the scenarios reach {}, {} are listed \
             with the reason why none does",
            coverage.places,
            coverage.reached,
            coverage.places - coverage.reached - coverage.unlisted.len(),
        );
        println!(
            "{} flushes and fences removed in turn, {caught} removals noticed, {} not ({} of them \
             listed with a reason), {} runs, {} explorations",
            removed.len(),
            survivors.len(),
            survivors.len() - unlisted.len(),
            outcome.runs,
            outcome.explorations,
        );
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn texts(sites: &[SiteText]) -> Vec<String> {
    sites.iter().map(ToString::to_string).collect()
}
