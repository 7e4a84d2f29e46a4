//! Copies that do nothing else: no refresh, no checksum, no wait for the device. What the engines
//! are measured against.
#![expect(unsafe_code, reason = "the ceilings copy from and to a mapping by address")]

use cxl_shm::fabric::Mapping;
use cxl_shm::units::Extent;

use crate::Batch;

/// Copies every buffer to its payload through the caches.
pub fn memcpy_in(batch: &mut Batch<'_>) {
    for (payload, buffer) in batch.payloads.iter().zip(&batch.buffers) {
        let to = address(batch.mapping, *payload);
        // SAFETY: `to` is as long as its buffer and lies in the live mapping of a file that nobody
        // else has.
        unsafe { to.copy_from_nonoverlapping(buffer.as_ptr(), buffer.len()) };
    }
}

/// Copies every payload to its buffer through the caches.
pub fn memcpy_out(batch: &mut Batch<'_>) {
    for (payload, buffer) in batch.payloads.iter().zip(&mut batch.buffers) {
        let from = address(batch.mapping, *payload).cast_const();
        // SAFETY: as in `memcpy_in`, the other way.
        unsafe { from.copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) };
    }
}

/// Copies every buffer to its payload with non-temporal stores, where the processor has them.
pub fn stream_in(batch: &mut Batch<'_>) {
    for (payload, buffer) in batch.payloads.iter().zip(&batch.buffers) {
        let to = address(batch.mapping, *payload);
        // SAFETY: as in `memcpy_in`; payloads are whole pages.
        unsafe { stream(buffer.as_ptr(), to, buffer.len()) };
    }
}

/// Copies every payload to its buffer with non-temporal stores, where the processor has them.
pub fn stream_out(batch: &mut Batch<'_>) {
    for (payload, buffer) in batch.payloads.iter().zip(&mut batch.buffers) {
        let from = address(batch.mapping, *payload).cast_const();
        // SAFETY: as in `stream_in`, the other way.
        unsafe { stream(from, buffer.as_mut_ptr(), buffer.len()) };
    }
}

fn address(mapping: &Mapping, payload: Extent) -> *mut u8 {
    mapping.address(payload).expect("the bed lays its payloads into the pool")
}

/// Copies with stores that go around the caches, the source prefetched.
///
/// # Safety
/// `bytes`, a multiple of 64, can be read from `from` and written to `to`, which is aligned to 64.
/// They do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the caller's; the processor has AVX-512.
        unsafe { x86_64::wide(from, to, bytes) };
    } else {
        // SAFETY: the caller's; every x86-64 has SSE2.
        unsafe { x86_64::narrow(from, to, bytes) };
    }
}

/// Copies through the caches: there are no stores here that are sure to go around them.
///
/// # Safety
/// `bytes` can be read from `from` and written to `to`. They do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's.
    unsafe { to.copy_from_nonoverlapping(from, bytes) };
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::x86_64::{
        __m128i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm_stream_si128,
        _mm512_stream_si512,
    };

    /// How far ahead the source is prefetched; from 512 to 4096 it makes no difference.
    const PREFETCH_BYTES: usize = 1024;

    macro_rules! stream {
        ($name:ident, $feature:literal, $Vector:ident, $stream:ident) => {
            /// # Safety
            /// As [`super::stream`]; the processor has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(from: *const u8, to: *mut u8, bytes: usize) {
                for at in (0..bytes).step_by(size_of::<$Vector>()) {
                    let from = from.wrapping_add(at);
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_BYTES).cast());
                    // SAFETY: inside the source, which the caller vouches for.
                    let vector = unsafe { from.cast::<$Vector>().read_unaligned() };
                    // SAFETY: inside the target and aligned, which the caller vouches for.
                    unsafe { $stream(to.wrapping_add(at).cast::<$Vector>(), vector) };
                }
                // Part of the copy: without it the last stores would be the next one's cost.
                _mm_sfence();
            }
        };
    }

    stream!(narrow, "sse2", __m128i, _mm_stream_si128);
    stream!(wide, "avx512f", __m512i, _mm512_stream_si512);
}
