//! Rackline, through the session that every connector uses.

use anyhow::{Result, bail, ensure};
use connector::pool::{LocalCache, LocalSession, Pool};
use connector::session::{PublishBlock, SessionOptions};
use kv_cache::{BlockHash, Model, Namespace};

use super::Store;

/// Longer than any allocation of a chunk takes.
const CHUNK_TIMEOUT_MS: u64 = 5000;

/// A session, made anew whenever blocks have another length: that is part of what a model is.
#[derive(Debug)]
pub(crate) struct RacklineStore<'p> {
    pool: &'p Pool,
    cache: &'p LocalCache<'p>,
    session: Option<LocalSession<'p>>,
}

impl<'p> RacklineStore<'p> {
    pub(crate) fn new(pool: &'p Pool, cache: &'p LocalCache<'p>) -> Self {
        Self { pool, cache, session: None }
    }

    fn session(&mut self, block_bytes: u64) -> &LocalSession<'p> {
        let fits = |session: &LocalSession<'_>| session.options().block_bytes == block_bytes;
        if !self.session.as_ref().is_some_and(fits) {
            self.session = None;
        }
        let (pool, cache) = (self.pool, self.cache);
        self.session.get_or_insert_with(|| {
            let model = Model {
                name: "compare",
                revision: "1",
                dtype: "u8",
                layout_version: 1,
                block_tokens: 1,
                tensor_parallel_rank: 0,
                tensor_parallel_size: 1,
                layers: 1,
                kv_heads: 1,
                head_dim: u32::try_from(block_bytes).unwrap_or(u32::MAX),
            };
            let options = SessionOptions {
                model: model.fingerprint(),
                namespace: Namespace::default(),
                block_bytes,
                chunk_timeout_ms: CHUNK_TIMEOUT_MS,
            };
            pool.session(cache, options)
        })
    }

    fn hashes(numbers: &[u64]) -> Vec<BlockHash> {
        let hash = |number: &u64| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            BlockHash::new(bytes)
        };
        numbers.iter().map(hash).collect()
    }
}

impl Store for RacklineStore<'_> {
    fn put(&mut self, numbers: &[u64], blocks: &mut [&mut [u8]]) -> Result<()> {
        let block_bytes = blocks.first().map_or(0, |block| block.len()) as u64;
        let parts: Vec<[&[u8]; 1]> = blocks.iter().map(|block| [&**block]).collect();
        let hashes = Self::hashes(numbers);
        let blocks: Vec<_> = hashes
            .iter()
            .zip(&parts)
            .zip(0..)
            .map(|((hash, parts), depth)| PublishBlock { hash: *hash, depth, parts })
            .collect();
        let report = self.session(block_bytes).publish(&blocks)?;
        ensure!(
            report.published() == blocks.len(),
            "not every block was published: {:?}",
            report.outcomes()
        );
        Ok(())
    }

    fn get(&mut self, numbers: &[u64], buffers: &mut [&mut [u8]]) -> Result<()> {
        let block_bytes = buffers.first().map_or(0, |buffer| buffer.len()) as u64;
        let hashes = Self::hashes(numbers);
        let session = self.session(block_bytes);
        let found = session.lookup(&hashes)?;
        ensure!(found.blocks().len() == buffers.len(), "not every block was found");
        let destinations = buffers.iter_mut().map(|buffer| vec![&mut **buffer]).collect();
        let report = session.fetch(found.blocks(), destinations)?;
        if let Some(stop) = report.stop() {
            bail!("block {} of the batch was a miss: {stop:?}", report.valid_blocks());
        }
        Ok(())
    }

    fn lookup(&mut self, numbers: &[u64]) -> Result<Option<usize>> {
        let hashes = Self::hashes(numbers);
        let Some(session) = &self.session else { bail!("nothing was fetched before") };
        Ok(Some(session.lookup(&hashes)?.blocks().len()))
    }
}
