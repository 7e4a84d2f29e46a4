//! `prove mutate`: which flushes and fences does no scenario miss when they are removed?

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use cxl_shm::fabric::simulated::Site;
use rackline_tests::mutation::{self, Outcome, Plan, SiteText};
use rackline_tests::scenario::ALL;
use rackline_tests::survivors::{Listed, Verdict};

/// Removes each flush and each fence in turn; fails when nobody misses one that is not listed with
/// a reason.
#[derive(Args)]
pub(crate) struct Options {
    /// Seeds under which each scenario runs with each removal.
    #[arg(long, default_value_t = 2)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Further seeds for removals that nobody has noticed and that are not listed.
    #[arg(long, default_value_t = 24)]
    further_seeds: u64,
    /// Only sites whose file contains this, and only scenarios that reach them. The list of
    /// survivors is then not checked for entries that are out of date.
    #[arg(long)]
    filter: Option<String>,
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
    ("connector/src/", "cargo test -p connector simulated"),
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
    // Mutants fail by the hundred, each with a message that is no news.
    std::panic::set_hook(Box::new(|_| ()));
    let wanted = |site: &Site| {
        let ours = site.file.starts_with("cxl-shm/src/") || site.file.starts_with("lock-manager/");
        // What scenarios flush themselves is no part of any protocol.
        let protocol = !site.file.starts_with("cxl-shm/src/proof/");
        ours && protocol && options.filter.as_ref().is_none_or(|filter| site.file.contains(filter))
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

fn report(options: &Options, root: &Path, listed: &Listed, outcome: &Outcome) -> ExitCode {
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
    let outdated = if options.filter.is_none() { outdated } else { Vec::new() };
    let caught = caught.count();
    let passed = unlisted.is_empty() && outdated.is_empty();
    if options.json {
        let object = serde_json::json!({
            "removed": removed.len(),
            "caught": caught,
            "survivors": survivors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "unlisted": unlisted.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "outdated": outdated.iter().map(ToString::to_string).collect::<Vec<_>>(),
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
