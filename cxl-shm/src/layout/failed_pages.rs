//! Pages of chunks whose memory failed, as the chunk table notes them (FAULT-C1).

use super::Layout;
use crate::fabric::Fabric;
use crate::units::{ChunkId, Extent, PAGE_BYTES};

/// Pages of a chunk whose memory failed, as its entry notes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedPages {
    /// The first one, in pages of 4 KiB from the start of the chunk.
    pub first: u32,
    /// How many, one at least. All between two that failed are among them.
    pub pages: u32,
}

impl FailedPages {
    /// All pages of a chunk, however large.
    pub const ALL: Self = Self { first: 0, pages: u32::MAX };

    /// Both, and all between them.
    pub(super) fn hull(self, other: Self) -> Self {
        let end = |it: Self| it.first.saturating_add(it.pages);
        let first = self.first.min(other.first);
        Self { first, pages: end(self).max(end(other)) - first }
    }
}

/// The parts of the region that the chunk table notes as failed, as this host's caches have it.
pub fn failed_extents<F: Fabric>(layout: &Layout, fabric: &F) -> Vec<Extent> {
    let extent = |chunk: ChunkId| {
        let failed = layout.chunk_entry(chunk).cached(fabric).ok()?.failed()?;
        let whole = layout.chunk(chunk);
        let at = u64::from(failed.first) * PAGE_BYTES;
        let bytes = (u64::from(failed.pages) * PAGE_BYTES).min(whole.bytes().checked_sub(at)?);
        whole.part(at, bytes)
    };
    (0..layout.chunks()).map(ChunkId).filter_map(extent).collect()
}

/// The pages of each chunk that `lost` has.
pub fn failed_in(layout: &Layout, lost: Extent) -> impl Iterator<Item = (ChunkId, FailedPages)> {
    let (payload, chunk_bytes) = (layout.payload(), layout.geometry().chunk_bytes);
    let start = lost.offset().clamp(payload.offset(), payload.end()) - payload.offset();
    let end = lost.end().clamp(payload.offset(), payload.end()) - payload.offset();
    let chunks = if start < end { start / chunk_bytes..end.div_ceil(chunk_bytes) } else { 0..0 };
    chunks.filter_map(move |chunk| {
        let at = chunk * chunk_bytes;
        let first = start.saturating_sub(at) / PAGE_BYTES;
        let pages = (end - at).min(chunk_bytes).div_ceil(PAGE_BYTES) - first;
        let narrow = |wide: u64| u32::try_from(wide).unwrap_or(u32::MAX);
        let failed = FailedPages { first: narrow(first), pages: narrow(pages) };
        u32::try_from(chunk).ok().map(|chunk| (ChunkId(chunk), failed))
    })
}
