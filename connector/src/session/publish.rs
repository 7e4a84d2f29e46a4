//! Publishing a batch of blocks.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;
use kv_cache::{BlockHash, BlockSpec, Refusal, Reservation};

use super::{Session, SessionError, SessionOptions};
use crate::dma::{Checksum, DmaEngine, DmaError, Part, StoreJob};

/// A block to be published.
#[derive(Clone, Copy, Debug)]
pub struct PublishBlock<'a, S = &'a [u8]> {
    /// The engine's hash of the block and of all before it.
    pub hash: BlockHash,
    /// Blocks before it in its prompt.
    pub depth: u32,
    /// Its bytes, gathered in this order.
    pub parts: &'a [S],
}

/// What became of one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PublishOutcome {
    /// Every host can find and read it.
    Published,
    /// It was in the pool already, or is being written by this host.
    AlreadyThere,
    /// There is no room for it.
    Refused(Refusal),
    /// Its bytes could not be copied. Nothing of it is visible.
    Failed(DmaError),
    /// Other processes of this host believed this one dead and took the block away.
    TakenAway,
}

/// What became of a batch, block by block.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "blocks may have been refused"]
pub struct PublishReport {
    outcomes: Vec<PublishOutcome>,
}

impl PublishReport {
    /// The outcomes, in the order of the batch.
    #[must_use]
    pub fn outcomes(&self) -> &[PublishOutcome] {
        &self.outcomes
    }

    /// Blocks that were published by this call.
    #[must_use]
    pub fn published(&self) -> usize {
        self.count(|outcome| *outcome == PublishOutcome::Published)
    }

    /// Blocks that can be found now: published by this call, or there already.
    #[must_use]
    pub fn available(&self) -> usize {
        self.count(|outcome| {
            matches!(outcome, PublishOutcome::Published | PublishOutcome::AlreadyThere)
        })
    }

    fn count(&self, is: impl Fn(&PublishOutcome) -> bool) -> usize {
        self.outcomes.iter().filter(|outcome| is(outcome)).count()
    }
}

impl<F, H, L, D, C> Session<'_, F, H, L, D, C>
where
    F: Fabric,
    H: HostMemory,
    L: Liveness,
    D: DmaEngine,
    C: Clock,
{
    /// Publishes those of `blocks` that are not in the pool. After return every host that looks
    /// finds them. Blocks that cannot be published do not stop the others.
    ///
    /// When the pool is full blocks that nobody holds make room, as many as it publishes, at most 64
    /// at a time. It waits for other hosts only for chunks: when this one needs another, or one for
    /// blocks of another size, for at most `chunk_timeout_ms` each time that it asks for the lock of
    /// the chunk table.
    ///
    /// # Errors
    /// [`SessionError::Length`]; nothing is published then.
    pub fn publish(
        &self,
        blocks: &[PublishBlock<'_, D::Source<'_>>],
    ) -> Result<PublishReport, SessionError> {
        for (index, block) in blocks.iter().enumerate() {
            self.check_length(index, block.parts.iter().map(Part::bytes))?;
        }
        let specs: Vec<_> = blocks.iter().map(|block| self.spec(block)).collect();
        let SessionOptions { namespace, chunk_timeout_ms, .. } = &self.options;
        let reserved = self.cache.reserve_for(self.clock, namespace, &specs, *chunk_timeout_ms);

        let mut outcomes = Vec::with_capacity(blocks.len());
        let mut writing = Vec::new();
        for (index, reservation) in reserved.into_iter().enumerate() {
            outcomes.push(match reservation {
                Reservation::Writing(block) => {
                    writing.push((index, block));
                    // Until it is stored and committed.
                    PublishOutcome::TakenAway
                }
                Reservation::AlreadyThere => PublishOutcome::AlreadyThere,
                Reservation::Refused(refusal) => PublishOutcome::Refused(refusal),
            });
        }
        let jobs = writing.iter().map(|(index, block)| StoreJob {
            payload: block.payload(),
            parts: blocks[*index].parts,
        });
        let stored = self.dma.store(&jobs.collect::<Vec<_>>());

        let (mut stored_at, mut complete, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for ((index, block), result) in writing.into_iter().zip(stored) {
            match result {
                Ok(Checksum(checksum)) => {
                    stored_at.push(index);
                    complete.push((block, checksum));
                }
                Err(error) => {
                    outcomes[index] = PublishOutcome::Failed(error);
                    failed.push(block);
                }
            }
        }
        if !complete.is_empty() {
            let committed = self.cache.commit(self.clock, complete);
            for (index, _) in stored_at.into_iter().zip(committed).filter(|(_, done)| done.is_ok())
            {
                outcomes[index] = PublishOutcome::Published;
            }
        }
        if !failed.is_empty() {
            self.cache.abort(self.clock, failed);
        }
        Ok(PublishReport { outcomes })
    }

    fn spec<S>(&self, block: &PublishBlock<'_, S>) -> BlockSpec {
        BlockSpec {
            key: self.keys.key(&block.hash),
            fingerprint: self.options.model,
            bytes: self.options.block_bytes,
            depth: block.depth,
        }
    }
}
