//! Lines that pass to another host: first all that the caches of this host may hold of them goes to
//! the device (M1, M8).
//!
//! A process that dies between a store and its publish leaves a dirty line in the caches of a host
//! that lives on. It would reach the device at any time, also over what the next owner of the line
//! has written there.

use crate::alloc::HEAP_PURPOSE;
use crate::alloc::heap::header;
use crate::fabric::{Fabric, publish_all};
use crate::layout::{ChunkState, Layout};
use crate::units::{ChunkId, LINE_BYTES, LineRange, NodeId};

/// Lines that are published in one go while a heart has to beat: 4 MiB, a few milliseconds.
const PART_LINES: u64 = (4 << 20) / LINE_BYTES;

/// A recovery of `victim` that a process of this host began passes to another host: the lines of the
/// dead, the tables that its updates are about, and the first line of every chunk, which an update
/// that gives the chunk to a heap writes.
pub(crate) fn settle_recovery<F: Fabric>(layout: &Layout, fabric: &F, victim: NodeId) {
    let tables = [layout.roots().range(), layout.lock_table().range(), layout.chunk_table()];
    publish_all(fabric, layout.owned_by(victim).chain(tables).chain(headers(layout)));
}

/// The processes of `node` ran on this machine, and were killed: whatever they may have written. That
/// is anything before the chunks, also for other nodes, which they may have been recovering, or may
/// have been the guardians of; the first line of every chunk, for the same reason; their own chunks;
/// and the heaps of all nodes, in which objects pass from host to host.
pub(crate) fn settle_killed<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    fabric.refresh(layout.chunk_table());
    let chunks = (0..layout.chunks()).map(ChunkId);
    let written = chunks.filter(|chunk| {
        let entry = layout.chunk_entry(*chunk).cached(fabric).ok();
        // Also those whose entry cannot be read.
        entry.and_then(|entry| entry.state()).is_none_or(|state| match state {
            ChunkState::Owned { owner, purpose, .. } => owner == node || purpose == HEAP_PURPOSE,
            ChunkState::Free => false,
        })
    });
    let written = written.map(|chunk| LineRange::covering(layout.chunk(chunk)));
    let metadata = LineRange::covering(layout.metadata());
    publish_all(fabric, [metadata].into_iter().chain(headers(layout)).chain(written));
}

/// The last process of this host leaves `node`: its own lines, and those that describe its heap. Words
/// of the host alone, and what dead processes had not published, must not arrive after another host
/// has taken the slot. Calls `between` after every few milliseconds' work.
pub(crate) fn settle_own<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId, between: impl Fn()) {
    // By the chunk table as our caches have it: what this host wrote in a chunk it wrote after it had
    // seen there whose the chunk is.
    let heap = crate::alloc::heap::described_lines(layout, fabric, node);
    for part in layout.owned_by(node).chain(heap).flat_map(|lines| lines.parts(PART_LINES)) {
        fabric.publish(part);
        between();
    }
}

/// The first line of every chunk.
fn headers(layout: &Layout) -> impl Iterator<Item = LineRange> {
    (0..layout.chunks()).map(|chunk| header(layout.chunk(ChunkId(chunk))).range())
}
