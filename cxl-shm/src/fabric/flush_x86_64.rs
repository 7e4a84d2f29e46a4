//! Cache-line instructions of x86-64.
//!
//! `clflush` and `clflushopt` only *start* a write-back: what waits is `mfence`, for both. `sfence`
//! and `lfence` are not enough for a refresh, a plain load passes the flush (rule M3).
#![expect(unsafe_code, reason = "cache-line instructions have no safe form")]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_mfence};

use super::{FlushError, FlushKind};
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
