//! Publishing a batch of blocks.

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use cxl_shm::units::Extent;
use kv_cache::{BlockSpec, CommitError, Latency, Refusal, Reservation, WritingBlock};

use super::{SessionCore, SessionError};
use crate::block::NewBlock;
use crate::dma::{Checksum, CopyLayer, DmaEngine, DmaError, LayeredSource, Layers, Part, StoreJob};

/// What became of one block.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PublishOutcome {
    /// Every host can find and read it.
    Published,
    /// It was in the pool already, or is being written by another publish of this host, which may
    /// yet fail or be aborted: then nobody finds it.
    AlreadyThere,
    /// There is no room for it.
    Refused(Refusal),
    /// Its bytes could not be copied. Nothing of it is visible.
    Failed(DmaError),
    /// Other processes of this host believed this one dead and took the block away.
    TakenAway,
    /// The memory for its bytes failed: the device reported an error that it cannot correct. Nobody
    /// finds the block.
    MemoryFailed,
}

impl PublishOutcome {
    /// A short name, which stays the same: `published`, `already_there`, `copy`, `taken_away`,
    /// `memory_failed`, or that of a [`Refusal`](Refusal::label).
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::AlreadyThere => "already_there",
            Self::Refused(refusal) => refusal.label(),
            Self::Failed(_) => "copy",
            Self::TakenAway => "taken_away",
            Self::MemoryFailed => "memory_failed",
        }
    }

    /// Why the block is not in the pool; `None` when it is.
    #[must_use]
    pub fn why_missing(&self) -> Option<String> {
        match self {
            Self::Published | Self::AlreadyThere => None,
            Self::Refused(refusal) => Some(refusal.to_string()),
            Self::Failed(failure) => Some(failure.to_string()),
            Self::TakenAway => {
                Some("other processes of this host believed this one dead".to_owned())
            }
            Self::MemoryFailed => Some(
                "the memory of the block failed: look for memory errors (`dmesg`, `cxl list \
                 --media-errors`)"
                    .to_owned(),
            ),
        }
    }
}

/// What became of a batch, block by block.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "blocks may have been refused"]
pub struct PublishReport {
    outcomes: Vec<PublishOutcome>,
}

impl PublishReport {
    /// What became of pieces that follow one another.
    pub(crate) fn of_pieces(pieces: Vec<Self>) -> Self {
        Self { outcomes: pieces.into_iter().flat_map(|piece| piece.outcomes).collect() }
    }

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

    /// Blocks that were published by this call, or that were [there
    /// already](PublishOutcome::AlreadyThere).
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

/// Blocks whose layers become ready one after the other.
pub trait LayeredBlocks<D: DmaEngine> {
    /// Waits until `layer` is ready in all blocks, and has `copy` copy it: the parts of that layer
    /// of the blocks with these numbers, in this order. They are borrowed for the time of that call
    /// only. `false`, without calling it, breaks off. After `true` it was called once, with an
    /// entry for each of these blocks, or the publish panics, and publishes nothing.
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

/// Blocks during the store of their bytes, which may panic.
struct BeingStored<'d, D: DmaEngine> {
    dma: &'d D,
    blocks: Vec<(usize, WritingBlock)>,
}

impl<D: DmaEngine> BeingStored<'_, D> {
    /// The store has returned.
    fn into_blocks(mut self) -> Vec<(usize, WritingBlock)> {
        std::mem::take(&mut self.blocks)
    }
}

impl<D: DmaEngine> Drop for BeingStored<'_, D> {
    fn drop(&mut self) {
        if self.dma.may_still_write() {
            // CUDA-E2: otherwise they are freed.
            self.blocks.drain(..).for_each(|(_, block)| block.leave_reserved());
        }
    }
}

