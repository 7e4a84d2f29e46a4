//! What a call has registered for as long as it copies.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::mapped::MappedPool;
use super::{Registrar, Registrations};

/// Pieces that stay registered while this is there (CUDA-R1). What the driver cannot wait for forgets a
/// share of it.
#[derive(Debug)]
pub(in crate::dma::cuda) struct Pins<R: Registrar = MappedPool> {
    of: Arc<Registrations<R>>,
    pieces: BTreeSet<u64>,
}

impl<R: Registrar> Pins<R> {
    pub(super) fn none(of: &Arc<Registrations<R>>) -> Self {
        Self { of: Arc::clone(of), pieces: BTreeSet::new() }
    }

    /// Has a pin that was given to the caller.
    pub(super) fn add(&mut self, piece: u64) {
        self.pieces.insert(piece);
    }

    /// The runs of `bytes` bytes from `offset` on that lie in one piece each: offset and length. The
    /// driver refuses a copy that crosses from one into the next.
    ///
    /// # Panics
    /// When a piece is not pinned: the GPU would copy to or from memory that may be unregistered
    /// meanwhile (CUDA-R1).
    pub(in crate::dma::cuda) fn runs(
        &self,
        offset: u64,
        bytes: usize,
    ) -> impl Iterator<Item = (u64, usize)> {
        self.of.pieces.runs(offset, bytes).inspect(move |(offset, _)| {
            let piece = self.of.pieces.at(*offset);
            assert!(self.pieces.contains(&piece), "piece {piece} is not pinned");
        })
    }
}

impl<R: Registrar> Drop for Pins<R> {
    fn drop(&mut self) {
        self.of.unpin(&self.pieces);
    }
}
