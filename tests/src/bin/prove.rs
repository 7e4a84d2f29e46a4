//! `prove mutate`: which flushes and fences of locks, membership and the chunk table does no
//! scenario miss when they are removed?
//!
//! Takes minutes, so it is run by hand: `cargo run --release -p rackline-tests --bin prove -- mutate`.

use std::path::Path;
use std::process::ExitCode;

use rackline_tests::lock_scenarios::{
    chunks_through_crashes, count_through_takeovers, count_together, standby_stands_by,
};
use rackline_tests::mutation;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seeds = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["mutate"] => Some(6),
        ["mutate", seeds] => seeds.parse().ok(),
        _ => None,
    };
    let (Some(seeds), Some(root)) = (seeds, Path::new(env!("CARGO_MANIFEST_DIR")).parent()) else {
        eprintln!("usage: prove mutate [SEEDS]");
        return ExitCode::FAILURE;
    };
    // Mutants fail by the hundred, each with a message that is no news.
    std::panic::set_hook(Box::new(|_| ()));
    let scenarios =
        [count_together, count_through_takeovers, chunks_through_crashes, standby_stands_by];
    let outcome = mutation::run(root, &scenarios, seeds);
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
