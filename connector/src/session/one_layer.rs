//! Fetching one layer of a run of blocks.

use cxl_shm::clock::Clock;
use cxl_shm::node::Backend;
use kv_cache::MatchedBlock;

use super::{FetchReport, FetchStop, SessionCore, SessionError};
use crate::dma::{Checksum, DmaEngine, Layers, LoadJob, Part};

impl<B, D, C> SessionCore<'_, B, D, C>
where
    B: Backend,
    D: DmaEngine,
    C: Clock,
{
    /// Counts layers for which an engine had to wait.
    pub(crate) fn count_stream_waits(&self, waits: u64, wait_us: u64) {
        self.cache.count_stream_waits(waits, wait_us);
    }

    /// Fetches one layer, counted from 0, of `blocks`, and reads nothing else of them: into parts
    /// that are together as long as the layer.
    ///
    /// The checksum of a block is that of all its layers. So the caller gives the checksums of this
    /// layer, of each block: [`Checksum::of`] the layer in a payload that it published, or that a
    /// [`fetch`](Self::fetch) found valid. A layer with another checksum is a miss, and its block
    /// is treated as a damaged one. So what is valid here is right before it is used.
    ///
    /// The transfer counts as `streamed_blocks` in the metrics, and is no fetch of a block.
    ///
    /// # Errors
    /// [`SessionError`]; nothing is changed then.
    pub fn fetch_layer(
        &self,
        blocks: &[MatchedBlock],
        (layers, layer): (&Layers, usize),
        checksums: &[Checksum],
        destinations: Vec<Vec<D::Destination<'_>>>,
    ) -> Result<FetchReport, SessionError> {
        if blocks.len() != destinations.len() {
            let (blocks, destinations) = (blocks.len(), destinations.len());
            return Err(SessionError::Destinations { blocks, destinations });
        }
        self.check_layers(layers)?;
        let layer_bytes = if layer < layers.count() { layers.layer_bytes(layer) } else { 0 };
        let bytes = |parts: &Vec<D::Destination<'_>>| -> u64 {
            parts.iter().map(|part| part.bytes() as u64).sum()
        };
        let fits = layer_bytes > 0
            && layers.is_on_line(layer)
            && checksums.len() == blocks.len()
            && destinations.iter().all(|parts| bytes(parts) == layer_bytes);
        if !fits {
            return Err(SessionError::OneLayer { layer, layers: layers.count(), layer_bytes });
        }
        self.cache.check_member()?;

        let (tickets, mut stop) = self.open_run(blocks);
        let job = |(ticket, parts): (&kv_cache::Ticket, _)| LoadJob {
            payload: layers.of(ticket.payload(), layer),
            parts,
        };
        let mut jobs: Vec<_> = tickets.iter().zip(destinations).map(job).collect();
        let loaded = self.dma.load(&mut jobs);
        let mut copied = Vec::with_capacity(tickets.len());
        for ((ticket, result), expected) in tickets.into_iter().zip(loaded).zip(checksums) {
            match result {
                Ok(found) => copied.push((ticket, found == *expected)),
                Err(error) => {
                    stop = Some(FetchStop::Failed(error));
                    break;
                }
            }
        }
        let closed = self.cache.close_parts(&copied);
        let valid_blocks = closed.iter().take_while(|outcome| outcome.is_ok()).count();
        for ((ticket, _), outcome) in copied.iter().zip(&closed) {
            if let Err(miss) = outcome {
                self.retire_damaged(ticket.handle(), *miss);
            }
        }
        let right = closed.iter().filter(|outcome| outcome.is_ok()).count();
        // The one before which the run ended, and those that were copied in vain.
        let lost = usize::from(stop.is_some()) + closed.len() - right;
        self.cache.count_streamed(right, right as u64 * layer_bytes, lost);
        if let Some(Err(miss)) = closed.get(valid_blocks) {
            stop = Some(FetchStop::Miss(*miss));
        }
        Ok(FetchReport { valid_blocks, stop })
    }
}
