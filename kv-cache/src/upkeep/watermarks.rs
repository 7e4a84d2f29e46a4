//! Between which levels of use a node is kept.

/// Between which levels of use a node's payload and its descriptors are kept, in percent.
///
/// Evicting begins above the high one and ends at the low one: of payload only when the region has
/// no free chunk left, of descriptors in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    high_percent: u16,
    low_percent: u16,
}

impl Default for Watermarks {
    /// 95 and 90.
    fn default() -> Self {
        Self { high_percent: 95, low_percent: 90 }
    }
}

/// Watermarks out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "watermarks of {high_percent} and {low_percent} percent: the high watermark must be at \
     most 100, and the low one at least 1 and below the high one"
)]
pub struct WatermarkError {
    /// The high one asked for.
    pub high_percent: u16,
    /// The low one asked for.
    pub low_percent: u16,
}

impl Watermarks {
    /// Checked watermarks, in percent.
    ///
    /// # Errors
    /// [`WatermarkError`].
    pub fn new(high_percent: u16, low_percent: u16) -> Result<Self, WatermarkError> {
        if high_percent > 100 || low_percent == 0 || low_percent >= high_percent {
            return Err(WatermarkError { high_percent, low_percent });
        }
        Ok(Self { high_percent, low_percent })
    }

    /// Checked watermarks, in percent; what is not chosen is as in the default ones.
    ///
    /// # Errors
    /// [`WatermarkError`].
    pub fn of_chosen(
        high_percent: Option<u16>,
        low_percent: Option<u16>,
    ) -> Result<Self, WatermarkError> {
        let usual = Self::default();
        Self::new(
            high_percent.unwrap_or(usual.high_percent),
            low_percent.unwrap_or(usual.low_percent),
        )
    }

    /// Whether so many of `most` are used that eviction begins.
    #[must_use]
    pub fn is_above(self, used: u64, most: u64) -> bool {
        used * 100 > u64::from(self.high_percent) * most
    }

    /// How many of `used` out of `most` are to go, once eviction has begun.
    #[must_use]
    pub fn surplus(self, used: u64, most: u64) -> u64 {
        used.saturating_sub(u64::from(self.low_percent) * most / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_below_the_high_watermark_and_then_down_to_the_low_one() {
        let marks = Watermarks::new(90, 70).unwrap();
        assert!(!marks.is_above(0, 0) && !marks.is_above(90, 100) && marks.is_above(91, 100));
        assert_eq!((marks.surplus(91, 100), marks.surplus(100, 100)), (21, 30));
        assert_eq!(
            (marks.surplus(71, 100), marks.surplus(70, 100), marks.surplus(3, 100)),
            (1, 0, 0)
        );
        let usual = Watermarks::default();
        assert!(usual.is_above(8, 8));
        assert_eq!(usual.surplus(8, 8), 1, "a slot is kept free in small pools");
    }

    #[test]
    fn impossible_watermarks_are_refused() {
        for (high, low) in [(101, 90), (90, 90), (90, 0), (0, 0)] {
            assert!(Watermarks::new(high, low).is_err());
        }
    }
}
