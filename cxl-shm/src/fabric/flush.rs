//! Which instruction moves lines between this host's caches and the device.

use std::fmt;

#[cfg(any(target_arch = "aarch64", test))]
use crate::units::LINE_BYTES;

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
    /// [`FlushError::Missing`] when it has none that user programs may use; [`FlushError::Granule`]
    /// when it writes more than a line of 64 bytes back at a time.
    pub fn detect() -> Result<Self, FlushError> {
        #[cfg(target_arch = "x86_64")]
        return super::flush_x86_64::detect();
        #[cfg(target_arch = "aarch64")]
        return super::flush_aarch64::detect();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        compile_error!("Rackline needs x86-64 or aarch64: it has to flush cache lines");
    }
}

/// Whether a publish reads its lines back (MEM-M2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBack {
    /// A fence is not known to wait for the device: the load that follows it is.
    Needed,
    /// A fence waits: this platform is qualified, or the memory is this host's own.
    NotNeeded,
}

/// A fence of a litmus program. Protocols have one only, [`Fabric::fence`](super::Fabric::fence).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryFenceKind {
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
#[non_exhaustive]
pub enum FlushError {
    /// The processor has no cache-line flush.
    #[error("this processor has no clflush: it cannot share memory that is not coherent")]
    Missing,
    /// The processor writes several lines of 64 bytes back together: it would overwrite lines of
    /// other hosts with what its caches have of them (MEM-M1).
    #[error(
        "this processor may write {bytes} bytes of memory back at a time (CTR_EL0.CWG), and hosts \
         share memory in lines of 64 bytes: it would overwrite what other hosts wrote beside its own \
         lines; use a host whose processor writes 64 bytes back"
    )]
    Granule {
        /// What it writes back at a time.
        bytes: u64,
    },
}

/// Whether an aarch64 processor whose register CTR_EL0 holds `ctr` writes back no more than a line
/// at a time. The field CWG is the logarithm of a number of words of 4 bytes; 0 says nothing, and
/// is let pass.
///
/// # Errors
/// [`FlushError::Granule`].
#[cfg(any(target_arch = "aarch64", test))]
pub(super) fn check_granule(ctr: u64) -> Result<(), FlushError> {
    let bytes = match ctr >> 24 & 0xf {
        0 => 0,
        words_log2 => 4 << words_log2,
    };
    if bytes > LINE_BYTES { Err(FlushError::Granule { bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granule_of_more_than_a_line_is_refused() {
        // Registers of a Neoverse-N1 (64 bytes), of an A64FX (256), and one that does not say.
        for (ctr, refused) in [(0x8444_c004, None), (0x8644_c004, Some(256)), (0x8044_c004, None)] {
            let found = match check_granule(ctr) {
                Ok(()) => None,
                Err(FlushError::Granule { bytes }) => Some(bytes),
                Err(error) => panic!("{error}"),
            };
            assert_eq!(found, refused, "{ctr:#x}");
        }
    }
}
