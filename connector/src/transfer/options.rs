//! How a process transfers, checked.

use kv_cache::evict::{QUOTAS_MAX, Quota};

use crate::pool::PoolOptions;

/// Threads that copy at most.
pub const COPY_THREADS_MAX: usize = 64;
/// Transfers that wait in each queue at most.
pub const QUEUE_DEPTH_MAX: usize = 1 << 20;
/// Bytes of a quota at most.
pub const QUOTA_BYTES_MAX: u64 = (1 << 63) - 1;

/// How a process transfers.
#[derive(Clone, Debug)]
pub struct TransferOptions {
    /// How its node's part of the pool is kept.
    pub pool: PoolOptions,
    /// Threads that copy, from 1 to [`COPY_THREADS_MAX`]. One fills most of what a processor can
    /// copy.
    pub copy_threads: usize,
    /// Threads beside them that take fetches only, at most [`COPY_THREADS_MAX`]. A publish may wait:
    /// for other hosts when its node needs memory, for the work of the engine's stream when it
    /// publishes from a GPU. With none of these threads fetches wait behind it.
    pub fetch_threads: usize,
    /// Transfers that wait in each queue at most, from 1 to [`QUEUE_DEPTH_MAX`].
    pub queue_depth: usize,
    /// Whether blocks are published by layers: that takes a thread more, which works on one such publish
    /// at a time.
    pub publishes_by_layers: bool,
}

impl Default for TransferOptions {
    /// One thread, another for fetches only, queues of 256, nothing published by layers.
    fn default() -> Self {
        Self {
            pool: PoolOptions::default(),
            copy_threads: 1,
            fetch_threads: 1,
            queue_depth: 256,
            publishes_by_layers: false,
        }
    }
}

/// Options that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionsError {
    /// No thread that copies, or too many.
    #[error("copy_threads is {0}: it must be from 1 to {COPY_THREADS_MAX}")]
    CopyThreads(usize),
    /// Too many threads that fetch.
    #[error("fetch_threads is {0}: {COPY_THREADS_MAX} at most")]
    FetchThreads(usize),
    /// A queue without room, or with too much.
    #[error("queue_depth is {0}: it must be from 1 to {QUEUE_DEPTH_MAX}")]
    QueueDepth(usize),
    /// More namespaces with quotas than a host has room for.
    #[error("quotas for {0} namespaces: {QUOTAS_MAX} at most")]
    Quotas(usize),
    /// A namespace has two quotas.
    #[error("quota {0} is for a namespace that has one already")]
    SameNamespace(usize),
    /// A share of more than everything.
    #[error("quota {index} has per_mille {per_mille}: 1000 at most")]
    PerMille {
        /// Which quota, from 0.
        index: usize,
        /// Its share.
        per_mille: u16,
    },
    /// A quota of more bytes than can be.
    #[error("quota {index} has {bytes} bytes: {QUOTA_BYTES_MAX} at most")]
    Bytes {
        /// Which quota, from 0.
        index: usize,
        /// Its bytes.
        bytes: u64,
    },
}

impl TransferOptions {
    /// Refuses options that cannot be, as attaching does.
    ///
    /// # Errors
    /// [`OptionsError`].
    pub fn check(&self) -> Result<(), OptionsError> {
        if !(1..=COPY_THREADS_MAX).contains(&self.copy_threads) {
            return Err(OptionsError::CopyThreads(self.copy_threads));
        }
        if self.fetch_threads > COPY_THREADS_MAX {
            return Err(OptionsError::FetchThreads(self.fetch_threads));
        }
        if !(1..=QUEUE_DEPTH_MAX).contains(&self.queue_depth) {
            return Err(OptionsError::QueueDepth(self.queue_depth));
        }
        let quotas = &self.pool.quotas;
        if quotas.len() > QUOTAS_MAX {
            return Err(OptionsError::Quotas(quotas.len()));
        }
        for (index, (namespace, quota)) in quotas.iter().enumerate() {
            if quotas[..index].iter().any(|(other, _)| other == namespace) {
                return Err(OptionsError::SameNamespace(index));
            }
            match *quota {
                Quota::PerMille(per_mille) if per_mille > 1000 => {
                    return Err(OptionsError::PerMille { index, per_mille });
                }
                Quota::Bytes(bytes) if bytes > QUOTA_BYTES_MAX => {
                    return Err(OptionsError::Bytes { index, bytes });
                }
                Quota::PerMille(_) | Quota::Bytes(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kv_cache::Namespace;

    use super::*;

    fn with_quotas(quotas: Vec<(Namespace, Quota)>) -> TransferOptions {
        let pool = PoolOptions { quotas, ..PoolOptions::default() };
        TransferOptions { pool, ..TransferOptions::default() }
    }

    #[test]
    fn options_that_cannot_be_are_refused() {
        TransferOptions::default().check().unwrap();
        for copy_threads in [0, COPY_THREADS_MAX + 1] {
            let options = TransferOptions { copy_threads, ..TransferOptions::default() };
            assert_eq!(options.check(), Err(OptionsError::CopyThreads(copy_threads)));
        }
        let options = TransferOptions { fetch_threads: 65, ..TransferOptions::default() };
        assert_eq!(options.check(), Err(OptionsError::FetchThreads(65)));
        for queue_depth in [0, QUEUE_DEPTH_MAX + 1] {
            let options = TransferOptions { queue_depth, ..TransferOptions::default() };
            assert_eq!(options.check(), Err(OptionsError::QueueDepth(queue_depth)));
        }
        let (a, b) = (Namespace::new("a", b""), Namespace::new("b", b""));
        with_quotas(vec![(a, Quota::PerMille(1000)), (b, Quota::Bytes(QUOTA_BYTES_MAX))])
            .check()
            .unwrap();
        for (quotas, error) in [
            (vec![(a, Quota::Bytes(1)), (a, Quota::Bytes(2))], OptionsError::SameNamespace(1)),
            (
                vec![(a, Quota::PerMille(1001))],
                OptionsError::PerMille { index: 0, per_mille: 1001 },
            ),
            (
                vec![(b, Quota::Bytes(1)), (a, Quota::Bytes(1 << 63))],
                OptionsError::Bytes { index: 1, bytes: 1 << 63 },
            ),
        ] {
            assert_eq!(with_quotas(quotas).check(), Err(error));
        }
        let many = (0..=QUOTAS_MAX).map(|number| Namespace::new(&number.to_string(), b""));
        let many = many.map(|namespace| (namespace, Quota::Bytes(1))).collect();
        assert_eq!(with_quotas(many).check(), Err(OptionsError::Quotas(QUOTAS_MAX + 1)));
    }
}
