//! What was measured of a platform: part of the superblock, a line of its own.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::region_kind::RegionKind;
use crate::fabric::{FlushKind, ReadBack, Record};

/// What the visibility of memory depends on: two hosts with equal platforms behave alike.
///
/// The kernel's version is not in it: it decides nothing that was measured, and every update of a
/// distribution would send a rack back to the conservative mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Platform {
    /// Vendor of the processor as it names itself, padded with zeros.
    pub vendor: [u8; 12],
    /// Family, model and stepping as the processor packs them (CPUID 1 EAX; MIDR_EL1).
    pub signature: u32,
    /// First four letters of the hypervisor's name, zero on bare metal.
    pub hypervisor: u32,
    /// The flush instruction.
    pub flush: FlushKind,
    /// Device or file.
    pub memory: RegionKind,
    /// Size of the memory.
    pub bytes: u64,
}

/// Whether a fence waits for the device, and how that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceEvidence {
    /// It is not known: publishes read back.
    Unproven,
    /// Two hosts looked for a publish that came late, and saw none.
    TwoHosts,
    /// The operator vouched for it.
    Assumed,
}

impl FenceEvidence {
    /// Whether a publish has to read back.
    #[must_use]
    pub fn read_back(self) -> ReadBack {
        match self {
            Self::Unproven => ReadBack::Needed,
            Self::TwoHosts | Self::Assumed => ReadBack::NotNeeded,
        }
    }
}

/// What has to be flushed so that payload of a DMA engine is seen (MEM-M9). The host engine always
/// flushes on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadPolicy {
    /// Nothing: the device's writes go to the memory, and its reads come from there.
    DeviceDirect,
    /// The writing host flushes after the DMA.
    FlushWriter,
    /// The writing host flushes after the DMA, the reading one before it.
    FlushBoth,
}

/// A measured platform, as stored in the superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlatformProfile {
    /// Where it was measured.
    pub platform: Platform,
    /// Whether a fence waits for the device.
    pub fence: FenceEvidence,
    /// What DMA engines flush.
    pub payload: PayloadPolicy,
    /// Hosts of another platform are refused, instead of running in the conservative mode.
    pub strict: bool,
    /// When, in seconds since 1970 on the clock of the measuring host. For people only.
    pub measured_unix_s: u64,
}

/// The line of a superblock slot that holds a profile, or says that there is none.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ProfileRecord {
    pub(super) sequence: u64,
    measured_unix_s: u64,
    bytes: u64,
    signature: u32,
    hypervisor: u32,
    vendor: [u8; 12],
    present: u8,
    flush: u8,
    fence: u8,
    payload: u8,
    memory: u8,
    strict: u8,
    reserved: [u8; 6],
}

impl Record for ProfileRecord {
    const KIND: u32 = u32::from_le_bytes(*b"PRFL");
}

const FLUSHES: [FlushKind; 3] = [FlushKind::Clflush, FlushKind::Clflushopt, FlushKind::DcCivac];
const FENCES: [FenceEvidence; 3] =
    [FenceEvidence::Unproven, FenceEvidence::TwoHosts, FenceEvidence::Assumed];
const PAYLOADS: [PayloadPolicy; 3] =
    [PayloadPolicy::DeviceDirect, PayloadPolicy::FlushWriter, PayloadPolicy::FlushBoth];
const MEMORIES: [RegionKind; 2] = [RegionKind::Devdax, RegionKind::File];
const FLAGS: [bool; 2] = [false, true];

