//! A chunk to try things in: taken for the time of a measurement, given back after.

use cxl_shm::chunk::{AllocateError, ChunkError};
use cxl_shm::clock::Clock;
use cxl_shm::fabric::{OwnedArea, PeerArea};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{ChunkId, NodeId};

use super::party::PARTY_LINES;

/// "QUAL" in the upper half of a chunk's purpose word; the lower half is the process.
const PURPOSE: u64 = 0x5155_414c;
/// Lines before a party's: of the greeting of a pair.
pub(super) const GREETING_LINES: u64 = 64;
/// Lines of each party, whole pages.
pub(super) const STRIDE_LINES: u64 = (GREETING_LINES + PARTY_LINES).next_multiple_of(64);
const _: () = assert!(2 * STRIDE_LINES * 64 <= cxl_shm::layout::CHUNK_BYTES_MIN);
const TWO_FIT: &str = "the smallest chunk has room for two";

/// Why there is no chunk to measure in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScratchError {
    /// None was allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// One was not given back.
    #[error(transparent)]
    Free(#[from] ChunkError),
    /// One was taken, and belongs to another node already.
    #[error("chunk {0} is no longer this node's: its host lost its membership, attach again")]
    Lost(ChunkId),
}

/// Takes a chunk. What qualifiers of this node that died have left is given back first.
pub(super) fn take<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
) -> Result<ChunkId, ScratchError> {
    let living: Vec<u32> = member
        .processes()
        .into_iter()
        .filter(|(slot, _)| member.is_process_alive(*slot))
        .map(|(_, identity)| identity.pid())
        .collect();
    for (chunk, purpose) in member.owned_chunks() {
        let process = u32::try_from(purpose & u64::from(u32::MAX)).unwrap_or(0);
        if purpose >> 32 == PURPOSE && !living.contains(&process) {
            member.free_chunk(clock, timeout_ms, chunk)?;
        }
    }
    let purpose = PURPOSE << 32 | u64::from(std::process::id());
    Ok(member.allocate_chunk(clock, timeout_ms, purpose)?)
}

/// The lines of party `index`, 0 or 1, in a chunk of this node.
pub(super) fn own_area<B: Backend>(
    member: &Member<B>,
    chunk: ChunkId,
    index: u64,
) -> Result<OwnedArea, ScratchError> {
    let lines = member.owned_chunk_area(chunk).ok_or(ScratchError::Lost(chunk))?;
    Ok(lines.part(index * STRIDE_LINES, STRIDE_LINES).expect(TWO_FIT))
}

/// The lines of every chunk in which a qualifier of `node` measures, or has, as the table says.
pub(super) fn areas_of<B: Backend>(member: &Member<B>, node: NodeId) -> Vec<PeerArea> {
    let chunks = member.chunks_of(node).into_iter();
    chunks
        .filter(|(_, purpose)| purpose >> 32 == PURPOSE)
        .map(|(chunk, _)| {
            let lines = member.layout().chunk_area(chunk);
            lines.part(0, STRIDE_LINES).expect(TWO_FIT)
        })
        .collect()
}
