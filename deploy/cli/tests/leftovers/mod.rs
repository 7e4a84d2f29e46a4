//! What processes that were killed leave of a region outside it.

use std::path::Path;

use cxl_shm::layout::{Layout, read_superblock};
use cxl_shm::member::{HOST_TIER_FOLDER, HostTierFile};
use cxl_shm::region::Region;

/// Removes the files by which the processes of a host found each other over the region at `path`.
/// Nobody is attached to it any more.
pub(crate) fn remove(path: &Path) {
    let region = Region::open(path, None).unwrap();
    let superblock = read_superblock(region.fabric()).unwrap().0;
    let layout = Layout::new(superblock.geometry).unwrap();
    HostTierFile::remove_all(Path::new(HOST_TIER_FOLDER), &superblock, &layout).unwrap();
}
