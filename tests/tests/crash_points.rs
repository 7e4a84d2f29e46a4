//! Real processes die at every named crash point, and what they leave is recovered from.

use std::path::Path;
use std::sync::Arc;

use cxl_shm::crash::CrashPoint;
use rackline_tests::torture::coverage;

const NOBODY_DECLARED: &str = "simulated hosts: here each of the dead comes back by itself";
const NO_OBJECTS: &str = "simulated hosts: these scenes use no objects";
const NOT_QUALIFIED: &str = "tests of the layout: nothing is qualified here";

/// Points that the processes here do not come to, and what shows instead that a death there is
/// survived. One that they do come to leaves the list.
const ELSEWHERE: &[(CrashPoint, &str)] = &[
    (CrashPoint::DeathPromised, NOBODY_DECLARED),
    (CrashPoint::DeathAccepted, NOBODY_DECLARED),
    (CrashPoint::DeathDecided, NOBODY_DECLARED),
    (CrashPoint::RecoveryFenced, NOBODY_DECLARED),
    (CrashPoint::RecoveryRedone, NOBODY_DECLARED),
    (CrashPoint::RecoveryFreed, NOBODY_DECLARED),
    (CrashPoint::RecoveryAdopted, NOBODY_DECLARED),
    (CrashPoint::RecoveryBuried, NOBODY_DECLARED),
    (CrashPoint::RecoveryDone, NOBODY_DECLARED),
    (CrashPoint::SelfFenced, NOBODY_DECLARED),
    (CrashPoint::ChunkAsked, "simulated hosts: the region here never runs dry"),
    (CrashPoint::HeapPageTaken, NO_OBJECTS),
    (CrashPoint::HeapPageReleased, NO_OBJECTS),
    (CrashPoint::HeapFreePassed, NO_OBJECTS),
    (CrashPoint::HeapMarked, NO_OBJECTS),
    (CrashPoint::RootCollected, NO_OBJECTS),
    (CrashPoint::SuperblockSlotWritten, NOT_QUALIFIED),
    (CrashPoint::SuperblockReplaced, NOT_QUALIFIED),
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
