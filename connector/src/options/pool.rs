//! How a process keeps its node's part of a pool.

use kv_cache::{Namespace, QUOTAS_MAX, Quota, Watermarks};

use super::{OptionsError, QUOTA_BYTES_MAX};

/// How a process keeps its node's part of a pool.
///
/// # Example
/// ```
/// use rackline::{Namespace, PoolOptions, Quota, Watermarks};
///
/// let options = PoolOptions::new()
///     .with_watermarks(Watermarks::new(90, 80)?)
///     .with_quota(Namespace::new("tenant", b""), Quota::Bytes(64 << 30));
/// options.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    watermarks: Watermarks,
    quotas: Vec<(Namespace, Quota)>,
}

impl PoolOptions {
    /// The usual watermarks, and no quota.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Evicts blocks in the background between these levels of use.
    #[must_use]
    pub fn with_watermarks(self, watermarks: Watermarks) -> Self {
        Self { watermarks, ..self }
    }

    /// Limits how much of this node's payload a namespace may keep when room is short. A quota
    /// holds for all processes of the host, until another process sets a different one.
    #[must_use]
    pub fn with_quota(mut self, namespace: Namespace, quota: Quota) -> Self {
        self.quotas.push((namespace, quota));
        self
    }

    /// The levels between which blocks are evicted.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        self.watermarks
    }

    /// The quotas.
    #[must_use]
    pub fn quotas(&self) -> &[(Namespace, Quota)] {
        &self.quotas
    }

    /// Refuses options that attaching would refuse.
    ///
    /// # Errors
    /// [`OptionsError`].
    pub fn check(&self) -> Result<(), OptionsError> {
        if self.quotas.len() > QUOTAS_MAX {
            return Err(OptionsError::Quotas(self.quotas.len()));
        }
        for (index, (namespace, quota)) in self.quotas.iter().enumerate() {
            if self.quotas[..index].iter().any(|(other, _)| other == namespace) {
                return Err(OptionsError::SameNamespace(index));
            }
            let tag = |(namespace, _): &(Namespace, Quota)| namespace.tag();
            let same = |other: &(Namespace, Quota)| tag(other) == namespace.tag();
            if let Some(first) = self.quotas[..index].iter().position(same) {
                return Err(OptionsError::SameTag { first, second: index });
            }
            match *quota {
                Quota::Percent(percent) if percent > 100 => {
                    return Err(OptionsError::Percent { index, percent });
                }
                Quota::Bytes(bytes) if bytes > QUOTA_BYTES_MAX => {
                    return Err(OptionsError::Bytes { index, bytes });
                }
                Quota::Percent(_) | Quota::Bytes(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_quotas(quotas: &[(Namespace, Quota)]) -> PoolOptions {
        let add = |options: PoolOptions, (namespace, quota): &(Namespace, Quota)| {
            options.with_quota(*namespace, *quota)
        };
        quotas.iter().fold(PoolOptions::new(), add)
    }

    #[test]
    fn quotas_that_would_hold_for_one_another_are_refused() {
        let [first, second] = ["tenant-470", "tenant-546"].map(|name| Namespace::new(name, b""));
        assert!(first != second && first.tag() == second.tag(), "their tags are equal");
        let other = (Namespace::new("a", b""), Quota::Bytes(1));
        let options = with_quotas(&[other, (first, Quota::Bytes(1)), (second, Quota::Bytes(2))]);
        assert_eq!(options.check(), Err(OptionsError::SameTag { first: 1, second: 2 }));
    }

    #[test]
    fn quotas_out_of_range_are_refused() {
        PoolOptions::new().check().unwrap();
        let (a, b) = (Namespace::new("a", b""), Namespace::new("b", b""));
        with_quotas(&[(a, Quota::Percent(100)), (b, Quota::Bytes(QUOTA_BYTES_MAX))])
            .check()
            .unwrap();
        for (quotas, error) in [
            ([(a, Quota::Bytes(1)), (a, Quota::Bytes(2))], OptionsError::SameNamespace(1)),
            (
                [(a, Quota::Percent(101)), (b, Quota::Bytes(1))],
                OptionsError::Percent { index: 0, percent: 101 },
            ),
            (
                [(b, Quota::Bytes(1)), (a, Quota::Bytes(1 << 63))],
                OptionsError::Bytes { index: 1, bytes: 1 << 63 },
            ),
        ] {
            assert_eq!(with_quotas(&quotas).check(), Err(error));
        }
        let many = (0..=QUOTAS_MAX).map(|number| Namespace::new(&number.to_string(), b""));
        let many: Vec<_> = many.map(|namespace| (namespace, Quota::Bytes(1))).collect();
        assert_eq!(with_quotas(&many).check(), Err(OptionsError::Quotas(QUOTAS_MAX + 1)));
    }
}
