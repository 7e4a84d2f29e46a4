//! Copying whole lines on x86-64.
//!
//! Stores are non-temporal: they go around the caches, evicting any copy this host holds (Intel SDM
//! vol. 1, 10.4.6.2), so that the writer's half of MEM-M9 is one fence instead of a flush a line,
//! and no line is fetched only to be overwritten. Two widths: AVX-512 writes a whole line with one
//! instruction and was 3 to 7 % faster than SSE2, which every x86-64 has; AVX2 was in between and
//! is not worth a third.
#![expect(unsafe_code, reason = "copies from and to memory that other processes write")]

use core::arch::x86_64::_mm_sfence;

use cxl_shm::fabric::Mapping;
use cxl_shm::units::Extent;

use super::checked_copy_x86_64::{copy_lines, is_supported};
use super::checksum::RunningChecksum;
use super::refresh_ahead::BLOCK_BYTES;

/// Whether stored lines are on their way to the device already, not dirty in this host's caches.
pub(super) const STORES_BYPASS_CACHES: bool = true;

/// Bytes in a line, as a length in memory.
pub(super) const LINE: usize = 64;
/// How far ahead of the copy its source is prefetched: 16 lines, about what one core keeps in
/// flight. Twice that was no faster.
pub(super) const PREFETCH_BYTES: usize = 1024;
/// Bytes that are stored and then checked, where both are not one pass: few enough to be in the
/// caches still, so that the source is fetched from memory once.
const STORE_BLOCK_BYTES: usize = 8192;
/// Shorter runs are copied through the caches: their lines are shared with their neighbours.
const STREAM_BYTES_MIN: usize = 4 * LINE;

/// A block of payload in private memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Block(pub(super) [u8; BLOCK_BYTES]);

/// Copies between private memory and a mapping. They are complete, and in order with what this
/// thread does next, when it is dropped.
#[derive(Debug)]
pub(super) struct LineStream<'m> {
    mapping: &'m Mapping,
    wide: bool,
    /// Whether a copy and its checksum are one pass.
    checks: bool,
}

impl<'m> LineStream<'m> {
    pub(super) fn new(mapping: &'m Mapping) -> Self {
        Self { mapping, wide: is_x86_feature_detected!("avx512f"), checks: is_supported() }
    }

    /// Stores the whole lines `from` to `at`, and adds them to `checksum`.
    ///
    /// # Panics
    /// When the offset or the length is not one of whole lines inside the mapping.
    pub(super) fn store(&self, at_bytes: u64, from: &[u8], checksum: &mut RunningChecksum) {
        let to = self.lines_at(at_bytes, from.len());
        if self.checks {
            // SAFETY: `from` is a private slice of that many lines, `to` as many in the live
            // mapping, aligned (checked above); `checks` says that the processor can. The fence
            // comes when `self` is dropped.
            checksum.add_by(|state| unsafe {
                let lines = from.len() / LINE;
                copy_lines::<false, true>(from.as_ptr(), to, lines, usize::MAX, state)
            });
            return;
        }
        let blocks = from.chunks(STORE_BLOCK_BYTES).zip((0..).step_by(STORE_BLOCK_BYTES));
        for (block, at) in blocks {
            // SAFETY: as above, block by block.
            unsafe { self.stream(block.as_ptr(), to.wrapping_add(at), block.len() / LINE) };
            checksum.add(block);
        }
    }

    /// Loads `block` into the start of `to`, adds it to `checksum`, and prefetches what follows it
    /// up to `fenced_end_bytes`, an offset in the mapping: nothing further may be touched yet
    /// (MEM-M3). `false`, and nothing done, where that is not possible in one pass: blocks of whole
    /// lines have to come to a place that starts on a line.
    ///
    /// # Panics
    /// When the block does not start on a line, is longer than `to`, or its lines are not inside the
    /// mapping.
    pub(super) fn load_through(
        &self,
        block: Extent,
        fenced_end_bytes: u64,
        to: &mut [u8],
        checksum: &mut RunningChecksum,
    ) -> bool {
        let bytes = length(block.bytes());
        let to = &mut to[..bytes];
        let is_whole = bytes.is_multiple_of(LINE) && to.as_ptr().addr().is_multiple_of(LINE);
        if !self.checks || !is_whole {
            return false;
        }
        let from = self.lines_at(block.offset(), bytes).cast_const();
        let fenced = length(fenced_end_bytes.saturating_sub(block.offset()));
        // SAFETY: `bytes` bytes from an aligned start lie in the live mapping (checked above), and
        // fit into the private slice `to`, which is aligned; `checks` says that the processor can.
        // The fence comes when `self` is dropped.
        checksum.add_by(|state| unsafe {
            copy_lines::<true, true>(from, to.as_mut_ptr(), bytes / LINE, fenced, state)
        });
        true
    }

