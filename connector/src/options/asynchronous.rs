//! How a process works for sessions that do not wait.

use super::{COPY_THREADS_MAX, OptionsError, PoolOptions, QUEUE_DEPTH_MAX};

/// How a process works for sessions that do not wait.
#[derive(Clone, Debug)]
pub struct AsyncOptions {
    pool: PoolOptions,
    copy_threads: usize,
    fetch_threads: usize,
    queue_depth: usize,
    publishes_by_layers: bool,
    binds_threads: bool,
}

impl Default for AsyncOptions {
    /// One thread that copies, another for fetches only, both bound, queues of 256, no publishes by
    /// layers.
    fn default() -> Self {
        Self {
            pool: PoolOptions::new(),
            copy_threads: 1,
            fetch_threads: 1,
            queue_depth: 256,
            publishes_by_layers: false,
            binds_threads: true,
        }
    }
}

impl AsyncOptions {
    /// One thread that copies, another for fetches only, both bound, queues of 256, no publishes by
    /// layers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How the node's part of the pool is kept.
    #[must_use]
    pub fn with_pool(self, pool: PoolOptions) -> Self {
        Self { pool, ..self }
    }

    /// Threads that copy, from 1 to [`COPY_THREADS_MAX`]. They share the pieces of each transfer, a few
    /// megabytes at a time. One core copies 5 to 10 GB/s of DRAM and 2 to 5 GB/s of CXL memory, so a
    /// single process fills a CXL device with 4 to 8 threads. The 8 ranks of an engine are 8 processes,
    /// which fill it with a thread each.
    #[must_use]
    pub fn with_copy_threads(self, copy_threads: usize) -> Self {
        Self { copy_threads, ..self }
    }

    /// Threads beside those that take fetches only, at most [`COPY_THREADS_MAX`]. A publish may
    /// wait: for other hosts when its node needs memory, and for the engine's stream when it
    /// publishes from a GPU. With 0 of these threads, fetches wait behind such a publish.
    #[must_use]
    pub fn with_fetch_threads(self, fetch_threads: usize) -> Self {
        Self { fetch_threads, ..self }
    }

    /// Most transfers that wait in each queue, from 1 to [`QUEUE_DEPTH_MAX`].
    #[must_use]
    pub fn with_queue_depth(self, queue_depth: usize) -> Self {
        Self { queue_depth, ..self }
    }

    /// Whether blocks are published by layers. That takes one thread more, which works on one such
    /// publish at a time.
    #[must_use]
    pub fn with_publishes_by_layers(self, publishes_by_layers: bool) -> Self {
        Self { publishes_by_layers, ..self }
    }

    /// Whether threads that copy are bound to the CPUs nearest to the pool's memory, as far as the
    /// process may use these. By default they are. Where all CPUs are as near, this changes nothing.
    /// The log says at start what they are bound to.
    #[must_use]
    pub fn with_bound_threads(self, binds_threads: bool) -> Self {
        Self { binds_threads, ..self }
    }

    pub(crate) fn binds_threads(&self) -> bool {
        self.binds_threads
    }

    pub(crate) fn pool(&self) -> &PoolOptions {
        &self.pool
    }

    pub(crate) fn copy_threads(&self) -> usize {
        self.copy_threads
    }

    pub(crate) fn fetch_threads(&self) -> usize {
        self.fetch_threads
    }

    pub(crate) fn queue_depth(&self) -> usize {
        self.queue_depth
    }

    pub(crate) fn publishes_by_layers(&self) -> bool {
        self.publishes_by_layers
    }

    /// Refuses options that attaching would refuse.
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
        self.pool.check()
    }
}

#[cfg(test)]
mod tests {
    use kv_cache::{Namespace, Quota};

    use super::*;

    #[test]
    fn options_out_of_range_are_refused() {
        AsyncOptions::new().check().unwrap();
        for threads in [0, COPY_THREADS_MAX + 1] {
            let options = AsyncOptions::new().with_copy_threads(threads);
            assert_eq!(options.check(), Err(OptionsError::CopyThreads(threads)));
        }
        let options = AsyncOptions::new().with_fetch_threads(65);
        assert_eq!(options.check(), Err(OptionsError::FetchThreads(65)));
        for depth in [0, QUEUE_DEPTH_MAX + 1] {
            let options = AsyncOptions::new().with_queue_depth(depth);
            assert_eq!(options.check(), Err(OptionsError::QueueDepth(depth)));
        }
        let pool = PoolOptions::new().with_quota(Namespace::default(), Quota::Percent(101));
        let options = AsyncOptions::new().with_pool(pool);
        assert_eq!(options.check(), Err(OptionsError::Percent { index: 0, percent: 101 }));
    }
}
