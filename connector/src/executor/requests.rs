//! The blocks of a request: held, and known by the checksums of their layers.

use std::sync::Arc;

use kv_cache::MatchedBlock;

use super::error::ExecutorError;
use super::stream::Work;
use crate::asynchronous::AsyncSession;
use crate::dma::{Checksum, Layers};
use crate::session::HoldReport;

/// Blocks that are read whole at a time: a bound on the memory that this takes.
const READ_BLOCKS: usize = 8;

/// A request whose layers may be offloaded.
#[derive(Debug)]
pub(super) struct Admitted {
    held: HoldReport,
    blocks: Arc<Vec<MatchedBlock>>,
    /// By layer, of each block.
    checksums: Vec<Arc<Vec<Checksum>>>,
    /// What the thread does not have of the two. Empty before the first use.
    pub(super) buffers: [Vec<Vec<u8>>; 2],
}

impl Admitted {
    /// A request of which nothing is read.
    pub(super) fn new(held: HoldReport, layers: &Layers) -> Self {
        let blocks = held.shared_blocks();
        let checksums = (0..layers.count()).map(|_| Arc::default()).collect();
        Self { held, blocks, checksums, buffers: Default::default() }
    }

    /// Reads the next blocks, whole and checked (PLAN-E2). Says whether any are left.
    pub(super) fn read_on(
        &mut self,
        request: u64,
        session: &AsyncSession,
        layers: &Layers,
        on_block: &mut dyn FnMut(usize, &[Vec<u8>]),
    ) -> Result<bool, ExecutorError> {
        let mut number = self.checksums.first().map_or(0, |of_layer| of_layer.len());
        let piece: Vec<_> = self.blocks.iter().skip(number).take(READ_BLOCKS).copied().collect();
        if piece.is_empty() {
            return Ok(false);
        }
        let block: Vec<_> =
            (0..layers.count()).map(|layer| vec![0; length(layers, layer)]).collect();
        let destinations = vec![block; piece.len()];
        let fetch = session.fetch(piece, destinations);
        let fetch = fetch.map_err(|error| ExecutorError::Refused(error.kind.to_string()))?;
        let fetched = fetch.wait().map_err(|lost| ExecutorError::Refused(lost.to_string()))?;
        let report = fetched.report?;
        for block in fetched.destinations.iter().take(report.valid_blocks()) {
            for (layer, of_layer) in block.iter().zip(&mut self.checksums) {
                Arc::make_mut(of_layer).push(Checksum::of(&[layer]));
            }
            on_block(number, block);
            number += 1;
        }
        if let Some(stop) = report.stop() {
            let stop = stop.clone();
            return Err(ExecutorError::Block { request, block: number, layer: None, stop });
        }
        Ok(number < self.blocks.len())
    }

    /// Holds the blocks again when half the time is over for which they are held (PLAN-E1).
    pub(super) fn renew(
        &mut self,
        request: u64,
        session: &AsyncSession,
    ) -> Result<(), ExecutorError> {
        // From the moment of the hold on, which may be long before the request was admitted.
        if self.held.age_ms() < session.options().hold_ms() / 2 {
            return Ok(());
        }
        let hold = session.hold(self.blocks.to_vec());
        let hold = hold.map_err(|error| ExecutorError::Refused(error.kind.to_string()))?;
        let held = hold.wait().map_err(|lost| ExecutorError::Refused(lost.to_string()))??;
        if let Some(reason) = held.stop() {
            return Err(ExecutorError::Hold { request, block: held.len(), reason });
        }
        let before = std::mem::replace(&mut self.held, held);
        // What is refused is given back, and dropped, which releases it, too.
        drop(session.release(before));
        Ok(())
    }

    /// Releases the blocks.
    pub(super) fn release(self, session: &AsyncSession) {
        drop(session.release(self.held));
    }

    /// The buffer, as long as the layer of that index of the blocks.
    pub(super) fn fitted(
        &self,
        mut buffer: Vec<Vec<u8>>,
        layers: &Layers,
        index: usize,
    ) -> Vec<Vec<u8>> {
        buffer.resize_with(self.blocks.len(), Vec::new);
        buffer.iter_mut().for_each(|block| block.resize(length(layers, index), 0));
        buffer
    }

    /// What the thread is to do for a layer.
    pub(super) fn work(
        &self,
        layers: &Arc<Layers>,
        request: u64,
        layer: u16,
        buffer: Vec<Vec<u8>>,
    ) -> Result<Work, ExecutorError> {
        let index = index_of(layers, layer)?;
        let (layers, blocks) = (Arc::clone(layers), Arc::clone(&self.blocks));
        let checksums = Arc::clone(&self.checksums[index]);
        Ok(Work { request, layer, index, layers, blocks, checksums, buffer })
    }
}

/// The index of a layer that is counted from 1.
pub(super) fn index_of(layers: &Layers, layer: u16) -> Result<usize, ExecutorError> {
    let index = usize::from(layer).checked_sub(1).filter(|index| *index < layers.count());
    index.ok_or(ExecutorError::NoSuchLayer { layer, layers: layers.count() })
}

fn length(layers: &Layers, layer: usize) -> usize {
    usize::try_from(layers.layer_bytes(layer)).expect("a layer is in memory of this process")
}
