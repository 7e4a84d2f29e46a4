//! Cache-line instructions of aarch64. Written from the Arm ARM (DDI 0487, C5.3 `DC CIVAC`); never
//! run on such a machine: see `deploy/docs/limits.md`.
#![expect(unsafe_code, reason = "cache-line instructions have no safe form")]

use core::arch::asm;

use super::flush::check_granule;
use super::{FlushError, FlushKind, LineWords, MemoryFenceKind};
use crate::units::LINE_BYTES;

pub(super) fn detect() -> Result<FlushKind, FlushError> {
    check_granule(cache_type()).map(|()| FlushKind::DcCivac)
}

/// Starts cleaning and invalidating `lines` lines of 64 bytes from `start` on.
///
/// # Safety
/// `start` is aligned to a line and `lines` lines from it lie in one live mapping. Linux lets
/// user programs use the instruction (SCTLR_EL1.UCI). Where the cache line is shorter than 64
/// bytes the caller's range still covers whole lines, since every step is at most one line.
pub(super) unsafe fn flush(_kind: FlushKind, start: *const u8, lines: u64) {
    let step = cache_line_bytes().min(LINE_BYTES);
    let mut at = 0;
    while at < lines * LINE_BYTES {
        #[expect(clippy::cast_possible_truncation, reason = "usize is 64 bits on aarch64")]
        let line = start.wrapping_add(at as usize);
        // SAFETY: the caller vouches that the line lies in a live mapping.
        unsafe { asm!("dc civac, {0}", in(reg) line, options(nostack, preserves_flags)) };
        at += step;
    }
}

/// Waits for every flush, store and load of this thread, as seen by the whole system.
pub(super) fn fence() {
    // SAFETY: a barrier touches no memory of its own.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

/// Smallest data cache line of all cores, from CTR_EL0.DminLine (log2 of words of 4 bytes).
fn cache_line_bytes() -> u64 {
    4 << ((cache_type() >> 16) & 0xf)
}

/// The register CTR_EL0: how the caches of this machine's cores are made.
fn cache_type() -> u64 {
    let ctr: u64;
    // SAFETY: CTR_EL0 is readable from user programs on Linux and has no side effect.
    unsafe { asm!("mrs {0}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
    ctr
}

/// The weaker fences, for litmus programs only: none of them is enough for a refresh (MEM-M3).
pub(super) fn fence_of(kind: MemoryFenceKind) {
    match kind {
        MemoryFenceKind::None => {}
        // SAFETY: a barrier touches no memory of its own.
        MemoryFenceKind::Stores => unsafe { asm!("dsb st", options(nostack, preserves_flags)) },
        // SAFETY: as above.
        MemoryFenceKind::Loads => unsafe { asm!("dsb ld", options(nostack, preserves_flags)) },
        MemoryFenceKind::Full => fence(),
    }
}

/// Asks for the line at `line`. Never faults.
pub(super) fn prefetch(line: *const u8) {
    // SAFETY: a prefetch is a hint: it changes nothing that a program can see and never faults.
    unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) line, options(nostack, preserves_flags)) };
}

/// The processor's counter, read after everything before it is done and before anything after it
/// begins.
pub(super) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: the counter is readable from user programs on Linux; barriers touch no memory.
    unsafe {
        asm!("dsb sy", "isb", "mrs {0}, cntvct_el0", "isb", out(reg) ticks,
            options(nostack, preserves_flags))
    };
    ticks
}

/// Whether a line can be stored and loaded by one instruction: `ld64b` and `st64b` are not used.
pub(super) fn has_whole_lines() -> bool {
    false
}

/// Never called: [`has_whole_lines`] says no.
///
/// # Safety
/// None.
pub(super) unsafe fn store_whole_line(_line: *mut u8, _words: LineWords) {}

/// Never called: [`has_whole_lines`] says no.
///
/// # Safety
/// None.
pub(super) unsafe fn load_whole_line(_line: *const u8) -> LineWords {
    [0; 8]
}
