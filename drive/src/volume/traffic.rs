//! Payload on its way between memory and a folder: how much, how long, and how much at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::clock::Clock;
use kv_cache::Histogram;

use super::Volume;
use crate::io::{Direction, Done, Finished, Transfer};

/// Transfers of payload in one direction since the folder was opened. Compaction is among them;
/// metadata is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes of transfers that succeeded.
    pub bytes: u64,
    /// Transfers that failed.
    pub failed: u64,
    /// Transfers that were refused because the queue was full.
    pub refused: u64,
    /// Transfers that wait or are under way now.
    pub queued: u64,
    /// How long transfers took that succeeded, the wait in the queue included.
    pub took: Histogram,
}

/// Both directions.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    reads: Mutex<Traffic>,
    writes: Mutex<Traffic>,
}

impl Transfers {
    fn of(&self, direction: Direction) -> MutexGuard<'_, Traffic> {
        let traffic = match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        };
        traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transfer that is counted as queued until this is dropped: a drive that stops drops it without
/// a call.
struct Queued {
    transfers: Arc<Transfers>,
    direction: Direction,
    clock: Arc<dyn Clock + Send + Sync>,
    began_us: u64,
    bytes: u64,
}

impl Queued {
    fn ended(&self, has_succeeded: bool) {
        let took_us = self.clock.now_us().saturating_sub(self.began_us);
        let mut traffic = self.transfers.of(self.direction);
        if has_succeeded {
            traffic.bytes += self.bytes;
            traffic.took.add(took_us);
        } else {
            traffic.failed += 1;
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.transfers.of(self.direction).queued -= 1;
    }
}

impl Volume {
    /// Transfers of payload in one direction.
    #[must_use]
    pub fn traffic(&self, direction: Direction) -> Traffic {
        *self.transfers.of(direction)
    }

    /// Begins to move payload, and counts it.
    pub(super) fn submit(&self, transfer: Transfer, done: Done) -> Result<(), Transfer> {
        let direction = transfer.direction;
        self.transfers.of(direction).queued += 1;
        let queued = Queued {
            transfers: Arc::clone(&self.transfers),
            direction,
            clock: Arc::clone(&self.options.clock),
            began_us: self.options.clock.now_us(),
            bytes: transfer.bytes as u64,
        };
        let ends = move |finished: Finished| {
            queued.ended(finished.outcome.is_ok());
            drop(queued);
            done(finished);
        };
        self.drive
            .submit(transfer, Box::new(ends))
            .inspect_err(|_| self.transfers.of(direction).refused += 1)
    }
}
