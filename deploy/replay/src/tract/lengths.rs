//! Lengths with a given mean and deviation.

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Gamma};

/// Mean and standard deviation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Moments {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

/// Steps in which lengths are moved and stretched: many more than they need.
const STEPS: usize = 200;

/// Numbers of a gamma distribution with these moments.
///
/// # Panics
/// Never: the moments are those of a workload, and above 0.
pub(super) fn drawn(moments: &Moments, count: usize, random: &mut ChaCha8Rng) -> Vec<f64> {
    let scale = moments.deviation.powi(2) / moments.mean;
    let gamma = Gamma::new(moments.mean / scale, scale).expect("moments above 0");
    (0..count).map(|_| gamma.sample(random)).collect()
}

/// Moves and stretches numbers, of which none becomes less than `least`, until they have the moments.
/// Each counts as often as its weight says (TRACE-T3).
pub(super) fn fitted(
    mut numbers: Vec<f64>,
    weights: &[u64],
    wanted: &Moments,
    least: f64,
) -> Vec<f64> {
    for _ in 0..STEPS {
        let now = moments_of(&numbers, weights);
        let stretch = if now.deviation > 0.0 { wanted.deviation / now.deviation } else { 1.0 };
        for number in &mut numbers {
            *number = ((*number - now.mean) * stretch + wanted.mean).max(least);
        }
    }
    numbers
}

/// The moments of numbers that have weights.
#[expect(clippy::cast_precision_loss, reason = "weights are numbers of requests")]
pub(super) fn moments_of(numbers: &[f64], weights: &[u64]) -> Moments {
    let each = || numbers.iter().zip(weights).map(|(number, weight)| (*number, *weight as f64));
    let all: f64 = each().map(|(_, weight)| weight).sum();
    let mean = each().map(|(number, weight)| number * weight).sum::<f64>() / all;
    let variance =
        each().map(|(number, weight)| (number - mean).powi(2) * weight).sum::<f64>() / all;
    Moments { mean, deviation: variance.sqrt() }
}

/// The nearest whole number, of one that is not below 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths and times are far below 2^52"
)]
pub(super) fn whole(number: f64) -> u64 {
    number.round().max(0.0) as u64
}
