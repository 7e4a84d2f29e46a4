//! Which platform this is.

use crate::fabric::Fabric;
use crate::layout::Platform;
use crate::region::Region;

/// The platform of this host and the memory of `region`.
#[must_use]
pub fn platform_of(region: &Region) -> Platform {
    let (vendor, signature, hypervisor) = processor();
    let flush = region.fabric().flush_kind();
    let (memory, bytes) = (region.kind(), region.fabric().bytes());
    Platform { vendor, signature, hypervisor, flush, memory, bytes }
}

/// First four letters of the hypervisor's name, zero on bare metal and where the processor does not
/// say.
#[must_use]
pub fn hypervisor() -> u32 {
    let (_, _, hypervisor) = processor();
    hypervisor
}

/// CPUID leaf 1, ECX bit 31: a hypervisor is present, and leaf 0x4000_0000 names it.
#[cfg(target_arch = "x86_64")]
const LEAF1_ECX_HYPERVISOR: u32 = 1 << 31;

#[cfg(target_arch = "x86_64")]
fn processor() -> ([u8; 12], u32, u32) {
    use core::arch::x86_64::__cpuid;
    let (name, model) = (__cpuid(0), __cpuid(1));
    let mut vendor = [0; 12];
    for (four, register) in vendor.chunks_exact_mut(4).zip([name.ebx, name.edx, name.ecx]) {
        four.copy_from_slice(&register.to_le_bytes());
    }
    let under = model.ecx & LEAF1_ECX_HYPERVISOR != 0;
    (vendor, model.eax, if under { __cpuid(0x4000_0000).ebx } else { 0 })
}

/// From MIDR_EL1 as the kernel shows it; zero, which fits no other processor's, where it does not.
#[cfg(target_arch = "aarch64")]
fn processor() -> ([u8; 12], u32, u32) {
    const MIDR: &str = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
    let midr = std::fs::read_to_string(MIDR)
        .ok()
        .and_then(|text| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
    let signature = midr.and_then(|midr| u32::try_from(midr).ok()).unwrap_or(0);
    let mut vendor = [0; 12];
    vendor[..3].copy_from_slice(b"arm");
    (vendor, signature, 0)
}
