//! A chunk to try things in: taken for the time of a measurement, given back after.

use crate::alloc::{AllocateError, ChunkError};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory, OwnedArea, PeerArea};
use crate::layout::ChunkState;
use crate::member::{Liveness, Member};
use crate::units::{ChunkId, LineRange, NodeId};

use super::party::PARTY_LINES;

/// "QUAL" in the upper half of a chunk's purpose word; the lower half is the process.
const PURPOSE: u64 = 0x5155_414c;
/// Lines before a party's: of the greeting of a pair.
pub(super) const GREETING_LINES: u64 = 64;
/// Lines of each party, whole pages.
const STRIDE_LINES: u64 = (GREETING_LINES + PARTY_LINES).next_multiple_of(64);
const _: () = assert!(2 * STRIDE_LINES * 64 <= crate::layout::CHUNK_BYTES_MIN);

/// Why there is no chunk to measure in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScratchError {
    /// None was allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// One was not given back.
    #[error(transparent)]
    Free(#[from] ChunkError),
}

/// Takes a chunk. What qualifiers of this node that died have left is given back first.
pub(super) fn take<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
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
pub(super) fn own_area<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    chunk: ChunkId,
    index: u64,
) -> OwnedArea {
    // M1: the chunk table says that the chunk is this node's.
    area(member, chunk, index).claim()
}

fn area<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    chunk: ChunkId,
    index: u64,
) -> PeerArea {
    let lines = PeerArea::new(LineRange::covering(member.layout().chunk(chunk)));
    lines.part(index * STRIDE_LINES, STRIDE_LINES).expect("the smallest chunk has room for two")
}

/// The lines of every chunk in which a qualifier of `node` measures, or has, as the table says.
pub(super) fn areas_of<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    node: NodeId,
) -> Vec<PeerArea> {
    let (layout, fabric) = (member.layout(), member.fabric());
    fabric.refresh(layout.chunk_table());
    (0..layout.chunks())
        .map(ChunkId)
        .filter(|chunk| {
            let state =
                layout.chunk_entry(*chunk).cached(fabric).ok().and_then(|entry| entry.state());
            matches!(state, Some(ChunkState::Owned { owner, purpose, .. })
                if owner == node && purpose >> 32 == PURPOSE)
        })
        .map(|chunk| area(member, chunk, 0))
        .collect()
}
