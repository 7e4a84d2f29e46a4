//! Chunks: large pieces of the region that one node owns at a time.
//!
//! The chunk table has a line per chunk, written under lock 1 with an intent, so that the death of
//! a holder leaves every entry either as it was or as it was to be.

use super::failed::failed_pages;
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, LineError, refresh_all};
use crate::intent;
use crate::layout::{CHUNK_LOCK, ChunkEntry, ChunkState, HEAP_PURPOSE};
use crate::lock::LockError;
use crate::node::{Backend, Member};
use crate::units::{ChunkId, LineRange, NodeId};

/// Why no chunk was allocated. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// Every chunk has an owner.
    #[error(
        "the pool is full: all {chunks} chunks of {chunk_bytes} bytes are taken, {own} by this \
         node; format a larger region, or fewer nodes' data into this one"
    )]
    Exhausted {
        /// Chunks of the region.
        chunks: u32,
        /// Size of each.
        chunk_bytes: u64,
        /// How many this node owns.
        own: u32,
    },
    /// The lock of the chunk table was not acquired.
    #[error("cannot allocate a chunk: {0}")]
    Lock(#[from] LockError),
}

/// Why a chunk was not given back. Nothing is changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChunkError {
    /// The region has no such chunk.
    #[error("there is no chunk {chunk}: the region has {chunks}")]
    Unknown {
        /// Asked for.
        chunk: ChunkId,
        /// Chunks of the region.
        chunks: u32,
    },
    /// Another node's, or nobody's: a double free, or a foreign one.
    #[error("chunk {chunk} does not belong to this node")]
    NotOurs {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The heap of objects has it: it gives it back itself when no object is in it.
    #[error("chunk {chunk} belongs to this node's heap of objects, which gives it back itself")]
    InHeap {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The lock of the chunk table was not acquired.
    #[error("cannot free a chunk: {0}")]
    Lock(#[from] LockError),
}

/// Entries of the table that are refreshed with one fence.
const PART_CHUNKS: u32 = 64;
/// Free chunks that a look without the lock remembers. Others may take some of them before we have
/// it.
const CANDIDATES: usize = 8;

/// What a look at the table found.
struct Look {
    free: Vec<ChunkId>,
    /// How many chunks of this node it saw: all of them when it found no free one.
    own: u32,
}

impl Look {
    /// Looks at the table, in parts, up to the part in which it has found `enough` free chunks.
    /// With the lock held the answer stays true; without, it was true at some moment.
    fn at_table<B: Backend>(member: &Member<B>, enough: usize) -> Self {
        let (layout, fabric) = (member.layout(), member.fabric());
        let chunks = layout.chunks();
        // Each node starts in a part of its own, so that what a node owns stays together.
        let first = chunks / u32::from(layout.geometry().nodes) * u32::from(member.node().0);
        let mut look = Self { free: Vec::new(), own: 0 };
        for (start, end) in parts(first, chunks).chain(parts(0, first)) {
            let entries = (start..end).map(|chunk| layout.chunk_entry(ChunkId(chunk)));
            // LOCK-L1: others write the table.
            refresh_all(fabric, entries.map(|entry| entry.range()));
            for chunk in (start..end).map(ChunkId) {
                match state_of(layout.chunk_entry(chunk).cached(fabric)) {
                    Some(ChunkState::Free) => look.free.push(chunk),
                    Some(ChunkState::Owned { owner, .. }) if owner == member.node() => {
                        look.own += 1;
                    }
                    // An entry that cannot be read stays out of use: its owner is unknown.
                    // FAULT-C2.
                    Some(ChunkState::Owned { .. } | ChunkState::Failed) | None => {}
                }
            }
            if look.free.len() >= enough {
                break;
            }
        }
        look
    }
}

fn parts(start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    let starts = (start..end).step_by(PART_CHUNKS as usize);
    starts.map(move |start| (start, end.min(start.saturating_add(PART_CHUNKS))))
}

fn state_of(entry: Result<ChunkEntry, LineError>) -> Option<ChunkState> {
    entry.ok().and_then(|entry| entry.state())
}

/// Whether the region has a free chunk, as a look without the lock shows.
pub(super) fn is_any_free<B: Backend>(member: &Member<B>) -> bool {
    !Look::at_table(member, 1).free.is_empty()
}

/// Takes a free chunk. Looks for one before it takes the lock, which all hosts may be waiting for:
/// with the lock it looks again only at those that it found. When there is none it takes no lock.
pub(crate) fn allocate<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    purpose: u64,
) -> Result<ChunkId, AllocateError> {
    let (layout, fabric) = (*member.layout(), member.fabric());
    let exhausted = |own| AllocateError::Exhausted {
        chunks: layout.chunks(),
        chunk_bytes: layout.geometry().chunk_bytes,
        own,
    };
    let seen = Look::at_table(member, CANDIDATES);
    if seen.free.is_empty() {
        return Err(exhausted(seen.own));
    }
    let _guard = member.lock_shared(CHUNK_LOCK, clock, timeout_ms)?;
    // LOCK-L1: others have written the table since.
    let is_free = |chunk: &ChunkId| {
        state_of(layout.chunk_entry(*chunk).fresh(fabric)) == Some(ChunkState::Free)
    };
    let chunk = match seen.free.into_iter().find(is_free) {
        Some(chunk) => chunk,
        None => {
            let look = Look::at_table(member, 1);
            look.free.first().copied().ok_or_else(|| exhausted(look.own))?
        }
    };
    let (owner, incarnation) = (member.node(), member.incarnation());
    let entry = ChunkEntry::new(ChunkState::Owned { owner, incarnation, purpose });
    intent::set_chunk(member.node_handle(), fabric, chunk, &entry);
    crash::reach(CrashPoint::ChunkAllocated);
    Ok(chunk)
}

pub(crate) fn free<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    chunk: ChunkId,
) -> Result<(), ChunkError> {
    let (layout, fabric) = (*member.layout(), member.fabric());
    let chunks = layout.chunks();
    let chunk = layout.chunk_id(chunk.0).ok_or(ChunkError::Unknown { chunk, chunks })?;
    // A chunk of ours stays ours while we do not give it away.
    check_ours(member, chunk)?;
    // MEM-M1: the chunk passes on only after all that we wrote there has arrived. Nothing is
    // written there any more, so not under the lock: all hosts would wait for it.
    fabric.publish(LineRange::covering(layout.chunk(chunk)));
    crash::reach(CrashPoint::ChunkFlushed);
    let _guard = member.lock_shared(CHUNK_LOCK, clock, timeout_ms)?;
    // LOCK-L1. Given back twice at a time, it is ours no more.
    check_ours(member, chunk)?;
    set_free(member, chunk);
    Ok(())
}

