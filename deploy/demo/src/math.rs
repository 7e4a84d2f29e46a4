//! Element-wise arithmetic of the decoder. Every sum has an order that depends on positions alone.

/// Partial sums kept side by side: wide enough for the vector units, fixed so that a sum has one
/// order.
const LANES: usize = 8;

/// Below this, `exp` is zero: the smallest results would be subnormal.
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 88.0;

/// e to the `x`, within 2 units in the last place; exactly zero below -87.
///
/// Not the C library's: this one is vectorised by the compiler, and gives the same bits whatever
/// library the machine has.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to a whole number that then stands in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    // ln 2 in two parts, the first exact in few bits, so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;

    let clamped = if x < EXP_MIN { EXP_MIN } else { x };
    let clamped = if clamped > EXP_MAX { EXP_MAX } else { clamped };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUNDER;
    let n = rounded - ROUNDER;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    let exponent = rounded.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(exponent << 23);
    if x < EXP_MIN { 0.0 } else { p * scale }
}

/// RMS normalisation of one row into the front of `out`; what `out` has beyond the row stays.
pub(crate) fn rms_norm(row: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let mut sums = [0.0f32; LANES];
    for values in row.chunks(LANES) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value * value;
        }
    }
    let mean = sums.iter().sum::<f32>() / row.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
        *out = value * scale * weight;
    }
}

/// `out = silu(gate) * up` for one row.
pub(crate) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

/// The largest of `values`.
pub(crate) fn max(values: &[f32]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    for values in values.chunks(LANES) {
        for (largest, value) in largest.iter_mut().zip(values) {
            *largest = if *value > *largest { *value } else { *largest };
        }
    }
    largest.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Replaces each score by `exp((score - max) * scale)` and returns their sum. A score of minus
/// infinity becomes an exact zero, which leaves the sum as it would be without it.
pub(crate) fn exp_scores(scores: &mut [f32], max: f32, scale: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    for scores in scores.chunks_mut(LANES) {
        for (sum, score) in sums.iter_mut().zip(scores) {
            *score = exp((*score - max) * scale);
            *sum += *score;
        }
    }
    sums.iter().sum()
}

/// `a += b`.
pub(crate) fn add(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_librarys() {
        for step in -870_000..=870_000 {
            let x = step as f32 * 1e-4;
            let (got, expected) = (exp(x), f64::from(x).exp());
            let error = (f64::from(got) - expected).abs() / expected;
            assert!(error < 2.4e-7, "exp({x}) = {got}, expected {expected}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-90.0), 0.0);
        assert!(exp(1000.0).is_finite());
    }

    #[test]
    fn a_masked_tail_leaves_a_sum_bit_for_bit() {
        let scores: Vec<f32> = (0..100).map(|at| (at as f32 * 0.73).sin() * 9.0).collect();
        let mut short = scores.clone();
        short.resize(104, f32::NEG_INFINITY);
        let mut long = scores;
        long.resize(256, f32::NEG_INFINITY);
        let (a, b) = (exp_scores(&mut short, 9.0, 0.5), exp_scores(&mut long, 9.0, 0.5));
        assert_eq!(a.to_bits(), b.to_bits());
        assert!(long[100..].iter().all(|&weight| weight == 0.0));
    }

    #[test]
    fn norm_and_gate_are_what_they_say() {
        let row = [3.0, -4.0];
        let mut out = [9.0; 3];
        rms_norm(&row, &[1.0, 2.0], 0.0, &mut out);
        let rms = 12.5f32.sqrt();
        assert!((out[0] - 3.0 / rms).abs() < 1e-6 && (out[1] + 8.0 / rms).abs() < 1e-6);
        assert_eq!(out[2], 9.0);

        let mut out = [0.0; 2];
        silu_mul(&[1.0, -2.0], &[2.0, 1.0], &mut out);
        assert!((out[0] - 1.462_117).abs() < 1e-5 && (out[1] + 0.238_406).abs() < 1e-5);
        assert_eq!(max(&[-3.0, -1.0, -2.0]), -1.0);
    }
}