impl<B, D, C> SessionCore<'_, B, D, C>
where
    B: Backend,
    D: DmaEngine,
    C: Clock,
{
    /// Publishes those of `blocks` that are not in the pool. After return every host that looks
    /// finds them. Blocks that cannot be published do not stop the others.
    ///
    /// When the pool is full blocks that nobody holds make room, as many as it publishes, at most
    /// 64 at a time. It waits for other hosts only for chunks: when this one needs another, or one
    /// for blocks of another size, for at most `chunk_timeout_ms` each time that it asks for the
    /// lock of the chunk table.
    ///
    /// # Errors
    /// [`SessionError::Length`], [`SessionError::MembershipLost`]; nothing is published then.
    pub fn publish<'s, P: AsRef<[D::Source<'s>]>>(
        &self,
        blocks: &[NewBlock<P>],
    ) -> Result<PublishReport, SessionError> {
        for (index, block) in blocks.iter().enumerate() {
            self.check_length(index, block.bytes.as_ref().iter().map(Part::bytes))?;
        }
        self.cache.check_member()?;
        let report = self.publish_with(blocks, |dma, writing| {
            let jobs = writing.iter().map(|(index, payload)| StoreJob {
                payload: *payload,
                parts: blocks[*index].bytes.as_ref(),
            });
            Some(dma.store(&jobs.collect::<Vec<_>>()))
        });
        Ok(report.expect("a store of whole blocks does not break off"))
    }

    /// Publishes those of `blocks` that are not in the pool, layer by layer, each layer as soon as
    /// `ready` says that it is: by the rules of [`publish`](Self::publish), so no other host sees
    /// anything of a block before its last layer is stored and `ready` said that it is complete.
    /// When `ready` breaks off nothing is published, and the answer is `None`.
    ///
    /// It waits for as long as `ready` does.
    ///
    /// # Errors
    /// [`SessionError::Layers`], [`SessionError::MembershipLost`]; nothing is published then.
    pub fn publish_by_layers<P>(
        &self,
        blocks: &[NewBlock<P>],
        layers: &Layers,
        ready: &mut dyn LayeredBlocks<D>,
    ) -> Result<Option<PublishReport>, SessionError> {
        self.check_layers(layers)?;
        self.cache.check_member()?;
        Ok(self.publish_with(blocks, |dma, writing| {
            let (numbers, payloads): (Vec<_>, Vec<_>) = writing.iter().copied().unzip();
            let mut source = Writing { blocks: &mut *ready, numbers: &numbers };
            let stored = dma.store_by_layers(&payloads, layers, &mut source)?;
            // CUDA-E2: what breaks off is freed, and this must not be. Nothing of it is complete.
            let unfinished = stored.iter().any(|it| matches!(it, Err(DmaError::Unfinished { .. })));
            (ready.complete() || unfinished).then_some(stored)
        }))
    }

    /// Publishes the blocks that can be reserved: `store` stores them, given their numbers and
    /// where they go, or breaks off: `None`.
    fn publish_with<P>(
        &self,
        blocks: &[NewBlock<P>],
        store: impl FnOnce(&D, &[(usize, Extent)]) -> Option<Vec<Result<Checksum, DmaError>>>,
    ) -> Option<PublishReport> {
        let began_us = self.clock.now_us();
        let specs: Vec<_> =
            blocks.iter().enumerate().map(|(index, block)| self.spec(index, block)).collect();
        let (namespace, timeout_ms) = (self.options.namespace(), self.options.chunk_timeout_ms());
        let reserved = self.cache.reserve_for(self.clock, namespace, &specs, timeout_ms);

        // A block that is being written has no outcome yet.
        let (mut outcomes, mut writing) = (Vec::with_capacity(blocks.len()), Vec::new());
        for (index, reservation) in reserved.into_iter().enumerate() {
            outcomes.push(match reservation {
                Reservation::Writing(block) => {
                    writing.push((index, block));
                    None
                }
                Reservation::AlreadyThere => Some(PublishOutcome::AlreadyThere),
                Reservation::Refused(refusal) => Some(PublishOutcome::Refused(refusal)),
            });
        }
        let places: Vec<_> =
            writing.iter().map(|(index, block)| (*index, block.payload())).collect();
        let writing = BeingStored { dma: self.dma, blocks: writing };
        let stored = store(self.dma, &places);
        let writing = writing.into_blocks();
        let Some(stored) = stored else {
            self.cache.abort(self.clock, writing.into_iter().map(|(_, block)| block).collect());
            return None;
        };

        let (mut stored_at, mut complete, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for ((index, block), result) in writing.into_iter().zip(stored) {
            match result {
                Ok(Checksum(checksum)) => {
                    stored_at.push(index);
                    complete.push((block, checksum));
                }
                Err(error) => {
                    match error {
                        // CUDA-E2.
                        DmaError::Unfinished { .. } => block.leave_reserved(),
                        _ => failed.push(block),
                    }
                    outcomes[index] = Some(PublishOutcome::Failed(error));
                }
            }
        }
        if !complete.is_empty() {
            let committed = self.cache.commit(self.clock, complete);
            for (index, done) in stored_at.into_iter().zip(committed) {
                let missing = |error| match error {
                    CommitError::TakenAway { .. } => PublishOutcome::TakenAway,
                    CommitError::MemoryFailed { .. } => PublishOutcome::MemoryFailed,
                };
                let outcome = done.map_or_else(missing, |_| PublishOutcome::Published);
                outcomes[index] = Some(outcome);
            }
        }
        if !failed.is_empty() {
            self.cache.abort(self.clock, failed);
        }
        let outcomes: Option<Vec<_>> = outcomes.into_iter().collect();
        let outcomes = outcomes.expect("every block was refused, or stored or not");
        let report = PublishReport { outcomes };
        if self.dma.is_of_gpu() {
            let published = report.published() as u64;
            self.cache.count_gpu_published(published, published * self.options.block_bytes());
        }
        self.cache.took(Latency::Publish, began_us, self.clock);
        Some(report)
    }

    fn spec<P>(&self, index: usize, block: &NewBlock<P>) -> BlockSpec {
        BlockSpec {
            key: self.keys_at(index).key(&block.hash),
            bytes: self.options.block_bytes(),
            depth: block.depth,
        }
    }
}
