//! Numbers that do not round. Where 128 bits are not enough, numbers of any length go on.

use num_bigint::BigUint;

/// A natural number that is exact, or says that it cannot be.
pub(super) trait Exact: Clone + Ord + Sized {
    /// The number itself.
    fn of(number: u64) -> Self;
    /// The sum; `None` where the type has no room for it.
    fn plus(&self, other: &Self) -> Option<Self>;
    /// The difference from a number that is not larger.
    fn minus(&self, other: &Self) -> Self;
    /// The product; `None` where the type has no room for it.
    fn times(&self, factor: u64) -> Option<Self>;
    /// The remainder.
    fn modulo(&self, divisor: u64) -> u64;
    /// The quotient, rounded down.
    fn over(&self, divisor: u64) -> Self;
    /// As a number of any length.
    fn big(&self) -> BigUint;
}

impl Exact for u128 {
    fn of(number: u64) -> Self {
        number.into()
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        self.checked_add(*other)
    }

    fn minus(&self, other: &Self) -> Self {
        self - other
    }

    fn times(&self, factor: u64) -> Option<Self> {
        self.checked_mul(factor.into())
    }

    fn modulo(&self, divisor: u64) -> u64 {
        // A remainder is smaller than its divisor.
        u64::try_from(self % Self::from(divisor)).unwrap_or_default()
    }

    fn over(&self, divisor: u64) -> Self {
        self / Self::from(divisor)
    }

    fn big(&self) -> BigUint {
        (*self).into()
    }
}

impl Exact for BigUint {
    fn of(number: u64) -> Self {
        number.into()
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        Some(self + other)
    }

    fn minus(&self, other: &Self) -> Self {
        self - other
    }

    fn times(&self, factor: u64) -> Option<Self> {
        Some(self * factor)
    }

    fn modulo(&self, divisor: u64) -> u64 {
        u64::try_from(self % divisor).unwrap_or_default()
    }

    fn over(&self, divisor: u64) -> Self {
        self / divisor
    }

    fn big(&self) -> BigUint {
        self.clone()
    }
}

/// The greatest common divisor.
pub(super) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
