//! What dead processes of a host leave in the cache.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::{Liveness, Member};

use crate::cache::Cache;

/// Frees what dead processes of this host were writing, and strikes them off the registry. Does
/// nothing, and costs little, when none has died.
///
/// To be called now and then by every process that stays: a host whose registry fills up with the
/// dead takes no more processes. The member has no [`Cache`] of its own at the time.
pub fn reclaim_dead_processes<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
) {
    let dead = member.dead_processes();
    if dead.is_empty() {
        return;
    }
    match Cache::attach(member, clock) {
        Ok(cache) => {
            cache.reap(clock);
        }
        // Not a cache: then nothing of one is to be freed either.
        Err(error) => tracing::debug!(%error, "dead processes had no blocks to free"),
    }
    for process in dead {
        member.forget_process(process);
    }
}
