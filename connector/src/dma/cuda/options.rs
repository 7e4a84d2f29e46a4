//! What a process may say of its GPU copies.

use super::driver::CudaError;

/// Settings of an engine, for machines on which the usual way fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Whether several copies are handed to the driver at once, where it can.
    pub batched_copies: bool,
    /// Whether the GPU computes checksums, where it can.
    pub gpu_checksums: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { batched_copies: true, gpu_checksums: true }
    }
}

impl CudaOptions {
    /// Variable of the environment: `0` hands each copy to the driver by itself.
    pub const BATCH: &str = "RACKLINE_CUDA_BATCH";
    /// Variable of the environment: `cpu` has the processor compute checksums.
    pub const CHECKSUMS: &str = "RACKLINE_CUDA_CHECKSUMS";

    /// As [`BATCH`](Self::BATCH) and [`CHECKSUMS`](Self::CHECKSUMS) say in this process.
    ///
    /// # Errors
    /// [`CudaError::Setting`] for a value that neither has.
    pub fn from_environment() -> Result<Self, CudaError> {
        let one_of = |name, values: [&'static str; 2]| {
            let Some(value) = std::env::var_os(name) else { return Ok(true) };
            let found = values.iter().position(|known| value == *known);
            let value = || value.to_string_lossy().into_owned();
            found.map(|found| found == 0).ok_or_else(|| CudaError::Setting {
                name,
                value: value(),
                values,
            })
        };
        Ok(Self {
            batched_copies: one_of(Self::BATCH, ["1", "0"])?,
            gpu_checksums: one_of(Self::CHECKSUMS, ["gpu", "cpu"])?,
        })
    }
}
