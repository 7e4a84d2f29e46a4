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
    /// `None` for holds of the caller, of which the age is not known.
    held_since_ms: Option<u64>,
    blocks: Arc<Vec<MatchedBlock>>,
    /// By layer, of each block.
    checksums: Vec<Arc<Vec<Checksum>>>,
    /// What the thread does not have of the two. Empty before the first use.
    pub(super) buffers: [Vec<Vec<u8>>; 2],
}

impl Admitted {
    /// Reads all blocks, whole and checked.
    pub(super) fn read(
        request: u64,
        session: &AsyncSession,
        layers: &Layers,
        held: HoldReport,
        on_block: &mut dyn FnMut(usize, &[Vec<u8>]),
    ) -> Result<Self, ExecutorError> {
        let blocks = held.shared_blocks();
        let lengths = (0..layers.count()).map(|layer| length(layers, layer));
        let lengths: Vec<usize> = lengths.collect();
        let mut checksums = vec![Vec::with_capacity(blocks.len()); layers.count()];
        let mut number = 0;
        for piece in blocks.chunks(READ_BLOCKS) {
            let block: Vec<_> = lengths.iter().map(|bytes| vec![0; *bytes]).collect();
            let fetch = session.fetch(piece.to_vec(), vec![block; piece.len()]);
            let fetch = fetch.map_err(|error| ExecutorError::Refused(error.kind.to_string()))?;
            let fetched = fetch.wait().map_err(|lost| ExecutorError::Refused(lost.to_string()))?;
            let report = fetched.report?;
            for block in fetched.destinations.iter().take(report.valid_blocks()) {
                for (layer, of_layer) in block.iter().zip(&mut checksums) {
                    of_layer.push(Checksum::of(&[layer]));
                }
                on_block(number, block);
                number += 1;
            }
            if let Some(stop) = report.stop() {
                let stop = stop.clone();
                return Err(ExecutorError::Block { request, block: number, layer: None, stop });
            }
        }
        let checksums = checksums.into_iter().map(Arc::new).collect();
        let buffers = Default::default();
        Ok(Self { held, held_since_ms: None, blocks, checksums, buffers })
    }

    /// Holds the blocks again when half the time is over for which they are held (PLAN-E1).
    pub(super) fn renew(
        &mut self,
        request: u64,
        session: &AsyncSession,
        now_ms: u64,
    ) -> Result<(), ExecutorError> {
        let half_ms = session.options().hold_ms() / 2;
        if self.held_since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) < half_ms) {
            return Ok(());
        }
        let hold = session.hold(self.blocks.to_vec());
        let hold = hold.map_err(|error| ExecutorError::Refused(error.kind.to_string()))?;
        let held = hold.wait().map_err(|lost| ExecutorError::Refused(lost.to_string()))??;
        if let Some(reason) = held.stop() {
            return Err(ExecutorError::Hold { request, block: held.len(), reason });
        }
        let before = std::mem::replace(&mut self.held, held);
        self.held_since_ms = Some(now_ms);
        // What is refused is given back, and dropped, which releases it, too.
        drop(session.release(before));
        Ok(())
    }

    /// Releases the blocks.
    pub(super) fn release(self, session: &AsyncSession) {
        drop(session.release(self.held));
    }

    /// A buffer for a layer.
    pub(super) fn empty_buffer(
        &self,
        layers: &Layers,
        layer: u16,
    ) -> Result<Vec<Vec<u8>>, ExecutorError> {
        self.fitted(Vec::new(), layers, layer)
    }

    /// The buffer, as long as a layer of the blocks.
    pub(super) fn fitted(
        &self,
        mut buffer: Vec<Vec<u8>>,
        layers: &Layers,
        layer: u16,
    ) -> Result<Vec<Vec<u8>>, ExecutorError> {
        let bytes = length(layers, index_of(layers, layer)?);
        buffer.resize_with(self.blocks.len(), Vec::new);
        buffer.iter_mut().for_each(|block| block.resize(bytes, 0));
        Ok(buffer)
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
