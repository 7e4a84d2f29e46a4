//! The one source of chance: small, seeded, and the same on every machine.

/// A SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014). Not for cryptography.
///
/// # Example
/// ```
/// use cxl_shm::verify::simulated::Random;
///
/// let (mut one, mut other) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next_u64(), other.next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator whose every answer follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 evenly distributed bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is below 2^-32 for every bound a simulation asks for.
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// True once in `times` on average; never when `times` is 0.
    pub fn one_in(&mut self, times: u32) -> bool {
        times != 0 && self.below(u64::from(times)) == 0
    }

    /// A number up to and including `max` whose order of magnitude is evenly distributed: short
    /// and long delays are tried equally often.
    pub fn magnitude(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(u64::BITS - max.leading_zeros()) + 1);
        // Numbers of at most `bits` bits; a shift by all 64 leaves none.
        let mask = u64::MAX.checked_shr(u32::try_from(64 - bits).unwrap_or(0)).unwrap_or(0);
        (self.next_u64() & mask).min(max)
    }

    /// An index into something of `len` elements; `None` when there are none.
    pub fn index(&mut self, len: usize) -> Option<usize> {
        if len == 0 {
            return None;
        }
        usize::try_from(self.below(len as u64)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_stay_in_range_and_reach_both_ends() {
        let mut random = Random::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.index(5).unwrap()] = true;
            assert!(random.magnitude(1000) <= 1000);
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!((random.index(0), random.below(0), random.one_in(0)), (None, 0, false));
        assert!((0..2000).any(|_| random.magnitude(1000) == 1000), "the largest is reachable");
        assert!((0..2000).any(|_| random.magnitude(u64::MAX) > u64::MAX / 2));
    }
}
