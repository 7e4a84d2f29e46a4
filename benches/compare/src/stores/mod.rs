//! The stores that are compared, each as its own process uses it.

mod lmdb;
mod plain;
mod rackline;
mod redis;

use anyhow::Result;

pub(crate) use lmdb::LmdbStore;
pub(crate) use plain::{Copying, PlainStore};
pub(crate) use rackline::RacklineStore;
pub(crate) use redis::RedisStore;

/// One process' way to a store. A call moves one batch.
pub(crate) trait Store {
    /// Puts blocks; after return the other process can get them.
    fn put(&mut self, numbers: &[u64], blocks: &mut [&mut [u8]]) -> Result<()>;

    /// Gets blocks into buffers of their length.
    fn get(&mut self, numbers: &[u64], buffers: &mut [&mut [u8]]) -> Result<()>;

    /// How many of the blocks, from the first on, are there. `None` where there is no index.
    fn lookup(&mut self, numbers: &[u64]) -> Result<Option<usize>>;

    /// Makes room, where nothing else does.
    fn reset(&mut self) -> Result<()> {
        Ok(())
    }
}
