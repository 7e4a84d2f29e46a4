//! The table of locks that are given out, used by hosts whose caches hold what it was before.

use cxl_shm::layout::LockProtocol;
use cxl_shm::units::LockId;
use cxl_shm_objects::LockTable;
use cxl_shm_objects::{AllocateLockError, FreeLockError};

use super::bed::cluster;
use crate::rack::Mutant;

const TIMEOUT_MS: u64 = 1000;

/// Two hosts are given the two locks that there are, give them back and are given them again; a
/// third looks on. Each sees at once what the others did.
///
/// # Panics
/// When one did not.
pub fn locks_are_given_out_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [looker, one, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let members = [&looker, &one, &other];
    let give = |host: usize| {
        cluster.warm();
        members[host].allocate_lock(&clocks[host], TIMEOUT_MS)
    };
    let free = |host: usize, lock: LockId| {
        cluster.warm();
        members[host].free_lock(&clocks[host], TIMEOUT_MS, lock)
    };
    let in_use = |lock: LockId| {
        let now = looker.is_lock_in_use(lock);
        cluster.warm();
        now
    };
    for _ in 0..2 {
        let first = give(1).unwrap_or_else(|error| panic!("{error}"));
        assert!(in_use(first), "that a lock is in use was not seen at once");
        let second = give(2).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(first, second, "a lock was given out twice");
        let third = give(1);
        assert!(matches!(third, Err(AllocateLockError::Exhausted { .. })), "{third:?}");
        // Given back by the host that was not given it.
        assert_eq!(free(1, second), Ok(()));
        assert!(!in_use(second), "that a lock is free was not seen at once");
        assert_eq!(free(2, second), Err(FreeLockError::NotInUse { lock: second }));
        assert_eq!(give(2), Ok(second));
        assert!(in_use(second));
        assert_eq!(free(2, first), Ok(()));
        assert_eq!(free(1, second), Ok(()));
        assert!(!in_use(first) && !in_use(second));
    }
    cluster.check_writers();
}
