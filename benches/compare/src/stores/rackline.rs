//! Rackline, through the session that every connector uses.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rackline::{BlockHash, Model, NewBlock, Pool, Session, SessionOptions};

use super::Store;

/// Longer than any allocation of a chunk takes.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(5);

/// A session, made anew whenever blocks have another length: that is part of what a model is.
#[derive(Debug)]
pub(crate) struct RacklineStore<'p> {
    pool: &'p Pool,
    session: Option<Session<'p>>,
}

impl<'p> RacklineStore<'p> {
    pub(crate) fn new(pool: &'p Pool) -> Self {
        Self { pool, session: None }
    }

    fn session(&mut self, block_bytes: u64) -> Result<&Session<'p>> {
        let fits = |session: &Session<'_>| session.options().block_bytes() == block_bytes;
        let session = match self.session.take().filter(fits) {
            Some(session) => session,
            None => {
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
                let options = SessionOptions::new(model, block_bytes);
                self.pool.session(options.with_chunk_timeout(CHUNK_TIMEOUT))?
            }
        };
        Ok(self.session.insert(session))
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
        let parts = blocks.iter().map(|block| [&**block]);
        let blocks = NewBlock::chain(0, Self::hashes(numbers), parts);
        let report = self.session(block_bytes)?.publish(&blocks)?;
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
        let session = self.session(block_bytes)?;
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
