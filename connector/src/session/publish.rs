//! Publishing a batch of blocks.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;
use cxl_shm::units::Extent;
use kv_cache::{BlockHash, BlockSpec, Refusal, Reservation};

use super::{Session, SessionError, SessionOptions};
use crate::dma::{Checksum, CopyLayer, DmaEngine, DmaError, LayeredSource, Layers, Part, StoreJob};

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
    /// It was in the pool already, or is being written by another publish of this host, which may yet
    /// fail or be aborted: then nobody finds it.
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

    /// Blocks that were published by this call, or that were [there already](PublishOutcome::AlreadyThere).
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

/// A block to be published by layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayeredBlock {
    /// The engine's hash of the block and of all before it.
    pub hash: BlockHash,
    /// Blocks before it in its prompt.
    pub depth: u32,
}

/// Who has blocks whose layers become ready one after the other.
pub trait LayeredBlocks<D: DmaEngine> {
    /// Waits until `layer` is ready in all blocks, and has `copy` copy it: the parts of that layer
    /// of the blocks with these numbers, in this order. They are borrowed for the time of that call
    /// only. `false`, without calling it, breaks off. After `true` it was called once, with an entry for
    /// each of these blocks, or the publish panics, and publishes nothing.
    fn layer(&mut self, layer: usize, blocks: &[usize], copy: &mut CopyLayer<'_, D>) -> bool;

    /// Waits until it is known whether the blocks are worth publishing, once all layers are stored:
    /// `false` breaks off.
    fn complete(&mut self) -> bool;
}

/// The blocks of those that are being written.
struct Writing<'b, B: ?Sized> {
    blocks: &'b mut B,
    numbers: &'b [usize],
}

impl<D: DmaEngine, B: LayeredBlocks<D> + ?Sized> LayeredSource<D> for Writing<'_, B> {
    fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, D>) -> bool {
        self.blocks.layer(layer, self.numbers, copy)
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
    /// [`SessionError::Length`], [`SessionError::MembershipLost`]; nothing is published then.
    pub fn publish(
        &self,
        blocks: &[PublishBlock<'_, D::Source<'_>>],
    ) -> Result<PublishReport, SessionError> {
        for (index, block) in blocks.iter().enumerate() {
            self.check_length(index, block.parts.iter().map(Part::bytes))?;
        }
        self.cache.check_member()?;
        let specs: Vec<_> = blocks.iter().map(|block| self.spec(block.hash, block.depth)).collect();
        let report = self.publish_with(&specs, |dma, writing| {
            let jobs = writing.iter().map(|(index, payload)| StoreJob {
                payload: *payload,
                parts: blocks[*index].parts,
            });
            Some(dma.store(&jobs.collect::<Vec<_>>()))
        });
        Ok(report.expect("a store of whole blocks does not break off"))
    }

    /// Publishes those of `blocks` that are not in the pool, layer by layer, each layer as soon as
    /// `ready` says that it is: by the rules of [`publish`](Self::publish), so no other host sees
    /// anything of a block before its last layer is stored and `ready` said that it is complete. When
    /// `ready` breaks off nothing is published, and the answer is `None`.
    ///
    /// It waits for as long as `ready` does.
    ///
    /// # Errors
    /// [`SessionError::Layers`], [`SessionError::MembershipLost`]; nothing is published then.
    pub fn publish_by_layers(
        &self,
        blocks: &[LayeredBlock],
        layers: &Layers,
        ready: &mut dyn LayeredBlocks<D>,
    ) -> Result<Option<PublishReport>, SessionError> {
        self.check_layers(layers)?;
        self.cache.check_member()?;
        let specs: Vec<_> = blocks.iter().map(|block| self.spec(block.hash, block.depth)).collect();
        Ok(self.publish_with(&specs, |dma, writing| {
            let (numbers, payloads): (Vec<_>, Vec<_>) = writing.iter().copied().unzip();
            let mut source = Writing { blocks: &mut *ready, numbers: &numbers };
            let stored = dma.store_by_layers(&payloads, layers, &mut source)?;
            ready.complete().then_some(stored)
        }))
    }

    /// Publishes the blocks that can be reserved: `store` stores them, given their numbers and where
    /// they go, or breaks off: `None`.
    fn publish_with(
        &self,
        specs: &[BlockSpec],
        store: impl FnOnce(&D, &[(usize, Extent)]) -> Option<Vec<Result<Checksum, DmaError>>>,
    ) -> Option<PublishReport> {
        let SessionOptions { namespace, chunk_timeout_ms, .. } = &self.options;
        let reserved = self.cache.reserve_for(self.clock, namespace, specs, *chunk_timeout_ms);

        let mut outcomes = Vec::with_capacity(specs.len());
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
        let places: Vec<_> =
            writing.iter().map(|(index, block)| (*index, block.payload())).collect();
        let stored = store(self.dma, &places);

        let (mut stored_at, mut complete, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let Some(stored) = stored else {
            self.cache.abort(self.clock, writing.into_iter().map(|(_, block)| block).collect());
            return None;
        };
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
        Some(PublishReport { outcomes })
    }

    fn spec(&self, hash: BlockHash, depth: u32) -> BlockSpec {
        BlockSpec {
            key: self.keys.key(&hash),
            fingerprint: self.options.model,
            bytes: self.options.block_bytes,
            depth,
        }
    }
}
