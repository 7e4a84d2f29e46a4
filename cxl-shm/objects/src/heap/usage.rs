//! How full a heap is.

use super::core::Piece;
use super::size::PAGE_LINES;
use cxl_shm::units::{LINE_BYTES, PAGE_BYTES};

/// The bytes of a node's heap: allocated + free + damaged = capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapUsage {
    /// Chunks.
    pub chunks: u64,
    /// Bytes of them that objects can have: all but their headers.
    pub capacity_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes in objects, rounded up to their sizes.
    pub allocated_bytes: u64,
    /// Bytes in no object.
    pub free_bytes: u64,
    /// Bytes of pages that nobody knows anything of; the next sweep frees them.
    pub damaged_bytes: u64,
    /// Frees by other hosts, since this host joined, that named nothing which could be freed.
    pub refused_frees: u64,
}

impl HeapUsage {
    pub(super) fn count(&mut self, piece: &Piece) {
        let (bytes, objects, allocated_bytes) = match piece {
            Piece::Slots { class, allocated, .. } => {
                let objects = u64::from(allocated.count_ones());
                (PAGE_LINES * LINE_BYTES, objects, objects * class.lines() * LINE_BYTES)
            }
            Piece::Run { pages, .. } => (pages * PAGE_BYTES, 1, pages * PAGE_BYTES),
            Piece::Free { .. } | Piece::Damaged { .. } => (PAGE_BYTES, 0, 0),
        };
        self.capacity_bytes += bytes;
        self.objects += objects;
        self.allocated_bytes += allocated_bytes;
        match piece {
            Piece::Damaged { .. } => self.damaged_bytes += bytes,
            _ => self.free_bytes += bytes - allocated_bytes,
        }
    }
}
