//! The folder of a drive, for the time of a replay.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use cxl_shm::region::free_bytes;
use kv_drive::volume::room_bytes;
use rackline_replay::{TierOptions, Trace};

/// Least capacity: two of its segments are few against the room above the high watermark.
const CAPACITY_MIN: u64 = 8 << 20;
/// Least capacity in blocks: a segment, one in 64 of it, has room for several.
const BLOCKS_MIN: u64 = 512;

/// The least of some capacities that has so much room for extents.
fn capacity_with(room: u64, tiers: &TierOptions) -> u64 {
    let mut capacity = CAPACITY_MIN.max(BLOCKS_MIN * tiers.extent_bytes());
    while room_bytes(capacity) < room {
        capacity += (capacity / 128).next_multiple_of(4096);
    }
    capacity
}

/// Room for extents of the folder that a live replay makes: no less than `tiers` asks for. Without a
/// limit nothing is to leave the folder.
pub(in super::super) fn folder_room(tiers: &TierOptions, trace: &Trace) -> u64 {
    let all = 2 * u64::from(trace.unique_blocks()) * tiers.extent_bytes();
    room_bytes(capacity_with(tiers.room_bytes.unwrap_or(all), tiers))
}

/// A folder that goes when this is dropped.
#[derive(Debug)]
pub(super) struct OwnFolder {
    pub(super) path: PathBuf,
    pub(super) capacity_bytes: u64,
}

impl OwnFolder {
    /// Makes the folder in `parent`, or where temporary files are. Its room is exactly that of
    /// `tiers`, which [`folder_room`] has said.
    pub(super) fn make(parent: Option<&Path>, tiers: &TierOptions, trace: &Trace) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let capacity_bytes = capacity_with(folder_room(tiers, trace), tiers);
        if let Some(free) = free_bytes(&parent)? {
            ensure!(
                free > capacity_bytes,
                "the drive takes {} in {}, where {} is free: give a smaller drive, or another \
                 folder with --drive-in",
                ByteSize(capacity_bytes),
                parent.display(),
                ByteSize(free)
            );
        }
        let path = parent.join(format!("rackline-replay-drive-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Self { path, capacity_bytes })
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            crate::output::complain!("rackline: {} is left: {error}", self.path.display());
        }
    }
}