    /// Loads `block` into the start of `into`, adds it to `checksum`, and prefetches what follows it
    /// up to `fenced_end_bytes`, as [`load_through`](Self::load_through) does.
    ///
    /// # Panics
    /// When the block does not start on a line, is longer than `into`, or its lines are not inside
    /// the mapping.
    pub(super) fn load(
        &self,
        block: Extent,
        fenced_end_bytes: u64,
        into: &mut Block,
        checksum: &mut RunningChecksum,
    ) {
        let bytes = length(block.bytes()).next_multiple_of(LINE);
        assert!(bytes <= BLOCK_BYTES, "{block:?} is longer than a block");
        let from = self.lines_at(block.offset(), bytes).cast_const();
        let fenced = length(fenced_end_bytes.saturating_sub(block.offset()));
        let to = into.0.as_mut_ptr();
        if self.checks && length(block.bytes()) == bytes {
            // SAFETY: `bytes` bytes from an aligned start lie in the live mapping (checked above)
            // and fit into the aligned block; `checks` says that the processor can.
            checksum.add_by(|state| unsafe {
                copy_lines::<true, false>(from, to, bytes / LINE, fenced, state)
            });
            return;
        }
        if self.wide {
            // SAFETY: `bytes` bytes from an aligned start lie in the live mapping (checked above)
            // and fit into the aligned block; `wide` says that the processor has AVX-512.
            unsafe { avx512::load_lines(from, to, bytes / LINE, fenced) };
        } else {
            // SAFETY: as above; every x86-64 has SSE2.
            unsafe { sse2::load_lines(from, to, bytes / LINE, fenced) };
        }
        checksum.add(&into.0[..length(block.bytes())]);
    }

    /// Copies `from` to `to`, both private, around the caches where that is possible: the reader
    /// of a payload is seldom this core.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(super) fn spill(&self, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len(), "both sides of a copy");
        let head = to.as_ptr().align_offset(LINE);
        if to.len() < STREAM_BYTES_MIN + head {
            to.copy_from_slice(from);
            return;
        }
        let lines = (to.len() - head) / LINE;
        let tail = head + lines * LINE;
        to[..head].copy_from_slice(&from[..head]);
        to[tail..].copy_from_slice(&from[tail..]);
        let (from, to) = (from[head..tail].as_ptr(), to[head..tail].as_mut_ptr());
        // SAFETY: both are slices of that many lines, `to` starts on one, and being borrowed for
        // writing it does not overlap `from`.
        unsafe { self.stream(from, to, lines) };
    }

    /// Copies `lines` lines past the caches.
    ///
    /// # Safety
    /// `lines` lines can be read from `from`, which nobody writes meanwhile, and written to `to`,
    /// which is aligned to a line. They do not overlap.
    unsafe fn stream(&self, from: *const u8, to: *mut u8, lines: usize) {
        debug_assert!(to.addr().is_multiple_of(LINE));
        if self.wide {
            // SAFETY: the caller's, and `wide` says that the processor has AVX-512. The fence comes
            // when `self` is dropped.
            unsafe { avx512::stream_lines(from, to, lines) };
        } else {
            // SAFETY: as above; every x86-64 has SSE2.
            unsafe { sse2::stream_lines(from, to, lines) };
        }
    }

    /// What was copied so far is complete, and in order with what this thread does next.
    pub(super) fn order(&self) {
        // Non-temporal stores pass later stores, such as the one that hands a buffer to another
        // thread.
        // SAFETY: every x86-64 has it; it touches no memory of its own.
        unsafe { _mm_sfence() };
    }

    /// Address of `bytes` bytes of whole lines in the mapping.
    fn lines_at(&self, at_bytes: u64, bytes: usize) -> *mut u8 {
        let extent = Extent::new(at_bytes, bytes as u64);
        let address = extent.and_then(|extent| self.mapping.address(extent));
        let address = address.expect("the job was checked to lie in the mapping");
        let whole = address.addr().is_multiple_of(LINE) && bytes.is_multiple_of(LINE);
        assert!(whole, "{bytes} bytes at {at_bytes:#x} are not whole lines");
        address
    }
}

impl Drop for LineStream<'_> {
    fn drop(&mut self) {
        self.order();
    }
}

/// A distance inside the mapping.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("usize is 64 bits on x86-64")
}

