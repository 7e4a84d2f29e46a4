//! Lines that pass to another host: first all that the caches of this host may hold of them goes to
//! the device (MEM-M1, MEM-M8).
//!
//! A process that dies between a store and its publish leaves a dirty line in the caches of a host
//! that lives on. It would reach the device at any time, also over what the next owner of the line
//! has written there.

use crate::fabric::Fabric;
use crate::fabric::publish_all;
use crate::fabric::publish_in_parts;
use crate::layout::{
    ChunkState, HEAP_PURPOSE, Layout, OwnedDoubleBuffer, RecoveryRecord, RecoveryStep, header,
};
use crate::units::{ChunkId, LineRange, NodeId};

/// What a process of this host said as a recoverer of `victim`, and may not have published:
/// published, and given back when `concerns` it. Then, if it had begun, what it may have written,
/// too: it passes on. Calls `between` after every few milliseconds' work.
pub(crate) fn flush_recoverer<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    double_buffer: &OwnedDoubleBuffer<RecoveryRecord>,
    victim: NodeId,
    concerns: impl Fn(&RecoveryRecord) -> bool,
    between: impl Fn(),
) -> Option<RecoveryRecord> {
    double_buffer.flush_both(fabric);
    let own = double_buffer.own(fabric).ok().flatten().filter(concerns)?;
    if own.step().is_some_and(RecoveryStep::is_under_way) {
        flush_recovery(layout, fabric, victim, between);
    }
    Some(own)
}

/// A recovery of `victim` that a process of this host began passes to another host: the lines of
/// the dead, the tables that its updates are about, and the first line of every chunk, which an
/// update that gives the chunk to a heap writes. Calls `between` after every few milliseconds'
/// work.
pub(crate) fn flush_recovery<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    victim: NodeId,
    between: impl Fn(),
) {
    let tables = [layout.roots().range(), layout.lock_table().range(), layout.chunk_table()];
    let lines = layout.owned_by(victim).chain(tables).chain(headers(layout));
    publish_in_parts(fabric, lines, between);
}

/// The host of `node`, in whose name nobody acts any more, comes for a new life of it: what a
/// process of its last life wrote as a recoverer and did not publish. To be called before anybody
/// may take that life for over, and appoint another recoverer.
pub(crate) fn flush_recoveries<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    for victim in layout.nodes().filter(|victim| *victim != node) {
        // MEM-M1: the joining host is alone (JOIN-J3), and the word of the life before belongs to
        // its own host.
        let double_buffer =
            OwnedDoubleBuffer::<RecoveryRecord>::of(layout.recoveries(node).claim(), victim);
        flush_recoverer(layout, fabric, &double_buffer, victim, |_| true, || ());
    }
}

/// The processes of `node` ran on this machine, and were killed: whatever they may have written.
/// That is anything before the chunks, also for other nodes, which they may have been recovering,
/// or may have been the reclaimers of; the first line of every chunk, for the same reason; their
/// own chunks; and the heaps of all nodes, in which objects pass from host to host.
///
/// In one go, which takes long where the pool is large: for a thread that nobody waits for.
pub(crate) fn flush_killed<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    fabric.refresh(layout.chunk_table());
    let written = written_chunks(layout, fabric, node);
    let metadata = LineRange::covering(layout.metadata());
    publish_all(fabric, [metadata].into_iter().chain(headers(layout)).chain(written));
}

/// The last process of this host leaves `node`: its own lines, its chunks, and the heaps of all
/// nodes. Words of the host alone, and what dead processes had not published, payload too, must not
/// arrive after another host has taken the slot, or what was in it. Calls `between` after every few
/// milliseconds' work.
pub(crate) fn flush_own<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId, between: impl Fn()) {
    // By the chunk table as our caches have it: what this host wrote in a chunk it wrote after it
    // had seen there whose the chunk is.
    let written = written_chunks(layout, fabric, node);
    publish_in_parts(fabric, layout.owned_by(node).chain(written), between);
}

/// The chunks in which processes of `node` may have written, by what the caches hold of the chunk
/// table: its own, and the heaps of all nodes, in which objects pass from host to host.
fn written_chunks<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    node: NodeId,
) -> impl Iterator<Item = LineRange> {
    let is_written = move |chunk: &ChunkId| {
        let entry = layout.chunk_entry(*chunk).cached(fabric).ok();
        // Also those whose entry cannot be read.
        entry.and_then(|entry| entry.state()).is_none_or(|state| match state {
            ChunkState::Owned { owner, purpose, .. } => owner == node || purpose == HEAP_PURPOSE,
            ChunkState::Free | ChunkState::Failed => false,
        })
    };
    let chunks = (0..layout.chunks()).map(ChunkId).filter(is_written);
    chunks.map(|chunk| LineRange::covering(layout.chunk(chunk)))
}

/// The first line of every chunk.
fn headers(layout: &Layout) -> impl Iterator<Item = LineRange> {
    (0..layout.chunks()).map(|chunk| header(layout.chunk(ChunkId(chunk))).range())
}
