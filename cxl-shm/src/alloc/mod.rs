//! Allocation between hosts: chunks of the region.

mod chunk;

pub use chunk::{AllocateError, ChunkError};
pub(crate) use chunk::{allocate, free, owned};
