//! Every flush and every fence of locks, membership and the chunk table is needed: without it some
//! scenario fails. What may be removed unnoticed is listed with its reason.

use std::path::Path;

use rackline_tests::lock_scenarios::{
    chunks_through_crashes, count_through_takeovers, count_together, standby_stands_by,
};
use rackline_tests::mutation;

#[test]
fn every_flush_is_missed_when_it_is_removed() {
    // Mutants fail by the hundred, each with a message that is no news.
    std::panic::set_hook(Box::new(|_| ()));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().unwrap();
    let outcome = mutation::run(
        root,
        &[count_together, count_through_takeovers, chunks_through_crashes, standby_stands_by],
        12,
    );
    let _ = std::panic::take_hook();
    let known = mutation::known_survivors(&here.join("survivors_locks.txt"));
    let unknown: Vec<String> = outcome
        .survivors
        .iter()
        .filter(|survivor| !known.contains(survivor))
        .map(ToString::to_string)
        .collect();
    println!(
        "{} removed, {} caught, {} known survivors",
        outcome.removed,
        outcome.caught,
        known.len()
    );
    assert!(unknown.is_empty(), "removed without anybody noticing:\n{}", unknown.join("\n"));
}