/// Whether `chunk` is one of this node's, and not of its heap: freshly read.
fn check_ours<B: Backend>(member: &Member<B>, chunk: ChunkId) -> Result<(), ChunkError> {
    let entry = member.layout().chunk_entry(chunk).fresh(member.fabric());
    match entry.ok().and_then(|entry| entry.state()) {
        Some(ChunkState::Owned { owner, purpose, .. }) if owner == member.node() => match purpose {
            HEAP_PURPOSE => Err(ChunkError::InHeap { chunk }),
            _ => Ok(()),
        },
        _ => Err(ChunkError::NotOurs { chunk }),
    }
}

#[doc(hidden)]
/// Makes a flushed chunk of this node nobody's. The caller holds [`CHUNK_LOCK`], and has refreshed the
/// entry under it.
pub fn set_free<B: Backend>(member: &Member<B>, chunk: ChunkId) {
    // FAULT-C1.
    let failed = failed_pages(member, chunk);
    let entry = ChunkEntry::new(ChunkState::Free).with_failed(failed);
    intent::set_chunk(member.node_handle(), member.fabric(), chunk, &entry);
    crash::reach(CrashPoint::ChunkFreed);
}

pub(crate) fn owned<B: Backend>(member: &Member<B>, node: NodeId) -> Vec<(ChunkId, u64)> {
    let (layout, fabric) = (member.layout(), member.fabric());
    fabric.refresh(layout.chunk_table());
    (0..layout.chunks())
        .map(ChunkId)
        .filter_map(|chunk| match layout.chunk_entry(chunk).cached(fabric).ok()?.state()? {
            ChunkState::Owned { owner, purpose, .. } if owner == node => Some((chunk, purpose)),
            ChunkState::Owned { .. } | ChunkState::Free | ChunkState::Failed => None,
        })
        .collect()
}
