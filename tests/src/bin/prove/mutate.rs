//! `prove mutate`: which flushes and fences of locks, membership and the chunk table does no
//! scenario miss when they are removed?

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use rackline_tests::lock_scenarios::{
    chunks_through_crashes, count_through_takeovers, count_together, standby_stands_by,
};
use rackline_tests::mutation;

/// Removes each flush and each fence in turn and lists those that no scenario misses. Takes
/// minutes.
#[derive(Args)]
pub(crate) struct Options {
    /// Seeds under which each scenario runs with each removal.
    #[arg(default_value_t = 6)]
    seeds: u64,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() else {
        eprintln!("prove: the sources of the workspace are not where they were built");
        return ExitCode::FAILURE;
    };
    // Mutants fail by the hundred, each with a message that is no news.
    std::panic::set_hook(Box::new(|_| ()));
    let scenarios =
        [count_together, count_through_takeovers, chunks_through_crashes, standby_stands_by];
    let outcome = mutation::run(root, &scenarios, options.seeds);
    for survivor in &outcome.survivors {
        println!("{survivor}");
    }
    println!(
        "{} flushes and fences removed in turn, {} removals noticed, {} not",
        outcome.removed,
        outcome.caught,
        outcome.survivors.len()
    );
    ExitCode::SUCCESS
}
