//! Fetching a run of blocks.

use std::fmt;

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use kv_cache::{Handle, Latency, MatchedBlock, Miss, Ticket, Wanted};

use super::{SessionCore, SessionError};
use crate::dma::{Checksum, DmaEngine, DmaError, Layers, LoadJob, Part};

/// Why a fetch ended before the last block.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FetchStop {
    /// The block is a miss. This process does not look it up again, unless the block is good for
    /// other readers.
    Miss(Miss),
    /// Its bytes could not be copied into the destination. The block itself may be good.
    Failed(DmaError),
}

impl FetchStop {
    /// A short name, for metrics: that of a [`Miss`](Miss::label), or `copy`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Miss(miss) => miss.label(),
            Self::Failed(_) => "copy",
        }
    }
}

impl fmt::Display for FetchStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Miss(miss) => miss.fmt(f),
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

/// What came of a fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "blocks from `valid_blocks` on are not to be used"]
pub struct FetchReport {
    pub(super) valid_blocks: usize,
    pub(super) stop: Option<FetchStop>,
}

impl FetchReport {
    /// How many blocks, from the first on, have their right bytes in their destinations. The
    /// content of the others is undefined.
    #[must_use]
    pub fn valid_blocks(&self) -> usize {
        self.valid_blocks
    }

    /// What came of pieces that follow one another, up to the first that was not fetched to its end.
    pub(crate) fn of_pieces(
        pieces: impl Iterator<Item = Result<Self, SessionError>>,
    ) -> Result<Self, SessionError> {
        let mut whole = Self { valid_blocks: 0, stop: None };
        for piece in pieces {
            let Self { valid_blocks, stop } = piece?;
            whole = Self { valid_blocks: whole.valid_blocks + valid_blocks, stop };
            if whole.stop.is_some() {
                break;
            }
        }
        Ok(whole)
    }

    /// Why block number [`valid_blocks`](Self::valid_blocks) is not valid; `None` when all are.
    #[must_use]
    pub fn stop(&self) -> Option<&FetchStop> {
        self.stop.as_ref()
    }
}

