//! A GPU's copy engines: payload goes between its memory and the pool without passing through the
//! processor's registers.
//!
//! ```text
//! store   engine's stream --event--> copies down, one event a payload --> flush, checksum by CPU
//! load    refresh (MEM-M9), fence --> copies up, while the CPU computes the checksums --> fence
//! by layers: the same, layer by layer; a layer of all payloads is one call of the driver, and an event
//! ```
//!
//! The driver is loaded when the first [`CudaDma`] is made. A machine without one is a normal
//! state: [`CudaError::Absent`].
//!
//! Checksums are computed by the CPU, from what the device has. So both sides flush, whatever the
//! platform's profile would allow (`PayloadPolicy::FlushBoth`): a line that was read for a checksum
//! may be in this host's caches, and copies of the GPU may find it there.
//!
//! A thread that calls keeps its current context, and its engine's capture of a graph continues:
//! see `turn.rs`. Nothing returns before the GPU has come to its end with it; should the driver be
//! unable to wait, the process ends.
//!
//! What copies come after is told to the handle that makes them ([`CudaDma::after`]): handles of
//! one engine share its streams, and no others' waits.
//!
//! What a GPU can reach ([`PoolReach`]): the mapping of the pool is registered with the driver in
//! pieces. Where that is refused, payload goes through a pinned buffer and is copied once more by
//! the processor; [`CudaDma::figures`] tells how many bytes did.

mod bounce;
mod copies;
mod driver;
mod engine;
mod layers;
mod memory;
mod order;
mod registration;
mod runs;
mod turn;
mod whole;

pub use bounce::pinned_memory;
pub use driver::{CudaError, gpus};
pub use engine::{CudaDma, CudaFigures};
pub use memory::{DeviceDestination, DeviceSource, EngineStream};
pub(crate) use order::Order;
pub use registration::PoolReach;
