//! What a process may say of its GPU copies.

use std::ffi::OsString;

use super::driver::CudaError;

/// Bytes of a pool that are registered at most, by default. Less than that is never unregistered. A driver
/// keeps 16 bytes of the kernel's memory for a page of 4 KiB, and the GPU up to 8 of its own: 1 GiB
/// and half a GiB for each process. That is as much as an engine that has divided its GPU's memory can
/// spare. A piece that comes back costs as much time as twenty copies of it.
const REGISTERED_BYTES_MAX: u64 = 256 << 30;
/// Bytes of a piece, by default. A chunk of a pool has as many, so blocks that were published together
/// lie in one or two. At 2 GiB/s a call waits 30 ms for one that it touches first, less than for a
/// forward. A terabyte has 16,384 of them.
const PIECE_BYTES: u64 = 64 << 20;

/// Settings of an engine, for machines on which the usual way fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Whether several copies are handed to the driver at once, where it can.
    pub batched_copies: bool,
    /// Whether the GPU computes checksums, where it can.
    pub gpu_checksums: bool,
    /// Bytes of the pool that are registered with the driver at once, unless calls under way need more;
    /// `None`: no limit. 256 GiB by default.
    pub registered_bytes_max: Option<u64>,
    /// Bytes that are registered together: a power of two from 2 MiB to 32 GiB, or the next one. 64 MiB
    /// by default.
    pub registered_piece_bytes: u64,
    /// Whether the pool is registered at once, up to the limit, and not piece by piece when it is used.
    pub register_at_start: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            batched_copies: true,
            gpu_checksums: true,
            registered_bytes_max: Some(REGISTERED_BYTES_MAX),
            registered_piece_bytes: PIECE_BYTES,
            register_at_start: false,
        }
    }
}

impl CudaOptions {
    /// Variable of the environment: `0` hands each copy to the driver by itself.
    pub const BATCH: &str = "RACKLINE_CUDA_BATCH";
    /// Variable of the environment: `cpu` has the processor compute checksums.
    pub const CHECKSUMS: &str = "RACKLINE_CUDA_CHECKSUMS";
    /// Variable of the environment: `at-start` registers the pool when a GPU is opened.
    pub const REGISTER: &str = "RACKLINE_CUDA_REGISTER";
    /// Variable of the environment: how much of the pool is registered at once, such as `64GiB`, or
    /// `all`. A piece, of 64 MiB, at least.
    pub const REGISTER_LIMIT: &str = "RACKLINE_CUDA_REGISTER_LIMIT";

    /// As [`BATCH`](Self::BATCH), [`CHECKSUMS`](Self::CHECKSUMS), [`REGISTER`](Self::REGISTER) and
    /// [`REGISTER_LIMIT`](Self::REGISTER_LIMIT) say in this process.
    ///
    /// # Errors
    /// [`CudaError::Setting`] for a value that none of them has.
    pub fn from_environment() -> Result<Self, CudaError> {
        Self::of(|name| std::env::var_os(name))
    }

    /// As the variables say whose values `value_of` gives.
    fn of(value_of: impl Fn(&str) -> Option<OsString>) -> Result<Self, CudaError> {
        let unknown = |name, value: &OsString, values| CudaError::Setting {
            name,
            value: value.to_string_lossy().into_owned(),
            values,
        };
        let one_of = |name: &'static str, values: [&'static str; 2]| {
            let Some(value) = value_of(name) else { return Ok(true) };
            let found = values.iter().position(|known| value == *known);
            found.map(|found| found == 0).ok_or_else(|| unknown(name, &value, values))
        };
        let limit = match value_of(Self::REGISTER_LIMIT) {
            None => Some(REGISTERED_BYTES_MAX),
            Some(value) if value == "all" => None,
            Some(value) => {
                // With less than a piece each call would register its pieces anew.
                let bytes = value.to_str().and_then(bytes).filter(|bytes| *bytes >= PIECE_BYTES);
                let values = ["a size of 64MiB or more, such as 64GiB,", "all"];
                Some(bytes.ok_or_else(|| unknown(Self::REGISTER_LIMIT, &value, values))?)
            }
        };
        Ok(Self {
            batched_copies: one_of(Self::BATCH, ["1", "0"])?,
            gpu_checksums: one_of(Self::CHECKSUMS, ["gpu", "cpu"])?,
            registered_bytes_max: limit,
            register_at_start: !one_of(Self::REGISTER, ["when-used", "at-start"])?,
            ..Self::default()
        })
    }
}

/// A number of MiB, GiB or TiB.
fn bytes(text: &str) -> Option<u64> {
    let units = [("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (number, shift) =
        units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
    let number = Some(number).filter(|number| number.bytes().all(|digit| digit.is_ascii_digit()));
    number?.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &'static str) -> Result<CudaOptions, CudaError> {
        CudaOptions::of(|asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn without_variables_options_are_the_defaults() {
        assert_eq!(CudaOptions::of(|_| None), Ok(CudaOptions::default()));
    }

    #[test]
    fn each_variable_sets_its_option() {
        let default = CudaOptions::default();
        let changed = |change: fn(&mut CudaOptions)| {
            let mut changed = default;
            change(&mut changed);
            Ok(changed)
        };
        let found = of("RACKLINE_CUDA_BATCH", "0");
        assert_eq!(found, changed(|options| options.batched_copies = false));
        let found = of("RACKLINE_CUDA_CHECKSUMS", "cpu");
        assert_eq!(found, changed(|options| options.gpu_checksums = false));
        let found = of("RACKLINE_CUDA_REGISTER", "at-start");
        assert_eq!(found, changed(|options| options.register_at_start = true));
        assert_eq!(of("RACKLINE_CUDA_REGISTER", "when-used"), Ok(default));
        let found = of("RACKLINE_CUDA_REGISTER_LIMIT", "all");
        assert_eq!(found, changed(|options| options.registered_bytes_max = None));
        let found = of("RACKLINE_CUDA_REGISTER_LIMIT", "640MiB");
        assert_eq!(found, changed(|options| options.registered_bytes_max = Some(640 << 20)));
    }

    #[test]
    fn sizes_have_a_unit_and_are_not_zero() {
        assert_eq!(["1MiB", "64GiB", "2TiB"].map(bytes), [1 << 20, 64 << 30, 2 << 40].map(Some));
        for wrong in ["", "GiB", "64", "64GB", "0GiB", "-1GiB", "+1GiB", "1.5GiB", "99999999999TiB"]
        {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn other_values_are_refused_with_what_there_is() {
        let told = of("RACKLINE_CUDA_REGISTER_LIMIT", "much").unwrap_err().to_string();
        let expected = "RACKLINE_CUDA_REGISTER_LIMIT=much is not known: set it to a size of 64MiB or \
                        more, such as 64GiB, or all, or unset it";
        assert_eq!(told, expected);
        assert!(of("RACKLINE_CUDA_REGISTER_LIMIT", "63MiB").is_err(), "less than a piece");
        assert!(of("RACKLINE_CUDA_REGISTER_LIMIT", "64MiB").is_ok());
        let told = of("RACKLINE_CUDA_REGISTER", "yes").unwrap_err().to_string();
        assert!(told.contains("set it to when-used or at-start"), "{told}");
    }
}
