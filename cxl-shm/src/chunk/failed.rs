//! Chunks in which memory failed.
//!
//! - **FAULT-C1** A process that lost payload notes the pages in the entry of their chunk, under the
//!   lock of the chunk table. Any node may own the chunk. Each later writer of the entry keeps the note. A
//!   heap of objects may drop it.
//! - **FAULT-C2** A chunk with a note that is nobody's is out of use: no node takes it.
//! - **FAULT-C3** The owner of a chunk with a note takes no payload slot in it any more, evicts what
//!   is in it, and gives it back. A block that is held stays until it is held no more.
//! - **FAULT-C4** Formatting a region again keeps the notes: a chunk of the new region that has a
//!   page which was noted in the old one is out of use from the start.

use crate::intent;
use crate::layout::FailedPages;
use crate::node::{Backend, Member};
use crate::units::ChunkId;

#[doc(hidden)]
/// Notes that `failed` pages of a chunk failed. False when its entry says so already, or cannot be
/// read. The caller holds [`CHUNK_LOCK`](crate::layout::CHUNK_LOCK), and has refreshed the entry under
/// it.
pub fn note_failed<B: Backend>(member: &Member<B>, chunk: ChunkId, failed: FailedPages) -> bool {
    let Ok(entry) = member.layout().chunk_entry(chunk).cached(member.fabric()) else {
        return false;
    };
    let noted = entry.with_failed(Some(failed));
    if noted == entry {
        return false;
    }
    intent::set_chunk(member.node_handle(), member.fabric(), chunk, &noted);
    true
}

/// What the entry of `chunk` notes. The caller has refreshed the entry under the lock of the table.
pub(crate) fn failed_pages<B: Backend>(member: &Member<B>, chunk: ChunkId) -> Option<FailedPages> {
    member.layout().chunk_entry(chunk).cached(member.fabric()).ok()?.failed()
}
