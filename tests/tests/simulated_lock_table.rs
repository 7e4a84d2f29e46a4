//! The table of locks in use on simulated racks, whose processes die.
//!
//! A failing run prints its seed; `RACKLINE_SEED=<seed>` runs that seed alone.

use cxl_shm::layout::{FIRST_FREE_LOCK, Geometry, LockProtocol};
use cxl_shm::units::LockId;
use cxl_shm::verify::simulated::Settings;
use cxl_shm_objects::LockTable;
use cxl_shm_objects::{AllocateLockError, FreeLockError};
use rackline_tests::lock_table_scenarios::locks_given_out_through_crashes;
use rackline_tests::rack::{Cluster, Mutant, for_seeds};

#[test]
fn a_lock_is_given_out_once_whichever_process_dies() {
    for_seeds(0..60, |seed| locks_given_out_through_crashes(Mutant::NONE, seed));
}

#[test]
fn what_is_not_given_out_cannot_be_taken_back() {
    let geometry = Geometry {
        region_bytes: 2 << 20,
        nodes: 2,
        locks: 10,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    };
    let settings = Settings::sticky(2, geometry.region_bytes);
    // Hosts that agree among themselves need no lock manager to run beside them.
    let cluster = Cluster::format(settings, geometry, LockProtocol::Bakery, [0; 6], Mutant::NONE);
    let [one, other] = [0, 1].map(|host| cluster.join(host, "a process"));
    let clock = cluster.clock(0);

    let first = one.allocate_lock(&clock, 100).unwrap();
    let second = other.allocate_lock(&clock, 100).unwrap();
    assert_eq!([first, second], [FIRST_FREE_LOCK, FIRST_FREE_LOCK + 1].map(LockId));
    assert_eq!(one.allocate_lock(&clock, 100), Err(AllocateLockError::Exhausted { locks: 2 }));

    other.free_lock(&clock, 100, first).unwrap();
    assert!(!one.is_lock_in_use(first) && one.is_lock_in_use(second));
    for lock in [first, LockId(0), LockId(10), LockId(u32::MAX)] {
        assert_eq!(one.free_lock(&clock, 100, lock), Err(FreeLockError::NotInUse { lock }));
    }
    assert_eq!(one.allocate_lock(&clock, 100), Ok(first));
}
