//! Where a member runs: the three parts that differ between a real host and a simulated one.

use std::fmt;

use crate::fabric::{Fabric, HostMemory, MappedFabric, MappedHostMemory};
use crate::host::{Liveness, ProcLiveness};

/// What a [`Member`](super::Member) runs on: the memory of the region, the DRAM of its host, and
/// the knowledge of which processes live.
///
/// The same protocols run on every backend. Programs use [`MappedBackend`]; tests use simulated
/// and explored memory. A backend is a type only: no value of it exists.
pub trait Backend: fmt::Debug {
    /// The memory of the region, which several hosts see.
    type Fabric: Fabric;
    /// The words of the host tier, which the processes of one host share.
    type HostMemory: HostMemory;
    /// Tells which processes of the host live.
    type Liveness: Liveness;
}

/// A real host: mapped memory, and the processes that the operating system knows.
#[derive(Debug)]
pub enum MappedBackend {}

impl Backend for MappedBackend {
    type Fabric = MappedFabric;
    type HostMemory = MappedHostMemory;
    type Liveness = ProcLiveness;
}
