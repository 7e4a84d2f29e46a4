//! Intents: an update under a lock is redone or never seen (rule L2).
//!
//! A holder publishes what it is about to write, writes it, publishes it, then closes the intent.
//! When it dies on the way, whoever recovers finds the intent open and writes the same again.
//! An intent that was torn by the death has no valid seal: then nothing else was written yet.

use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory};
use crate::layout::{ChunkEntry, IntentRecord};
use crate::member::Seat;
use crate::units::{ChunkId, LockId};

/// Writes one entry of the chunk table. The caller holds `lock`, which guards the table, and has
/// refreshed it (L1).
pub(crate) fn set_chunk<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    lock: LockId,
    chunk: ChunkId,
    entry: &ChunkEntry,
) {
    let intent = seat.intent(lock);
    intent.publish(fabric, &IntentRecord::set_chunk(lock, chunk, entry));
    crash::reach(CrashPoint::IntentOpen);
    // M1: the lock makes us the one writer of the entry.
    seat.layout().chunk_entry(chunk).claim().publish(fabric, entry);
    crash::reach(CrashPoint::IntentWritten);
    intent.publish(fabric, &IntentRecord::closed());
}

/// Redoes and closes the intent that this node has open under `lock`, if any. The node still
/// holds the lock in the eyes of everybody else.
pub(crate) fn redo_own<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, lock: LockId) {
    if !seat.has_intent(lock) {
        return;
    }
    let intent = seat.intent(lock);
    let Ok(record) = intent.own(fabric) else {
        return;
    };
    let Some((of_lock, chunk, entry)) = record.open() else {
        return;
    };
    // Checked like anything read from shared memory (M5).
    if let (true, Some(chunk)) = (of_lock == lock, seat.layout().chunk_id(chunk)) {
        let line = seat.layout().chunk_entry(chunk);
        // Our caches may hold the line from before we held the lock.
        fabric.refresh(line.range());
        line.claim().publish(fabric, &entry);
    }
    crash::reach(CrashPoint::IntentRedone);
    intent.publish(fabric, &IntentRecord::closed());
}
