//! Copying whole lines and computing their CRC-32C in the same pass, on x86-64 with AVX-512 and
//! VPCLMULQDQ.
//!
//! A copy waits for memory. A checksum of each few kilobytes after their copy delays the next
//! requests to the memory. A checksum from the registers of the copy does not.
//!
//! The method is that of V. Gopal et al., *Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ Instruction*, Intel, 2009. Of 128 bits that lie D bits before other bits, the upper
//! half times x^(D+64) and the lower half times x^D, modulo the polynomial, have the same
//! remainder where the other bits are, and are added to them. The constants are one power lower,
//! since a product of reflected numbers comes out shifted by one bit.
#![expect(unsafe_code, reason = "copies from and to memory that other processes write")]

use core::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_crc32_u64, _mm_prefetch, _mm512_clmulepi64_epi128, _mm512_set_epi64,
    _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use super::host_copy_x86_64::{LINE, PREFETCH_BYTES};

/// Lines that are folded side by side. A single line would wait for its own multiplications.
const SIDE_BY_SIDE: usize = 4;
const LINE_BITS: usize = 8 * LINE;
/// The vector operation a ^ b ^ c.
const XOR_OF_THREE: i32 = 0x96;

/// Whether this processor has the instructions that [`copy_lines`] needs.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// Copies `lines` lines, and returns the state of the CRC-32C after them, `state` being that before
/// them. Prefetches lines of the source that lie less than `prefetchable` bytes from `from`.
///
/// `SHARED_SOURCE`: other processes may write the source meanwhile. Each byte is read exactly once:
/// the bytes that are copied are the bytes that are checked. `PAST_CACHES`: the stores go around the
/// caches, and the caller orders them.
///
/// # Safety
/// `lines` lines can be read from `from` and written to `to`, which is aligned to a line. They do not
/// overlap. Nobody else accesses the target. With `SHARED_SOURCE` the source is aligned to a line;
/// without, nobody writes it meanwhile. [`is_supported`] said yes.
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
pub(super) unsafe fn copy_lines<const SHARED_SOURCE: bool, const PAST_CACHES: bool>(
    from: *const u8,
    to: *mut u8,
    lines: usize,
    prefetchable: usize,
    state: u32,
) -> u32 {
    if lines == 0 {
        return state;
    }
    let copy = |line: usize| {
        let at = line * LINE;
        if at + PREFETCH_BYTES < prefetchable {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + PREFETCH_BYTES).cast());
        }
        let from = from.wrapping_add(at).cast::<__m512i>();
        let vector = if SHARED_SOURCE {
            // SAFETY: a line of the source, aligned, which the caller vouches for. Volatile:
            // another process may write meanwhile, and the line is read once.
            unsafe { from.read_volatile() }
        } else {
            // SAFETY: a line of the source, which the caller vouches for.
            unsafe { from.read_unaligned() }
        };
        let to = to.wrapping_add(at).cast::<__m512i>();
        if PAST_CACHES {
            // SAFETY: a line of the target, aligned, which the caller vouches for.
            unsafe { _mm512_stream_si512(to, vector) };
        } else {
            // SAFETY: as above.
            unsafe { to.write(vector) };
        }
        vector
    };
    let first = _mm512_xor_si512(copy(0), _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, i64::from(state)));
    let (mut folded, mut line) = (first, 1);
    if lines >= SIDE_BY_SIDE {
        let [mut a, mut b, mut c, mut d] = [first, copy(1), copy(2), copy(3)];
        line = SIDE_BY_SIDE;
        let far = const { Fold::by(SIDE_BY_SIDE * LINE_BITS) };
        while line + SIDE_BY_SIDE <= lines {
            a = fold(a, far, copy(line));
            b = fold(b, far, copy(line + 1));
            c = fold(c, far, copy(line + 2));
            d = fold(d, far, copy(line + 3));
            line += SIDE_BY_SIDE;
        }
        let (two, one) = const { (Fold::by(2 * LINE_BITS), Fold::by(LINE_BITS)) };
        folded = fold(fold(a, two, c), one, fold(b, two, d));
    }
    while line < lines {
        folded = fold(folded, const { Fold::by(LINE_BITS) }, copy(line));
        line += 1;
    }
    state_of(folded)
}

