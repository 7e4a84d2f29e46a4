//! Backends for tests: any fabric with any host memory and any liveness.

use std::fmt;
use std::marker::PhantomData;

#[cfg(feature = "verify")]
use super::explored::{ExploredFabric, ExploredHostMemory};
use super::simulated::{SimulatedHost, SimulatedHostMemory};
use crate::fabric::{Fabric, HostMemory};
use crate::host::{Liveness, ProcLiveness};
use crate::node::Backend;

/// The [`Backend`] that consists of these three parts.
pub struct BackendOf<F, H, L>(PhantomData<(F, H, L)>);

impl<F, H, L> fmt::Debug for BackendOf<F, H, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackendOf")
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> Backend for BackendOf<F, H, L> {
    type Fabric = F;
    type HostMemory = H;
    type Liveness = L;
}

/// A host of a [`SimulatedRack`](super::simulated::SimulatedRack).
pub type SimulatedBackend<L = ProcLiveness> = BackendOf<SimulatedHost, SimulatedHostMemory, L>;

/// A host of the memory that is [`explored`](super::explored).
#[cfg(feature = "verify")]
pub type ExploredBackend<L = ProcLiveness> = BackendOf<ExploredFabric, ExploredHostMemory, L>;
