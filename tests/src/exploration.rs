//! What `prove explore` explores: locks, membership and records of `cxl-shm`, holds of `kv-cache`.

use cxl_shm::proof::{Broken, Scenario};

/// All scenarios.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    [cxl_shm::proof::scenarios(), kv_cache::proof::scenarios()].concat()
}

/// Every broken rule, with the exploration that is to refute it.
#[must_use]
pub fn broken() -> Vec<Broken> {
    [cxl_shm::proof::broken(), kv_cache::proof::broken()].concat()
}
