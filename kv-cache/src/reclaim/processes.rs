//! What processes of a host leave in the cache when they die, or leave without tidying up.

use cxl_shm::clock::Clock;
use cxl_shm::node::{Backend, Member};

use super::end_reclaim;
use crate::format::{Areas, CacheGeometry};
use crate::heap::{HOLDS_AT_ONCE, Heap};
use crate::process::{count_ended, count_moved};

/// Frees what processes of this host were writing that died or left, drops what they held, and
/// strikes them off the registry: their places pass on (HOST-N1 in `cxl_shm`'s `host/places.rs`).
/// Does nothing, and costs little, when there are none. Returns how many blocks were freed.
///
/// To be called now and then by every process that stays: a host whose registry is full of
/// processes that are gone takes no more. Waits for no other host, and needs no
/// [`Cache`](crate::Cache).
pub fn reclaim_dead_processes<B: Backend>(member: &Member<B>, clock: &impl Clock) -> u64 {
    let gone = member.gone_processes();
    // Also of one that is not among them: a panic may have ended a reclamation of this process.
    end_reclaim(member, clock);
    // Whether a chunk that one of them was taking is this node's is known only when its update is
    // redone: taken in before, it would be nobody's. The next call finds them again.
    if gone.is_empty() || !member.recover_locks() {
        return 0;
    }
    let layout = *member.layout();
    let region = layout.geometry();
    let application = member.superblock().application;
    let geometry = CacheGeometry::decode(application, region.nodes, region.area_lines);
    let (freed, is_ended) = match geometry {
        Ok(geometry) => {
            let areas = Areas::new(layout, geometry);
            let heap = Heap::new(member, areas);
            // Two things are not touched: a host tier of another version, and blocks that another
            // host is still reclaiming. In both cases no process of this life has used them. This
            // waits for no other host. It does wait for processes of this host that have the locks
            // of its orphan or its heap, so a lock manager calls it on a thread of its own.
            if heap.claim_format(clock) && heap.check_reclaimer(clock).is_ok() {
                let is_gone = |process| !member.is_process_alive(process);
                let (freed, mut dropped, is_ended) = heap.locked(clock, |heap, _| {
                    let outcome = (heap.reap(), heap.drop_holds_of(is_gone), heap.end_closing());
                    count_moved(heap);
                    outcome
                });
                // Others have the heap lock in between.
                while dropped == HOLDS_AT_ONCE as u64 {
                    dropped = heap.locked(clock, |heap, _| heap.drop_holds_of(is_gone));
                }
                (freed, is_ended)
            } else {
                (0, true)
            }
        }
        // Not a cache: then nothing of one is to be freed either.
        Err(_) => (0, true),
    };
    // HOST-N1: the next process in its place would seem to be returning the chunk.
    if !is_ended {
        return freed;
    }
    tracing::info!(
        processes = gone.len(),
        freed,
        "reclaimed blocks and holds of processes that are gone"
    );
    // A process has a place for each of its threads. The first of them is struck off last, so one
    // reclaimer counts the process.
    let mut ended = 0;
    for (at, process) in gone.iter().enumerate().rev() {
        let is_first = gone[..at].iter().all(|other| other.died() != process.died());
        let is_struck_off = member.forget_process(*process);
        ended += u64::from(is_struck_off && is_first && process.died().is_some());
    }
    count_ended(member, ended);
    freed
}
