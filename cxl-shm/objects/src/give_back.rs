//! Chunks without objects go back to the region.

use cxl_shm::chunk;
use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, PART_LINES};
use cxl_shm::layout::CHUNK_LOCK;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::LineRange;

use crate::heap::{Access, Deadline, IDLE_CHUNKS_MAX, ReturnError, Unlocked};

/// Gives chunks without objects back to the region: those above the high-water mark, and as many
/// as other nodes ask for. Carries out first what other hosts have freed.
pub(crate) fn answer_chunk_requests<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
) -> Result<u64, ReturnError> {
    let deadline = Deadline::after(clock, timeout_ms);
    let mut unlocked = Unlocked::begin(member);
    let wanted = chunk::of_others(member);
    if crate::root::is_to_collect(member) {
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

/// As [`answer_chunk_requests`], for a process that does so now and then: one chunk at most. What
/// is not available at once is left for the next time. Calls `beat` while it moves much to the
/// device.
pub(crate) fn attend<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    beat: impl Fn(),
) -> Result<bool, ReturnError> {
    let wanted = chunk::of_others(member);
    if crate::root::is_to_collect(member) {
        later(crate::root::try_collect(member, clock))?;
    }
    {
        // A process that rebuilds the heap holds its lock for long.
        let Some(access) = Access::try_enter(member)? else { return Ok(false) };
        access.drain()?;
        if !has_surplus(&access, wanted)? {
            return Ok(false);
        }
    }
    let Some(_guard) = later(member.try_lock_shared(CHUNK_LOCK, clock))?.flatten() else {
        return Ok(false);
    };
    // A process of this host that sleeps in the heap must not keep the lock of the chunks from all.
    let Some(access) = Access::try_enter(member)? else { return Ok(false) };
    // Another process of this host may have given one back meanwhile.
    if !has_surplus(&access, chunk::of_others(member))? {
        return Ok(false);
    }
    give_back_one(member, access, beat)
}

/// Whether the heap has a chunk to give back, when other nodes want `wanted` chunks.
fn has_surplus<B: Backend>(access: &Access<'_, B>, wanted: u64) -> Result<bool, ReturnError> {
    let idle = access.idle_chunks(wanted > 0)?;
    Ok(idle > if wanted > 0 { 0 } else { IDLE_CHUNKS_MAX })
}

/// What an attempt gave; `None` when a lock between hosts was not acquired.
fn later<T, E: Into<ReturnError>>(outcome: Result<T, E>) -> Result<Option<T>, ReturnError> {
    match outcome.map_err(Into::into) {
        Ok(value) => Ok(Some(value)),
        Err(ReturnError::Lock(_)) => Ok(None),
        Err(error @ (ReturnError::Damaged | ReturnError::HeapBusy { .. })) => Err(error),
    }
}

/// Gives a chunk without objects back to the region, if there is one. The caller holds
/// [`CHUNK_LOCK`].
fn give_back_one<B: Backend>(
    member: &Member<B>,
    access: Access<'_, B>,
    between: impl Fn(),
) -> Result<bool, ReturnError> {
    let idle = access.give_up_idle()?;
    drop(access);
    let Some(idle) = idle else { return Ok(false) };
    // MEM-M1: the chunk passes on only after all that we wrote there has arrived.
    let lines = LineRange::covering(member.layout().chunk(idle));
    for part in lines.parts(PART_LINES) {
        member.fabric().publish(part);
        between();
    }
    crash::reach(CrashPoint::ChunkFlushed);
    chunk::set_free(member, idle);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Objects as _;
    use crate::heap::build_new;
    use cxl_shm::layout::HEAP_PURPOSE;
    use cxl_shm::verify::small_rack::{Rig, TIMEOUT_MS};

    #[test]
    fn a_chunk_that_one_process_gives_back_is_not_built_by_the_process_that_asked_for_it() {
        let rig = Rig::new(4);
        let [asks, gives] = [rig.join(0), rig.join(0)];
        let chunk = chunk::request(&asks, &rig.clock, TIMEOUT_MS, HEAP_PURPOSE).unwrap();
        // Before it builds the chunk, another process of its host does, and gives it back.
        let mut unlocked = Unlocked::begin(&gives);
        let deadline = Deadline::after(&rig.clock, TIMEOUT_MS);
        assert!(build_new(&mut unlocked, &rig.clock, deadline).unwrap());
        let guard = gives.lock_shared(CHUNK_LOCK, &rig.clock, TIMEOUT_MS).unwrap();
        let access = Access::try_enter(&gives).unwrap().unwrap();
        let built = || {
            let access = Access::try_enter(&asks).unwrap().unwrap();
            assert!(!access.build_empty(chunk).unwrap(), "it is about to be another host's");
        };
        assert!(give_back_one(&gives, access, built).unwrap());
        drop(guard);
        let usage = asks.heap_usage(&rig.clock).unwrap();
        assert_eq!((usage.chunks, asks.owned_chunks()), (0, Vec::new()));
        // The same chunk, taken once more: built under the lock, since nobody could tell.
        asks.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    }

    #[test]
    fn a_chunk_that_a_process_died_giving_back_is_used_again() {
        let rig = Rig::new(1);
        let [asks, dies] = [rig.join(0), rig.join(0)];
        let object = dies.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
        dies.free(&rig.clock, TIMEOUT_MS, object.offset()).unwrap();
        Access::try_enter(&dies).unwrap().unwrap().give_up_idle().unwrap().unwrap();
        asks.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    }
}
