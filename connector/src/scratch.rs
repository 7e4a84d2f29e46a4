//! A region of this machine alone, for a while.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

use cxl_shm::fork::ProcessMark;
use cxl_shm::layout::{
    FormatError, Geometry, GeometryError, Layout, LockProtocol, Superblock, format_superblock,
};
use cxl_shm::region::{CreateError, Region};
use kv_cache::{CacheGeometry, DriveGeometry};

/// Where the file is: in memory.
const FOLDER: &str = "/dev/shm";
/// Locks of a region, beside those that the pool itself has.
const LOCKS: u32 = 8;

/// Why there is no such region. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScratchError {
    /// The file cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A block is longer than the region.
    #[error("blocks of {block_bytes} bytes do not fit a region of {region_bytes} bytes")]
    BlockTooLong {
        /// Length asked for, in bytes.
        block_bytes: u64,
        /// Size of the region, in bytes.
        region_bytes: u64,
    },
    /// The numbers do not fit each other.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The file cannot be formatted.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// A region in a file in `/dev/shm`, removed when this is dropped: for tests, examples, and a first
/// try. Processes of this machine attach to it as nodes of their own.
///
/// It has `bakery` locks, which need no lock manager. An operator makes the region of a rack with
/// `rackline format`. A process that is killed leaves the file `/dev/shm/rackline-scratch-*`. A
/// child made by `fork` leaves it to its parent.
///
/// # Example
/// ```
/// use rackline::{Pool, ScratchRegion};
///
/// let region = ScratchRegion::create(16 << 20, 2, 64 << 10)?;
/// let pool = Pool::attach(region.path(), 0)?;
/// assert_eq!(pool.node().0, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ScratchRegion {
    path: PathBuf,
    process: ProcessMark,
}

impl ScratchRegion {
    /// Makes one of `region_bytes` bytes for `nodes` nodes, and blocks of at most `block_bytes`
    /// bytes.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn create(region_bytes: u64, nodes: u16, block_bytes: u64) -> Result<Self, ScratchError> {
        Self::create_with_drives(region_bytes, nodes, block_bytes, 0)
    }

    /// As [`create`](Self::create), with room to announce blocks on drives of `drive_bytes` bytes a
    /// node.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn create_with_drives(
        region_bytes: u64,
        nodes: u16,
        block_bytes: u64,
        drive_bytes: u64,
    ) -> Result<Self, ScratchError> {
        if block_bytes > region_bytes {
            return Err(ScratchError::BlockTooLong { block_bytes, region_bytes });
        }
        let drives = DriveGeometry::suggest(drive_bytes, block_bytes, nodes);
        let cache = CacheGeometry::suggest(region_bytes, nodes, block_bytes).with_drives(drives);
        let geometry = Geometry {
            region_bytes,
            nodes,
            locks: LOCKS,
            chunk_bytes: block_bytes.next_power_of_two().max(1 << 20),
            area_lines: cache.area_lines(nodes),
            host_words: 0,
        };
        let host_words = cache.host_words(&Layout::new(geometry)?) as u64;
        // The hasher has keys of its own: random numbers of the operating system, which a child
        // made by `fork` has from its parent.
        let (high, low) = (random(), random() ^ u64::from(std::process::id()));
        let geometry = Geometry { host_words, ..geometry };
        let superblock = Superblock::new([high, low], geometry, cache.encode());
        let superblock = Superblock { lock_protocol: LockProtocol::Bakery, ..superblock };
        let path = Path::new(FOLDER).join(format!("rackline-scratch-{high:016x}{low:016x}"));
        let region = Region::create_file(&path, region_bytes)?;
        let scratch = Self { path, process: ProcessMark::of_this() };
        format_superblock(region.fabric(), &superblock, |_, _| ())?;
        Ok(scratch)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchRegion {
    fn drop(&mut self) {
        if self.process.is_of_this() {
            // A process that has it mapped keeps the memory. The file may be gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_longer_than_the_region_are_refused() {
        for block_bytes in [(16 << 20) + 1, u64::MAX] {
            let refused = ScratchRegion::create(16 << 20, 2, block_bytes).unwrap_err();
            assert!(matches!(refused, ScratchError::BlockTooLong { .. }), "{refused}");
        }
    }
}
