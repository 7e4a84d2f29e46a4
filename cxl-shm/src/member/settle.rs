//! Lines that pass to another host: first all that the caches of this host may hold of them goes to
//! the device (M1, M8).
//!
//! A process that dies between a store and its publish leaves a dirty line in the caches of a host
//! that lives on. It would reach the device at any time, also over what the next owner of the line
//! has written there.

use crate::alloc::HEAP_PURPOSE;
use crate::alloc::heap::header;
use crate::fabric::{Fabric, HostMemory, publish_all};
use crate::layout::{ChunkState, Layout, RecoveryRecord, RecoveryStep};
use crate::member::Seat;
use crate::member::twin::OwnedTwin;
use crate::units::{ChunkId, LINE_BYTES, LineRange, NodeId};

/// Lines that are published in one go while a heart has to beat: 4 MiB, a few milliseconds.
pub(crate) const PART_LINES: u64 = (4 << 20) / LINE_BYTES;

/// What a process of this host said as a recoverer of `victim`, and may not have published: published, and
/// given back when `concerns` it. Then, if it had begun, what it may have written, too: it passes on. Calls
/// `between` after every few milliseconds' work.
pub(crate) fn settle_recoverer<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    twin: &OwnedTwin<RecoveryRecord>,
    victim: NodeId,
    concerns: impl Fn(&RecoveryRecord) -> bool,
    between: impl Fn(),
) -> Option<RecoveryRecord> {
    twin.settle(fabric);
    let own = twin.own(fabric).ok().flatten().filter(concerns)?;
    if own.step().is_some_and(RecoveryStep::is_under_way) {
        settle_recovery(layout, fabric, victim, between);
    }
    Some(own)
}

/// A recovery of `victim` that a process of this host began passes to another host: the lines of the
/// dead, the tables that its updates are about, and the first line of every chunk, which an update
/// that gives the chunk to a heap writes. Calls `between` after every few milliseconds' work.
pub(crate) fn settle_recovery<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    victim: NodeId,
    between: impl Fn(),
) {
    let tables = [layout.roots().range(), layout.lock_table().range(), layout.chunk_table()];
    let lines = layout.owned_by(victim).chain(tables).chain(headers(layout));
    publish_in_parts(fabric, lines, between);
}

/// The host of `node`, in whose name nobody acts any more, comes for a new life of it: what a process of
/// its last life wrote as a recoverer and did not publish. To be called before anybody may take that
/// life for over, and appoint another recoverer.
pub(crate) fn settle_recoveries<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    for victim in layout.nodes().filter(|victim| *victim != node) {
        // M1: whoever comes is alone (J3), and the word of the life before is its host's.
        let twin = OwnedTwin::<RecoveryRecord>::of(layout.recoveries(node).claim(), victim);
        settle_recoverer(layout, fabric, &twin, victim, |_| true, || ());
    }
}

/// The processes of `node` ran on this machine, and were killed: whatever they may have written. That
/// is anything before the chunks, also for other nodes, which they may have been recovering, or may
/// have been the guardians of; the first line of every chunk, for the same reason; their own chunks;
/// and the heaps of all nodes, in which objects pass from host to host.
///
/// In one go, which takes long where the pool is large: for a thread that nobody waits for.
pub(crate) fn settle_killed<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    fabric.refresh(layout.chunk_table());
    let written = written_chunks(layout, fabric, node);
    let metadata = LineRange::covering(layout.metadata());
    publish_all(fabric, [metadata].into_iter().chain(headers(layout)).chain(written));
}

/// The last process of this host leaves `node`: its own lines, its chunks, and the heaps of all nodes.
/// Words of the host alone, and what dead processes had not published, payload too, must not arrive
/// after another host has taken the slot, or what was in it. Calls `between` after every few
/// milliseconds' work.
pub(crate) fn settle_own<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId, between: impl Fn()) {
    // By the chunk table as our caches have it: what this host wrote in a chunk it wrote after it had
    // seen there whose the chunk is.
    let written = written_chunks(layout, fabric, node);
    publish_in_parts(fabric, layout.owned_by(node).chain(written), between);
}

/// Publishes `lines` in parts, and calls `between` after each.
#[track_caller]
pub(super) fn publish_in_parts<F: Fabric>(
    fabric: &F,
    lines: impl Iterator<Item = LineRange>,
    between: impl Fn(),
) {
    let mut ranges = lines.flat_map(|range| range.parts(PART_LINES)).peekable();
    while ranges.peek().is_some() {
        let mut room = PART_LINES;
        let mut part = Vec::new();
        while let Some(range) = ranges.next_if(|range| range.lines() <= room) {
            room -= range.lines();
            part.push(range);
        }
        publish_all(fabric, part);
        between();
    }
}

/// Largest number that [`Settling::settled`] says.
const SETTLED_MAX: u64 = (1 << 48) - 1;

/// What programs of this host may have written goes to the device, in parts: for a lock whose holder died,
/// before it is released (L5). Nobody knows what that lock guards. So it is all chunks of which programs of
/// this host have been told, or have told, an address since the host joined: 3 ns a line of 64 bytes where
/// nothing of it is in the caches, 3 ms a chunk of 64 MiB.
#[derive(Debug)]
pub(crate) struct Settling {
    parts: std::vec::IntoIter<LineRange>,
    lines: u64,
}

impl Settling {
    /// By the map in the host tier.
    pub(crate) fn begin<H: HostMemory>(seat: &Seat<H>) -> Self {
        let layout = seat.layout();
        Self::of(layout, |chunk| seat.tier().may_be_written(chunk, layout.chunks()))
    }

    /// Goes on where another stopped that had come as far as `settled` for the same death. A chunk that the
    /// map has since then was first written by processes that live.
    pub(crate) fn go_on<H: HostMemory>(seat: &Seat<H>, settled: u64) -> Self {
        let Self { parts, .. } = Self::begin(seat);
        Self::with(parts.filter(|part| part.start().bytes() / LINE_BYTES >= settled).collect())
    }

    /// How far it has come: the number of the first line of the region that is left, in at most 48 bits.
    pub(crate) fn settled(&self) -> u64 {
        let left = self.parts.as_slice().first();
        left.map_or(SETTLED_MAX, |part| (part.start().bytes() / LINE_BYTES).min(SETTLED_MAX))
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
            ChunkState::Free => false,
        })
    };
    let chunks = (0..layout.chunks()).map(ChunkId).filter(is_written);
    chunks.map(|chunk| LineRange::covering(layout.chunk(chunk)))
}

/// The first line of every chunk.
fn headers(layout: &Layout) -> impl Iterator<Item = LineRange> {
    (0..layout.chunks()).map(|chunk| header(layout.chunk(ChunkId(chunk))).range())
}