macro_rules! line_kernels {
    ($width:ident, $feature:literal, $Vector:ident, $stream:ident) => {
        mod $width {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, $Vector, $stream};

            use super::{LINE, PREFETCH_BYTES};

            const VECTORS: usize = LINE / size_of::<$Vector>();

            /// Copies `lines` lines past the caches.
            ///
            /// # Safety
            /// `lines` lines can be read from `from`, which nobody writes meanwhile, and written to
            /// `to`, which is aligned to a line. They do not overlap. The processor has the feature
            /// of this kernel. A store fence follows before any host is told.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn stream_lines(from: *const u8, to: *mut u8, lines: usize) {
                for line in 0..lines {
                    let from = from.wrapping_add(line * LINE);
                    let to = to.wrapping_add(line * LINE).cast::<$Vector>();
                    // A prefetch never faults, also past the end of the source.
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_BYTES).cast());
                    let from = from.cast::<$Vector>();
                    for i in 0..VECTORS {
                        // SAFETY: inside the line, which the caller vouches for.
                        let vector = unsafe { from.wrapping_add(i).read_unaligned() };
                        // SAFETY: inside the line and aligned, which the caller vouches for.
                        unsafe { $stream(to.wrapping_add(i), vector) };
                    }
                }
            }

            /// Copies `lines` lines of shared memory, and prefetches beyond them as long as it is
            /// less than `fenced` bytes from `from`.
            ///
            /// # Safety
            /// `lines` lines can be read from `from` and written to `to`, both aligned to a line,
            /// `to` private. The processor has the feature of this kernel.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn load_lines(
                from: *const u8,
                to: *mut u8,
                lines: usize,
                fenced: usize,
            ) {
                for line in 0..lines {
                    let at = line * LINE;
                    let ahead = at + PREFETCH_BYTES;
                    if ahead < fenced {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead).cast());
                    }
                    let from = from.wrapping_add(at).cast::<$Vector>();
                    let to = to.wrapping_add(at).cast::<$Vector>();
                    for i in 0..VECTORS {
                        // Volatile: another process may write meanwhile, so each byte is read
                        // exactly once, and what was read is what is kept and checked.
                        // SAFETY: inside the line and aligned, which the caller vouches for.
                        let vector = unsafe { from.wrapping_add(i).read_volatile() };
                        // SAFETY: inside the private line and aligned, likewise.
                        unsafe { to.wrapping_add(i).write(vector) };
                    }
                }
            }
        }
    };
}

line_kernels!(sse2, "sse2", __m128i, _mm_stream_si128);
line_kernels!(avx512, "avx512f", __m512i, _mm512_stream_si512);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::Checksum;

    #[test]
    fn all_kernels_copy_the_same_bytes_and_give_their_checksum() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapping = Mapping::shared(&file, 8192).unwrap();
        let bytes: Vec<u8> = (0..=250).cycle().take(BLOCK_BYTES + 1).collect();
        let detected = is_x86_feature_detected!("avx512f");
        for (wide, checks) in [(false, false), (detected, false), (detected, is_supported())] {
            let stream = LineStream { mapping: &mapping, wide, checks };
            let [mut stored, mut loaded, mut through] = [(); 3].map(|()| RunningChecksum::new());
            // An odd source address, a partial last line, an odd destination.
            stream.store(4096, &bytes[1..], &mut stored);
            assert_eq!(stored.finish(), Checksum::of(&[&bytes[1..]]));
            let mut block = Block([0; BLOCK_BYTES]);
            let part = Extent::new(4096, 2000).unwrap();
            stream.load(part, 4096 + 2048, &mut block, &mut loaded);
            assert!(block.0[..2048] == bytes[1..2049], "whole lines are loaded");
            assert_eq!(loaded.finish(), Checksum::of(&[&bytes[1..2001]]));
            let mut out = vec![0; 2001];
            stream.spill(&block.0[..2000], &mut out[1..]);
            assert!(out[1..] == bytes[1..2001]);
            assert_eq!(out[0], 0);

            // In one pass, where that is possible.
            let mut block = Block([0; BLOCK_BYTES]);
            let whole = Extent::new(4096, 1984).unwrap();
            assert!(!stream.load_through(part, 8192, &mut block.0, &mut through));
            assert!(!stream.load_through(whole, 8192, &mut block.0[1..], &mut through));
            assert!(block.0 == [0; BLOCK_BYTES]);
            assert_eq!(stream.load_through(whole, 8192, &mut block.0, &mut through), checks);
            let expected = if checks { &bytes[1..1985] } else { &[] };
            assert!(block.0[..expected.len()] == *expected);
            assert!(block.0[expected.len()..].iter().all(|byte| *byte == 0));
            assert_eq!(through.finish(), Checksum::of(&[expected]));
            stream.store(4096, &[0; BLOCK_BYTES], &mut RunningChecksum::new());
        }
    }

    #[test]
    #[should_panic(expected = "are not whole lines")]
    fn part_of_a_line_is_not_stored() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mapping = Mapping::shared(&file, 4096).unwrap();
        LineStream::new(&mapping).store(0, &[1; 65], &mut RunningChecksum::new());
    }

    #[test]
    #[should_panic(expected = "lie in the mapping")]
    fn nothing_is_stored_outside_the_mapping() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mapping = Mapping::shared(&file, 4096).unwrap();
        LineStream::new(&mapping).store(4096, &[1; 64], &mut RunningChecksum::new());
    }
}