/// Place of `value` in its table: what is stored. The tables hold every value there is, and only
/// grow at the end.
fn code<T: PartialEq>(table: &[T], value: &T) -> u8 {
    let place = table.iter().position(|entry| entry == value);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

fn value<T: Copy>(table: &[T], code: u8) -> Option<T> {
    table.get(usize::from(code)).copied()
}

impl ProfileRecord {
    pub(super) fn new(profile: Option<&PlatformProfile>, sequence: u64) -> Self {
        let Some(profile) = profile else {
            return Self { sequence, ..Self::zeroed() };
        };
        let platform = &profile.platform;
        Self {
            sequence,
            measured_unix_s: profile.measured_unix_s,
            bytes: platform.bytes,
            signature: platform.signature,
            hypervisor: platform.hypervisor,
            vendor: platform.vendor,
            present: 1,
            flush: code(&FLUSHES, &platform.flush),
            fence: code(&FENCES, &profile.fence),
            payload: code(&PAYLOADS, &profile.payload),
            memory: code(&MEMORIES, &platform.memory),
            strict: u8::from(profile.strict),
            reserved: [0; 6],
        }
    }

    /// The profile, if there is one; the outer `None` for what this version does not know.
    pub(super) fn profile(&self) -> Option<Option<PlatformProfile>> {
        if !value(&FLAGS, self.present)? {
            return Some(None);
        }
        let platform = Platform {
            vendor: self.vendor,
            signature: self.signature,
            hypervisor: self.hypervisor,
            flush: value(&FLUSHES, self.flush)?,
            memory: value(&MEMORIES, self.memory)?,
            bytes: self.bytes,
        };
        Some(Some(PlatformProfile {
            platform,
            fence: value(&FENCES, self.fence)?,
            payload: value(&PAYLOADS, self.payload)?,
            strict: value(&FLAGS, self.strict)?,
            measured_unix_s: self.measured_unix_s,
        }))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_letters(f, &self.vendor)?;
        write!(f, " {:#x}", self.signature)?;
        if self.hypervisor != 0 {
            f.write_str(" under ")?;
            write_letters(f, &self.hypervisor.to_le_bytes())?;
        }
        write!(f, ", {}, {} of {} bytes", self.flush, self.memory, self.bytes)
    }
}

/// Another host may have written anything: nothing that could drive a terminal.
fn write_letters(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for byte in bytes.iter().filter(|byte| **byte != 0) {
        write!(f, "{}", if byte.is_ascii_graphic() { char::from(*byte) } else { '?' })?;
    }
    Ok(())
}

impl fmt::Display for FenceEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unproven => "not known to wait for the device",
            Self::TwoHosts => "waits for the device, as far as two hosts could see",
            Self::Assumed => "waits for the device, the operator vouches for it",
        })
    }
}

impl fmt::Display for PayloadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeviceDirect => "no flushes",
            Self::FlushWriter => "the writing host flushes",
            Self::FlushBoth => "both hosts flush",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_stored_comes_back(
            vendor: [u8; 12], signature: u32, hypervisor: u32, bytes: u64, measured_unix_s: u64,
            sequence: u64, strict: bool, codes: [u8; 4],
        ) {
            let platform = Platform {
                vendor, signature, hypervisor, bytes,
                flush: FLUSHES[usize::from(codes[0]) % 3],
                memory: MEMORIES[usize::from(codes[1]) % 2],
            };
            let fence = FENCES[usize::from(codes[2]) % 3];
            let payload = PAYLOADS[usize::from(codes[3]) % 3];
            let profile = PlatformProfile { platform, fence, payload, strict, measured_unix_s };
            let record = ProfileRecord::new(Some(&profile), sequence);
            prop_assert_eq!(record.sequence, sequence);
            prop_assert_eq!(record.profile(), Some(Some(profile)));
            prop_assert_eq!(ProfileRecord::new(None, sequence).profile(), Some(None));
            // What other hosts wrote never drives a terminal.
            prop_assert!(platform.to_string().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        }

        #[test]
        fn no_pattern_of_bytes_is_mistaken(bytes: [[u8; 8]; 7]) {
            let record: ProfileRecord = bytemuck::cast(bytes);
            let known = record.present == 0
                || record.present == 1 && record.flush < 3 && record.fence < 3
                    && record.payload < 3 && record.memory < 2 && record.strict < 2;
            prop_assert_eq!(record.profile().is_some(), known);
        }

        #[test]
        fn what_is_nearly_a_profile_is_looked_at(codes: [u8; 6]) {
            let [present, flush, fence, payload, memory, strict] = codes.map(|code| code % 5);
            let record =
                ProfileRecord { present, flush, fence, payload, memory, strict, ..Zeroable::zeroed() };
            if let Some(Some(profile)) = record.profile() {
                let again = ProfileRecord::new(Some(&profile), 0);
                prop_assert_eq!(bytemuck::bytes_of(&again), bytemuck::bytes_of(&record));
            }
        }
    }
}
