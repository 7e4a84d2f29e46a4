//! What programs of this host may have written goes to the device before a lock of theirs is
//! released (LOCK-L5).

use crate::fabric::{Fabric, PART_LINES, publish_all};
use crate::layout::{ChunkState, HEAP_PURPOSE, Layout};
use crate::node::{Backend, NodeHandle};
use crate::units::{ChunkId, LINE_BYTES, LineRange};

/// Largest number that [`HandoffFlush::flushed`] says.
const FLUSHED_MAX: u64 = (1 << 48) - 1;

/// What programs of this host may have written goes to the device, in parts: for a lock whose
/// holder died, before it is released (LOCK-L5). Nobody knows what that lock guards. So it is all
/// chunks of which programs of this host have been told, or have told, an address since the host
/// joined: 3 ns a line of 64 bytes where nothing of it is in the caches, 3 ms a chunk of 64 MiB.
#[derive(Debug)]
pub(crate) struct HandoffFlush {
    parts: std::vec::IntoIter<LineRange>,
    lines: u64,
}

impl HandoffFlush {
    /// By the map in the host tier.
    pub(crate) fn begin<B: Backend>(handle: &NodeHandle<B>) -> Self {
        let layout = handle.layout();
        Self::of(layout, |chunk| handle.tier().may_be_written(chunk, layout.chunks()))
    }

    /// Goes on where another stopped that had come as far as `flushed` for the same death. A chunk
    /// that the map has since then was first written by processes that live.
    pub(crate) fn go_on<B: Backend>(handle: &NodeHandle<B>, flushed: u64) -> Self {
        let Self { parts, .. } = Self::begin(handle);
        Self::with(parts.filter(|part| part.start().bytes() / LINE_BYTES >= flushed).collect())
    }

    /// How far it has come: the number of the first line of the region that is left, in at most 48
    /// bits.
    pub(crate) fn flushed(&self) -> u64 {
        let left = self.parts.as_slice().first();
        left.map_or(FLUSHED_MAX, |part| (part.start().bytes() / LINE_BYTES).min(FLUSHED_MAX))
    }

    /// Without a map: the heaps of all nodes, by the chunk table as it is on the device.
    pub(crate) fn all_heaps<F: Fabric>(layout: &Layout, fabric: &F) -> Self {
        fabric.refresh(layout.chunk_table());
        Self::of(layout, |chunk| {
            let entry = layout.chunk_entry(chunk).cached(fabric).ok();
            entry.and_then(|entry| entry.state()).is_none_or(
                |state| matches!(state, ChunkState::Owned { purpose, .. } if purpose == HEAP_PURPOSE),
            )
        })
    }

    fn of(layout: &Layout, is_written: impl Fn(ChunkId) -> bool) -> Self {
        let chunks = (0..layout.chunks()).map(ChunkId).filter(|chunk| is_written(*chunk));
        let chunks = chunks.map(|chunk| LineRange::covering(layout.chunk(chunk)));
        Self::with(chunks.flat_map(|lines| lines.parts(PART_LINES)).collect())
    }

    fn with(parts: Vec<LineRange>) -> Self {
        let lines = parts.iter().map(|part| part.lines()).sum();
        Self { parts: parts.into_iter(), lines }
    }

    /// Bytes that are looked at in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.lines * LINE_BYTES
    }

    /// A few milliseconds' work. Whether it was the last.
    pub(crate) fn step<F: Fabric>(&mut self, fabric: &F) -> bool {
        let mut room = PART_LINES;
        let mut now = Vec::new();
        while let Some(part) = self.parts.as_slice().first().filter(|part| part.lines() <= room) {
            room -= part.lines();
            now.push(*part);
            self.parts.next();
        }
        publish_all(fabric, now);
        self.parts.as_slice().is_empty()
    }
}
