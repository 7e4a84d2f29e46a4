//! Cache-line instructions of x86-64.
//!
//! `clflush` and `clflushopt` only *start* a write-back: what waits is `mfence`, for both. `sfence`
//! and `lfence` are not enough for a refresh, a plain load passes the flush (rule MEM-M3).
#![expect(unsafe_code, reason = "cache-line instructions have no safe form")]

use core::arch::asm;
use core::arch::x86_64::{
    __cpuid, __cpuid_count, __m512i, __rdtscp, _MM_HINT_T0, _mm_clflush, _mm_lfence, _mm_mfence,
    _mm_prefetch, _mm_sfence,
};

use super::{FlushError, FlushKind, LineWords, MemoryFenceKind};
use crate::units::LINE_BYTES;

/// CPUID leaf 1, EDX bit 19: `clflush`.
const LEAF1_EDX_CLFSH: u32 = 1 << 19;
/// CPUID leaf 7, EBX bit 23: `clflushopt`. (`is_x86_feature_detected!` does not know it.)
const LEAF7_EBX_CLFLUSHOPT: u32 = 1 << 23;

pub(super) fn detect() -> Result<FlushKind, FlushError> {
    if __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & LEAF7_EBX_CLFLUSHOPT != 0 {
        return Ok(FlushKind::Clflushopt);
    }
    if __cpuid(1).edx & LEAF1_EDX_CLFSH != 0 {
        return Ok(FlushKind::Clflush);
    }
    Err(FlushError::Missing)
}

/// Starts writing back and dropping `lines` lines from `start` on.
///
/// # Safety
/// `start` is aligned to a line and `lines` lines from it lie in one live mapping; on this
/// processor `kind` came from [`detect`].
pub(super) unsafe fn flush(kind: FlushKind, start: *const u8, lines: u64) {
    // The branch is outside the loop: ranges of thousands of lines are common (payload).
    if kind == FlushKind::Clflush {
        for i in 0..lines {
            let line = start.wrapping_add(offset(i));
            // SAFETY: the caller vouches that the line lies in a live mapping.
            unsafe { _mm_clflush(line) };
        }
    } else {
        for i in 0..lines {
            let line = start.wrapping_add(offset(i));
            // SAFETY: the caller vouches that the line lies in a live mapping and that `detect`
            // found the instruction. It is not declared `nomem`: the compiler must keep it in
            // order with the loads and stores around it.
            unsafe { asm!("clflushopt [{0}]", in(reg) line, options(nostack, preserves_flags)) };
        }
    }
}

/// Waits for every flush, store and load of this thread.
pub(super) fn fence() {
    // SAFETY: every x86-64 has SSE2, where mfence comes from; it touches no memory of its own.
    unsafe { _mm_mfence() };
}

/// Byte offset of line `i`: the range lies in an address space, so it fits.
#[expect(clippy::cast_possible_truncation, reason = "usize is 64 bits on x86-64")]
fn offset(i: u64) -> usize {
    (i * LINE_BYTES) as usize
}

/// The weaker fences, for litmus programs only: none of them is enough for a refresh (MEM-M3).
pub(super) fn fence_of(kind: MemoryFenceKind) {
    match kind {
        MemoryFenceKind::None => {}
        // SAFETY: every x86-64 has SSE2, where it comes from; it touches no memory of its own.
        MemoryFenceKind::Stores => unsafe { _mm_sfence() },
        // SAFETY: as above.
        MemoryFenceKind::Loads => unsafe { _mm_lfence() },
        MemoryFenceKind::Full => fence(),
    }
}

/// Asks for the line at `line`. Never faults.
pub(super) fn prefetch(line: *const u8) {
    // SAFETY: every x86-64 has SSE, where it comes from; it changes nothing that a program can see.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

/// The processor's timestamp counter, read after everything before it is done and before anything
/// after it begins.
pub(super) fn ticks() -> u64 {
    let mut core = 0;
    // SAFETY: every x86-64 has it; it touches no memory of its own.
    unsafe { _mm_lfence() };
    // SAFETY: every x86-64 that has clflush has it; `core` is ours.
    let ticks = unsafe { __rdtscp(&raw mut core) };
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    ticks
}

/// Whether a line can be stored and loaded by one instruction.
pub(super) fn has_whole_lines() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// Stores a line with one instruction.
///
/// # Safety
/// `line` is a line of a live mapping, aligned; [`has_whole_lines`] said yes.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store_whole_line(line: *mut u8, words: LineWords) {
    // SAFETY: both are 64 bytes without padding, and any bits are valid.
    let vector = unsafe { core::mem::transmute::<LineWords, __m512i>(words) };
    // SAFETY: aligned and live, which the caller vouches for; volatile, as others write too.
    unsafe { line.cast::<__m512i>().write_volatile(vector) };
}

/// Loads a line with one instruction.
///
/// # Safety
/// As [`store_whole_line`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_whole_line(line: *const u8) -> LineWords {
    // SAFETY: aligned and live, which the caller vouches for; volatile, as others write it.
    let vector = unsafe { line.cast::<__m512i>().read_volatile() };
    // SAFETY: both are 64 bytes without padding, and any bits are valid.
    unsafe { core::mem::transmute::<__m512i, LineWords>(vector) }
}
