//! How long a lookup waits for drives.

use std::time::Duration;

/// How long a lookup waits for blocks on drives, and what it would cost to compute them again.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// use rackline::RestoreOptions;
///
/// // Computing a block again takes 4 ms: a restore that takes longer is refused at once.
/// let restore = RestoreOptions::new(Duration::from_secs(2))
///     .with_recompute(Duration::from_millis(4));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreOptions {
    wait: Duration,
    recompute: Option<Duration>,
}

impl RestoreOptions {
    /// Waits for `wait` in all. Zero: drives are not asked.
    #[must_use]
    pub const fn new(wait: Duration) -> Self {
        Self { wait, recompute: None }
    }

    /// Computing one block again takes `block`. Agents refuse what would take longer to restore than
    /// to compute.
    #[must_use]
    pub fn with_recompute(self, block: Duration) -> Self {
        Self { recompute: Some(block), ..self }
    }

    /// Whether there is a wait at all.
    pub(crate) fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

    /// The wait in milliseconds, rounded up.
    pub(crate) fn wait_ms(&self) -> u32 {
        u32::try_from(self.wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
    }

    /// How long computing so many blocks takes, in milliseconds.
    pub(crate) fn recompute_ms(&self, blocks: usize) -> Option<u32> {
        let all = self.recompute?.as_nanos().saturating_mul(blocks as u128);
        Some(u32::try_from(all.div_ceil(1_000_000)).unwrap_or(u32::MAX).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_bounded() {
        let restore = RestoreOptions::new(Duration::from_micros(1500));
        assert_eq!((restore.wait_ms(), restore.recompute_ms(7)), (2, None));
        let restore = restore.with_recompute(Duration::from_micros(300));
        assert_eq!(restore.recompute_ms(10), Some(3));
        assert_eq!(restore.recompute_ms(0), Some(1));
        let forever = RestoreOptions::new(Duration::MAX).with_recompute(Duration::MAX);
        assert_eq!((forever.wait_ms(), forever.recompute_ms(2)), (u32::MAX, Some(u32::MAX)));
    }
}
