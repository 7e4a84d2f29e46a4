//! Which instruction moves lines between this host's caches and the device.

use std::fmt;

/// The cache instruction in use, chosen once at start: a value, never a compile-time feature, so
/// that one binary runs and is tested everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushKind {
    /// x86-64 `clflush`: on every processor. As asynchronous as `clflushopt`, but ordered among
    /// themselves, so ranges are 20 to 40 times slower. The paper uses it; it is no safer.
    Clflush,
    /// x86-64 `clflushopt` (Intel SDM vol. 2A): writes a dirty line back and drops it.
    Clflushopt,
    /// aarch64 `dc civac`: clean and invalidate to the point of coherency.
    DcCivac,
}

impl FlushKind {
    /// The best instruction this processor has.
    ///
    /// # Errors
    /// [`FlushError::Missing`] when it has none that user programs may use.
    pub fn detect() -> Result<Self, FlushError> {
        #[cfg(target_arch = "x86_64")]
        return super::flush_x86_64::detect();
        #[cfg(target_arch = "aarch64")]
        return Ok(Self::DcCivac);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        compile_error!("Rackline needs x86-64 or aarch64: it has to flush cache lines");
    }
}

/// Whether a publish reads its lines back (M2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBack {
    /// A fence is not known to wait for the device: the load that follows it is.
    Needed,
    /// A fence waits: this platform is qualified, or the memory is this host's own.
    NotNeeded,
}

/// A fence of a litmus program. Protocols have one only, [`Fabric::fence`](super::Fabric::fence).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceKind {
    /// None at all.
    None,
    /// `sfence`, `dsb st`.
    Stores,
    /// `lfence`, `dsb ld`.
    Loads,
    /// `mfence`, `dsb sy`: the one that protocols use.
    Full,
}

impl fmt::Display for FlushKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clflush => "clflush",
            Self::Clflushopt => "clflushopt",
            Self::DcCivac => "dc civac",
        })
    }
}

/// Why no flush instruction can be chosen.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// The processor has no cache-line flush.
    #[error("this processor has no clflush: it cannot share memory that is not coherent")]
    Missing,
}