/// `before` as it counts where `after` lies, and `after`.
///
/// # Safety
/// The processor has these features.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(before: __m512i, by: Fold, after: __m512i) -> __m512i {
    let Fold { upper, lower } = by;
    let by = _mm512_set_epi64(lower, upper, lower, upper, lower, upper, lower, upper);
    let upper = _mm512_clmulepi64_epi128::<0x00>(before, by);
    let lower = _mm512_clmulepi64_epi128::<0x11>(before, by);
    _mm512_ternarylogic_epi64::<XOR_OF_THREE>(upper, lower, after)
}

/// The state of the CRC after the bytes of a line before which the state was 0.
///
/// # Safety
/// The processor has these features.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn state_of(line: __m512i) -> u32 {
    // SAFETY: both are 64 bytes without padding, and any bits are valid.
    let words = unsafe { core::mem::transmute::<__m512i, [u64; LINE / 8]>(line) };
    let state = words.into_iter().fold(0, |state, word| _mm_crc32_u64(state, word));
    // The instruction leaves the upper half empty.
    #[expect(clippy::cast_possible_truncation, reason = "a CRC-32 has 32 bits")]
    let state = state as u32;
    state
}

/// What brings 128 bits over a distance.
#[derive(Clone, Copy)]
struct Fold {
    /// For the half with the higher powers, which lies at the lower address.
    upper: i64,
    lower: i64,
}

impl Fold {
    /// Over `bits` bits, of which there are at least 128.
    const fn by(bits: usize) -> Self {
        Self { upper: reflected_power(bits + 31), lower: reflected_power(bits - 33) }
    }
}

/// x to the power of `exponent` modulo the polynomial of CRC-32C, bit 31 being x^0.
const fn reflected_power(exponent: usize) -> i64 {
    /// The polynomial without x^32.
    const CASTAGNOLI: u32 = 0x82f6_3b78;
    let (mut power, mut step) = (1_u32 << 31, 0);
    while step < exponent {
        let over = power & 1 != 0;
        power >>= 1;
        if over {
            power ^= CASTAGNOLI;
        }
        step += 1;
    }
    power as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc_fast::{CrcAlgorithm, Digest};

    #[test]
    fn folding_gives_the_checksum_of_any_number_of_lines() {
        if !is_supported() {
            return;
        }
        let bytes: Vec<u8> = (1_u32..)
            .flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes())
            .take(70 * LINE + 1)
            .collect();
        let mut target = vec![0_u8; 71 * LINE];
        let to = target.as_ptr().align_offset(LINE);
        for lines in 0..70 {
            for state in [0, 1, 0x8000_0000, u32::MAX] {
                let from = &bytes[1..=lines * LINE];
                let mut digest =
                    Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state.into());
                digest.update(from);
                // SAFETY: both slices have that many lines; the target starts on a line.
                let found = unsafe {
                    copy_lines::<false, true>(
                        from.as_ptr(),
                        target[to..].as_mut_ptr(),
                        lines,
                        0,
                        state,
                    )
                };
                assert_eq!(u64::from(found), digest.get_state(), "{lines} lines");
                assert_eq!(target[to..][..from.len()], *from);
            }
        }
    }

    #[test]
    fn constants_are_those_of_the_literature() {
        // crc_fast, and https://github.com/corsix/fast-crc32, for 512 and 128 bits.
        let Fold { upper, lower } = Fold::by(512);
        assert_eq!((upper, lower), (0x740e_ef02, 0x9e4a_ddf8));
        let Fold { upper, lower } = Fold::by(128);
        assert_eq!((upper, lower), (0xf20c_0dfe, 0x493c_7d27));
    }
}
