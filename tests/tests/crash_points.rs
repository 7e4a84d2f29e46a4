//! Real processes die at every named crash point, and what they leave is recovered from.

use std::path::Path;
use std::sync::Arc;

use cxl_shm::crash::CrashPoint;
use rackline_tests::torture::coverage;

const NOTHING_HELD: &str = "simulated hosts, simulated_pressure.rs: workers here hold no blocks";
const NEVER_FULL: &str = "simulated hosts, simulated_pressure.rs: the pool here is never full";

/// Points to which no real process can come, and what shows instead that a death there is survived.
/// One that processes do come to leaves the list.
const ELSEWHERE: &[(CrashPoint, &str)] = &[
    (CrashPoint::HoldCounted, NOTHING_HELD),
    (CrashPoint::HoldStamped, NOTHING_HELD),
    (CrashPoint::EvictAnnounced, NEVER_FULL),
    (CrashPoint::EvictDecided, NEVER_FULL),
    (CrashPoint::ChunkVacated, NEVER_FULL),
];

#[test]
fn a_death_at_every_crash_point_is_recovered_from() {
    let covered = coverage::run(Path::new(env!("CARGO_BIN_EXE_prove")), &Arc::default())
        .unwrap_or_else(|error| panic!("{error:#}"));
    let listed: Vec<_> = ELSEWHERE.iter().map(|(point, _)| *point).collect();
    let missing: Vec<_> =
        covered.unreached.iter().filter(|point| !listed.contains(point)).collect();
    assert!(missing.is_empty(), "no process comes to {missing:?}: give them a scene");
    let stale: Vec<_> = listed.iter().filter(|point| !covered.unreached.contains(point)).collect();
    assert!(stale.is_empty(), "processes do come to {stale:?}: take them off the list");
}
