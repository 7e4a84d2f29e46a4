//! Each folder is kept between its watermarks.

use std::sync::Arc;

use kv_cache::{BlockKey, Watermarks};

use super::Store;
use crate::policy::Budgets;
use crate::volume::{CommitError, Volume};

/// Segments that one call empties at most: reads go before.
const COLLECTIONS: usize = 64;
/// A segment is emptied when at most so many percent of it are in use.
const COLLECTED_PERCENT: u32 = 90;

/// Which blocks leave a store when room is short.
#[expect(missing_debug_implementations, reason = "functions of the caller")]
pub struct KeepRoom<'a> {
    /// Shares of the room of a folder, in percent (DRIVE-P3).
    pub watermarks: Watermarks,
    /// What namespaces may keep, over all folders (DRIVE-P4).
    pub budgets: &'a Budgets,
    /// Whether a block may leave. One whose restore was promised may not.
    pub may_leave: &'a mut dyn FnMut(&BlockKey) -> bool,
    /// Called with blocks that are about to leave, before they are not found any more. Not with those
    /// that another folder has, too.
    pub leaving: &'a mut dyn FnMut(&[BlockKey]),
}

impl Store {
    /// Keeps each folder between its watermarks: above the high one the blocks leave that were used
    /// longest ago, until the extents of the others take no more than the low one. A folder in which no
    /// segment can be made gives the room of two. Nothing leaves a folder before its tables were read.
    /// Then segments with little in them are emptied. Returns how many blocks left, and the errors of folders.
    pub fn keep_room(&self, room: &mut KeepRoom<'_>) -> (usize, Vec<CommitError>) {
        let (mut left, mut errors) = (0, Vec::new());
        let volumes: Vec<_> = self.volumes().map(|(_, volume)| volume).collect();
        for volume in &volumes {
            left += room.make(volume, &volumes);
            if let Err(error) = room.collect(volume) {
                errors.push(error);
            }
        }
        (left, errors)
    }
}

impl KeepRoom<'_> {
    /// Lets blocks of one folder leave: above the high watermark, and when no segment can be made.
    fn make(&mut self, volume: &Volume, all: &[Arc<Volume>]) -> usize {
        // Before, it is not known which blocks were used longest ago.
        if !volume.was_scanned() {
            return 0;
        }
        let usage = volume.usage();
        let above = match self.watermarks.is_above(usage.in_use(), usage.room()) {
            true => self.watermarks.surplus(usage.in_use(), usage.room()),
            false => 0,
        };
        let surplus = above.max(volume.wanted_bytes().saturating_sub(usage.leaving));
        if surplus == 0 {
            return 0;
        }
        let of_namespace = |tag| all.iter().map(|volume| volume.bytes_of(tag)).sum();
        let mut left = 0;
        for (namespace, bytes) in self.budgets.shares(surplus, of_namespace) {
            let keys = volume.oldest(bytes, Some(namespace), &mut self.may_leave);
            left += self.remove(volume, &keys, all);
        }
        let gone = usage.live - volume.usage().live.min(usage.live);
        if gone < surplus {
            let keys = volume.oldest(surplus - gone, None, &mut self.may_leave);
            left += self.remove(volume, &keys, all);
        }
        left
    }

    fn remove(&mut self, volume: &Volume, keys: &[BlockKey], all: &[Arc<Volume>]) -> usize {
        // A folder that was away for a while may have a block that was written to another since.
        let others = || all.iter().filter(|other| !std::ptr::eq(&***other, volume));
        let has_other = |key: &BlockKey| others().any(|other| other.find(key).is_some());
        let last: Vec<_> = keys.iter().copied().filter(|key| !has_other(key)).collect();
        if !last.is_empty() {
            (self.leaving)(&last);
        }
        volume.remove_all(keys)
    }

    /// Brings the room of removed blocks back, from segments that hold some still, if need be.
    fn collect(&self, volume: &Arc<Volume>) -> Result<(), CommitError> {
        let is_short = || {
            let usage = volume.usage();
            volume.wanted_bytes() > 0
                || self.watermarks.is_above(usage.room().saturating_sub(usage.free), usage.room())
        };
        if is_short() {
            volume.commit_untold()?;
        }
        for _ in 0..COLLECTIONS {
            if !is_short() || volume.collect(COLLECTED_PERCENT)?.moved == 0 {
                break;
            }
        }
        Ok(())
    }
}
