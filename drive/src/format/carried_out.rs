//! What a folder has carried out of the requests to clear namespaces.

use bytemuck::{Pod, Zeroable};
use cxl_shm::units::NODES_MAX;

/// The last request of each node of a region that a folder has carried out.
///
/// A folder has one region. Requests of another region are unknown to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct CarriedOut {
    /// Identity of the region. Zeros: no region.
    pub region: [u64; 2],
    /// By asking node, the number of its last request whose blocks are gone, durably.
    pub numbers: [u64; NODES_MAX as usize],
}

impl Default for CarriedOut {
    fn default() -> Self {
        Self::zeroed()
    }
}
