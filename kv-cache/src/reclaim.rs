//! What processes of a host leave in the cache that died, or left without tidying up.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::{Liveness, Member};

use crate::area::Areas;
use crate::geometry::CacheGeometry;
use crate::heap::Heap;
use crate::local::Local;
use crate::ward::settle_ward;

/// Frees what processes of this host were writing that died or left, drops what they held, and strikes
/// them off the registry: their places pass on (N1 in `cxl_shm`'s `member/places.rs`). Does nothing,
/// and costs little, when there are none. Returns how many blocks were freed.
///
/// To be called now and then by every process that stays: a host whose registry is full of processes
/// that are gone takes no more. Waits for no other host, and needs no [`Cache`](crate::Cache).
pub fn reclaim_dead_processes<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
) -> u64 {
    let gone = member.gone_processes();
    // Also of one that is not among them: a panic may have ended a guardianship of this process.
    settle_ward(member, clock);
    // Whether a chunk that one of them was taking is this node's is known only when its update is
    // redone: taken in before, it would be nobody's. The next call finds them again.
    if gone.is_empty() || !member.recover_locks() {
        return 0;
    }
    let layout = *member.layout();
    let region = layout.geometry();
    let application = member.superblock().application;
    let geometry = CacheGeometry::decode(application, region.nodes, region.area_lines);
    let (freed, settled) = match geometry {
        Ok(geometry) => {
            let areas = Areas::new(layout, geometry);
            let heap = Heap::new(member, areas);
            // A host tier of another version is not ours to touch, and what another host is still
            // at is not yet: then nobody of this life has had anything of it. No other host is waited
            // for, but processes of this one are that have the locks of its ward or its heap: a lock
            // manager calls this on a thread of its own.
            if heap.claim_format(clock) && heap.is_home(clock).is_ok() {
                heap.locked(&Local::new(areas), clock, |heap| {
                    let (freed, _) = heap.reap();
                    (freed, heap.settle_closing())
                })
            } else {
                (0, true)
            }
        }
        // Not a cache: then nothing of one is to be freed either.
        Err(_) => (0, true),
    };
    // N1: whoever gets its place would seem to be giving the chunk back.
    if !settled {
        return freed;
    }
    tracing::info!(processes = gone.len(), freed, "reclaimed what processes left that are gone");
    for process in gone {
        member.forget_process(process);
    }
    freed
}
