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
use crate::units::{ChunkId, LineRange, NodeId};

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

/// The first line of every chunk.
fn headers(layout: &Layout) -> impl Iterator<Item = LineRange> {
    (0..layout.chunks()).map(|chunk| header(layout.chunk(ChunkId(chunk))).range())
}
