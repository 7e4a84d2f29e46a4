//! Real processes die at every named crash point, and what they leave is recovered from.

use std::path::Path;
use std::sync::Arc;

use rackline_tests::torture::coverage;

#[test]
fn a_death_at_every_crash_point_is_recovered_from() {
    let covered = coverage::run(Path::new(env!("CARGO_BIN_EXE_prove")), &Arc::default())
        .unwrap_or_else(|error| panic!("{error:#}"));
    let (missing, stale) = (covered.missing(), covered.stale());
    assert!(missing.is_empty(), "no process comes to {missing:?}: give them a scene");
    assert!(stale.is_empty(), "processes do come to {stale:?}: take them off the list");
}