impl<B, D, C> SessionCore<'_, B, D, C>
where
    B: Backend,
    D: DmaEngine,
    C: Clock,
{
    /// Fetches `blocks`, which a lookup found one after the other, each into its destination:
    /// parts that are filled in order.
    ///
    /// A prefix is worth what its first blocks are worth without a gap: nothing after the first
    /// block that fails is believed. A block that failed is not looked up again by this process;
    /// when it is damaged, and this node's own, it is removed from the pool.
    ///
    /// # Errors
    /// [`SessionError`]; nothing is changed then.
    pub fn fetch(
        &self,
        blocks: &[MatchedBlock],
        destinations: Vec<Vec<D::Destination<'_>>>,
    ) -> Result<FetchReport, SessionError> {
        self.fetch_with(blocks, destinations, |dma, mut jobs| dma.load(&mut jobs))
    }

    /// Fetches `blocks` as [`fetch`](Self::fetch) does, layer by layer: `arrived` is called once
    /// for each layer, in order, when the bytes of that layer are in the destinations of all
    /// available blocks, and may be used: they are borrowed no more ([`DmaEngine::load_by_layers`],
    /// which says what `arrived` must not do).
    ///
    /// A layer that arrived is not checked before the end, since a block's checksum is that of all
    /// its layers: what is computed from it is worth nothing if its block turns out not to be
    /// valid.
    ///
    /// # Errors
    /// [`SessionError`]; nothing is changed then, and `arrived` is not called.
    pub fn fetch_by_layers(
        &self,
        blocks: &[MatchedBlock],
        destinations: Vec<Vec<D::Destination<'_>>>,
        layers: &Layers,
        arrived: &mut dyn FnMut(usize),
    ) -> Result<FetchReport, SessionError> {
        self.check_layers(layers)?;
        self.fetch_with(blocks, destinations, |dma, jobs| dma.load_by_layers(jobs, layers, arrived))
    }

    fn fetch_with<'d>(
        &self,
        blocks: &[MatchedBlock],
        destinations: Vec<Vec<D::Destination<'d>>>,
        load: impl FnOnce(&D, Vec<LoadJob<D::Destination<'d>>>) -> Vec<Result<Checksum, DmaError>>,
    ) -> Result<FetchReport, SessionError> {
        if blocks.len() != destinations.len() {
            let (blocks, destinations) = (blocks.len(), destinations.len());
            return Err(SessionError::Destinations { blocks, destinations });
        }
        for (index, parts) in destinations.iter().enumerate() {
            self.check_length(index, parts.iter().map(Part::bytes))?;
        }
        self.cache.check_member()?;
        let began_us = self.clock.now_us();
        let (tickets, mut stop) = self.open_run(blocks);
        let jobs = tickets.iter().zip(destinations);
        let jobs = jobs.map(|(ticket, parts)| LoadJob { payload: ticket.payload(), parts });
        let loaded = load(self.dma, jobs.collect());
        let mut copied = Vec::with_capacity(tickets.len());
        for (ticket, result) in tickets.into_iter().zip(loaded) {
            match result {
                Ok(Checksum(checksum)) => copied.push((ticket, Some(checksum))),
                Err(error) => {
                    stop = Some(FetchStop::Failed(error));
                    break;
                }
            }
        }

        let closed = self.cache.close(&copied);
        let valid_blocks = closed.iter().take_while(|outcome| outcome.is_ok()).count();
        for ((ticket, _), outcome) in copied.iter().zip(&closed) {
            if let Err(miss) = outcome {
                self.retire_damaged(ticket.handle(), *miss);
            }
        }
        if let Some(Err(miss)) = closed.get(valid_blocks) {
            stop = Some(FetchStop::Miss(*miss));
        }
        if self.dma.is_of_gpu() {
            let fetched = closed.iter().filter(|outcome| outcome.is_ok()).count() as u64;
            self.cache.count_gpu_fetched(fetched, fetched * self.options.block_bytes());
        }
        self.cache.took(Latency::Fetch, began_us, self.clock);
        Ok(FetchReport { valid_blocks, stop })
    }

    /// Takes the first look at blocks that follow one another: those up to the first that is missing,
    /// and why it is.
    pub(super) fn open_run(&self, blocks: &[MatchedBlock]) -> (Vec<Ticket>, Option<FetchStop>) {
        let wanted: Vec<_> =
            blocks.iter().enumerate().map(|(index, block)| self.wanted(index, block)).collect();
        let mut stop = None;
        let mut tickets = Vec::with_capacity(blocks.len());
        for (opened, block) in self.cache.open(&wanted).into_iter().zip(blocks) {
            match opened {
                Ok(ticket) if stop.is_none() => tickets.push(ticket),
                // Behind the end: not worth a copy.
                Ok(_) => {}
                Err(miss) => {
                    self.retire_damaged(block.handle, miss);
                    stop.get_or_insert(FetchStop::Miss(miss));
                }
            }
        }
        (tickets, stop)
    }

    /// Removes a damaged block of this node: nobody else can, and nobody can use it.
    pub(super) fn retire_damaged(&self, handle: Handle, miss: Miss) {
        if handle.owner() != self.cache.member().node() {
            return;
        }
        match miss {
            Miss::Checksum | Miss::MemoryFailed => self.cache.retire(self.clock, &[handle]),
            // Perhaps only for the moment, as its line was being written.
            Miss::Torn | Miss::Malformed => self.cache.retire_unreadable(self.clock, &[handle]),
            _ => 0,
        };
    }

    /// Block number `index` of a transfer.
    pub(super) fn wanted(&self, index: usize, block: &MatchedBlock) -> Wanted {
        // A handle may come from a process with another model, whose KV is as long as this one's.
        let key = self.keys_at(index).own(block.key);
        Wanted { handle: block.handle, key, bytes: self.options.block_bytes() }
    }
}
