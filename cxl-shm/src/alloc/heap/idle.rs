//! Chunks without objects: built into the heap, and given back to the region.

use super::access::{Access, Damaged};
use super::core::Broken;
use super::page::{PageNumber, PageUse, PageWord};
use super::unlocked::{Deadline, Unlocked};
use crate::alloc::{ReturnError, chunk, demand};
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory};
use crate::layout::{CHUNK_LOCK, HeapHeader};
use crate::member::{Liveness, Member, PART_LINES};
use crate::units::{ChunkId, LineRange};

/// High-water mark: chunks without objects that a heap keeps for itself while nobody asks.
pub(crate) const IDLE_CHUNKS_MAX: u64 = 1;

impl<F: Fabric, H: HostMemory, L: Liveness> Access<'_, F, H, L> {
    /// Takes a chunk into the heap that nobody has used since it was taken from the region. Does
    /// nothing when another process of the host has built it meanwhile.
    pub(super) fn build_empty(&self, chunk: ChunkId) -> Result<(), Damaged> {
        if self.is_built(chunk) || !self.chunks().contains(&chunk) {
            return Ok(());
        }
        let pages = self.heap.pages;
        for page in pages.data_of(chunk).map(PageNumber) {
            pages.set(page, PageWord::Allocated, 0);
            pages.set(page, PageWord::Named, 0);
            pages.set_usage(page, PageUse::Free);
        }
        let header = HeapHeader::built_by(self.member.node(), self.member.incarnation());
        self.set_header(chunk, &header);
        // Publishes what the pages are: else a former owner's would count after our death.
        self.relink()
    }

    /// Takes a chunk without objects out of the heap: from here on it is unbuilt.
    fn give_up_idle(&self) -> Result<Option<ChunkId>, Damaged> {
        let chunk = self.mended(|heap| {
            heap.release_empty()?;
            heap.take_idle_chunk()
        })?;
        if let Some(chunk) = chunk {
            self.heap.words.forget(chunk);
            // Published with the chunk: should it come back to us from another host, it must not
            // look as if we had built it.
            self.set_header(chunk, &HeapHeader::unbuilt());
        }
        Ok(chunk)
    }

    fn idle_chunks(&self, asked: bool) -> Result<u64, Damaged> {
        self.mended(|heap| {
            if asked {
                heap.release_empty()?;
            }
            heap.idle_chunks()
        })
    }
}

/// Gives chunks without objects back to the region: those above the high-water mark, and as many
/// as other nodes ask for. Carries out first what other hosts have freed.
pub(crate) fn answer_chunk_requests<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
) -> Result<u64, ReturnError> {
    let deadline = Deadline::after(clock, timeout_ms);
    let mut unlocked = Unlocked::begin(member);
    let wanted = demand::of_others(member);
    if crate::root::retired_by_others(member) {
        crate::root::collect(&mut unlocked, clock, deadline)?;
    }
    let surplus = {
        let access = unlocked.enter_until(clock, deadline)?;
        access.drain()?;
        let idle = access.idle_chunks(wanted > 0)?;
        idle.saturating_sub(IDLE_CHUNKS_MAX).max(idle.min(wanted))
    };
    let mut returned = 0;
    while returned < surplus {
        let deadline = Deadline::after(clock, timeout_ms);
        let given = unlocked.in_heap_under(&[CHUNK_LOCK], clock, deadline, |access| {
            give_back_one(member, access, || ())
        });
        if !given? {
            break;
        }
        returned += 1;
    }
    Ok(returned)
}

/// As [`answer_chunk_requests`], for the agent between two beats: one chunk at most, and what is not
/// to be had at once is left for the next time. Calls `beat` while it moves much to the device.
pub(crate) fn attend<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    beat: impl Fn(),
) -> Result<bool, ReturnError> {
    let wanted = demand::of_others(member);
    if crate::root::retired_by_others(member) {
        later(crate::root::try_collect(member, clock))?;
    }
    {
        // Whoever rebuilds the heap has it for long.
        let Some(access) = Access::try_enter(member)? else { return Ok(false) };
        access.drain()?;
        let idle = access.idle_chunks(wanted > 0)?;
        if idle == 0 || wanted == 0 && idle <= IDLE_CHUNKS_MAX {
            return Ok(false);
        }
    }
    let Some(_guard) = later(member.try_lock_shared(CHUNK_LOCK, clock))?.flatten() else {
        return Ok(false);
    };
    // A process of this host that sleeps in the heap must not keep the lock of the chunks from all.
    let Some(access) = Access::try_enter(member)? else { return Ok(false) };
    give_back_one(member, access, beat)
}

/// What an attempt gave; `None` when a lock between hosts was not to be had.
fn later<T, E: Into<ReturnError>>(outcome: Result<T, E>) -> Result<Option<T>, ReturnError> {
    match outcome.map_err(Into::into) {
        Ok(value) => Ok(Some(value)),
        Err(ReturnError::Lock(_)) => Ok(None),
        Err(error @ (ReturnError::Damaged | ReturnError::HeapBusy { .. })) => Err(error),
    }
}

/// Gives a chunk without objects back to the region, if there is one. The caller holds
/// [`CHUNK_LOCK`].
fn give_back_one<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    access: Access<'_, F, H, L>,
    between: impl Fn(),
) -> Result<bool, ReturnError> {
    let idle = access.give_up_idle()?;
    drop(access);
    let Some(idle) = idle else { return Ok(false) };
    // M1: the chunk passes on only after all that we wrote there has arrived.
    let lines = LineRange::covering(member.layout().chunk(idle));
    for part in lines.parts(PART_LINES) {
        member.fabric().publish(part);
        between();
    }
    crash::reach(CrashPoint::ChunkFlushed);
    chunk::set_free(member, idle);
    Ok(true)
}

impl From<Broken> for Damaged {
    fn from(Broken: Broken) -> Self {
        Self
    }
}
