//! How this process publishes, and why.

use std::fmt;

use super::platform::platform_of;
use crate::fabric::ReadBack;
use crate::layout::{FenceEvidence, PayloadPolicy, Platform, PlatformProfile, Superblock};
use crate::region::Region;

/// How a process makes its writes visible. Decided once, when it attaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visibility {
    /// Whether publishes read back (MEM-M2).
    pub read_back: ReadBack,
    /// What DMA engines flush (MEM-M9).
    pub payload: PayloadPolicy,
    /// Why.
    pub basis: Basis,
    /// The region wants no hosts of a platform that was not measured, and this is one.
    pub refused: bool,
}

/// What a decision about visibility rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The region's memory is this host's own DRAM: a file in a file system that lives in memory.
    ///
    /// Only this host maps it, and a host is coherent within itself: once a store has left the
    /// processor's store buffer, for which the fence waits, every load of every core and of every
    /// snooping device sees it. There is no device behind the caches that a write could reach late.
    OwnMemory,
    /// The platform is the one that was measured.
    Measured(FenceEvidence),
    /// Nothing was measured: the conservative mode.
    NotMeasured,
    /// Another platform was measured: the conservative mode.
    OtherPlatform {
        /// The measured one.
        measured: Platform,
        /// This one.
        here: Platform,
    },
}

impl Visibility {
    /// For this host and `region`, whose superblock was read.
    #[must_use]
    pub fn of(region: &Region, superblock: &Superblock) -> Self {
        let profile = superblock.profile.as_ref();
        Self::decide(&platform_of(region), region.is_own_memory(), profile)
    }

    /// For the platform `here`, memory that is this host's own or not, and what was measured.
    #[must_use]
    pub fn decide(here: &Platform, own_memory: bool, profile: Option<&PlatformProfile>) -> Self {
        let matching = profile.filter(|profile| profile.platform == *here);
        let basis = match (own_memory, matching, profile) {
            (true, ..) => Basis::OwnMemory,
            (false, Some(matching), _) => Basis::Measured(matching.fence),
            (false, None, Some(other)) => {
                Basis::OtherPlatform { measured: other.platform, here: *here }
            }
            (false, None, None) => Basis::NotMeasured,
        };
        let read_back = match basis {
            Basis::OwnMemory => ReadBack::NotNeeded,
            Basis::Measured(fence) => fence.read_back(),
            Basis::NotMeasured | Basis::OtherPlatform { .. } => ReadBack::Needed,
        };
        let payload = matching.map_or(PayloadPolicy::FlushBoth, |profile| profile.payload);
        let refused = matching.is_none() && profile.is_some_and(|profile| profile.strict);
        Self { read_back, payload, basis, refused }
    }

    /// The mode in which nothing is taken for granted, for those who measure.
    pub(crate) fn conservative() -> Self {
        let (read_back, payload) = (ReadBack::Needed, PayloadPolicy::FlushBoth);
        Self { read_back, payload, basis: Basis::NotMeasured, refused: false }
    }
}

impl fmt::Display for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.read_back {
            ReadBack::Needed => "publishes read back",
            ReadBack::NotNeeded => "publishes do not read back",
        })?;
        match self.basis {
            Basis::OwnMemory => {
                f.write_str(": the memory is this host's own, and a host is coherent within itself")
            }
            Basis::Measured(fence) => write!(f, ": the platform was measured, a fence {fence}"),
            Basis::NotMeasured => {
                f.write_str(": no platform was measured yet (`rackline qualify`)")
            }
            Basis::OtherPlatform { measured, here } => write!(
                f,
                ": this host ({here}) is not the platform that was measured ({measured}); measure \
                 again with `rackline qualify`"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::FlushKind;
    use crate::layout::RegionKind;

    fn here() -> Platform {
        Platform {
            vendor: *b"GenuineIntel",
            signature: 0x806f8,
            hypervisor: 0,
            flush: FlushKind::Clflushopt,
            memory: RegionKind::Devdax,
            bytes: 1 << 30,
        }
    }

    fn profile(fence: FenceEvidence, strict: bool) -> PlatformProfile {
        let (platform, payload) = (here(), PayloadPolicy::FlushBoth);
        PlatformProfile { platform, fence, payload, strict, measured_unix_s: 0 }
    }

    #[test]
    fn read_back_is_left_out_only_where_that_is_known_to_be_right() {
        let decide = |fence: Option<FenceEvidence>| {
            let profile = fence.map(|fence| profile(fence, false));
            Visibility::decide(&here(), false, profile.as_ref()).read_back
        };
        assert_eq!(decide(None), ReadBack::Needed);
        assert_eq!(decide(Some(FenceEvidence::Unproven)), ReadBack::Needed);
        assert_eq!(decide(Some(FenceEvidence::TwoHosts)), ReadBack::NotNeeded);
        assert_eq!(decide(Some(FenceEvidence::Assumed)), ReadBack::NotNeeded);
        assert_eq!(Visibility::decide(&here(), true, None).read_back, ReadBack::NotNeeded);
    }

    #[test]
    fn any_other_platform_falls_back_and_says_so() {
        let measured = profile(FenceEvidence::TwoHosts, false);
        let others = [
            Platform { vendor: *b"AuthenticAMD", ..here() },
            Platform { signature: 1, ..here() },
            Platform { hypervisor: u32::from_le_bytes(*b"KVMK"), ..here() },
            Platform { flush: FlushKind::Clflush, ..here() },
            Platform { memory: RegionKind::File, ..here() },
            Platform { bytes: 1 << 31, ..here() },
        ];
        for other in others {
            let visibility = Visibility::decide(&other, false, Some(&measured));
            assert_eq!(visibility.read_back, ReadBack::Needed, "{other}");
            assert_eq!(visibility.payload, PayloadPolicy::FlushBoth);
            assert!(!visibility.refused);
            let says = visibility.to_string();
            assert!(says.contains("is not the platform that was measured"), "{says}");
            assert!(says.contains(&other.to_string()), "{says}");
            let strict = profile(FenceEvidence::TwoHosts, true);
            assert!(Visibility::decide(&other, false, Some(&strict)).refused);
        }
        assert!(
            !Visibility::decide(&here(), false, Some(&profile(FenceEvidence::TwoHosts, true)))
                .refused
        );
    }
}
