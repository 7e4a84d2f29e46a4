//! Times between whole numbers and floats.

/// The nearest whole number.
pub(crate) fn whole(number: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates, and no time is below 0"
    )]
    let whole = number.round() as u64;
    whole
}

#[expect(clippy::cast_precision_loss, reason = "times are far below 2^52 ns")]
/// Nanoseconds as a float.
pub(crate) const fn ns(ns: u64) -> f64 {
    ns as f64
}
