//! What `prove explore` explores: locks, membership and records of `cxl-shm`, holds of `kv-cache`.

use cxl_shm::verify::scenarios::{Broken, Scenario};

/// All scenarios.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    [cxl_shm::verify::scenarios::scenarios(), kv_cache::verify::scenarios()].concat()
}

/// Every broken rule, with the exploration that is to refute it.
#[must_use]
pub fn broken() -> Vec<Broken> {
    [cxl_shm::verify::scenarios::broken(), kv_cache::verify::broken()].concat()
}
