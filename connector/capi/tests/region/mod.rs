//! A fresh pool in /dev/shm, whose locks need no lock manager.

use std::path::{Path, PathBuf};

use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::Region;
use kv_cache::{CacheGeometry, DriveGeometry};
use tempfile::TempDir;
use uuid::Uuid;

const NODES: u16 = 2;

/// Gone when it is dropped, also what processes that were killed left of it.
pub(crate) struct Pool {
    _folder: TempDir,
    path: PathBuf,
    uuid: Uuid,
}

impl Pool {
    /// One of `bytes` bytes for two nodes.
    pub(crate) fn new(bytes: u64) -> Self {
        Self::of(bytes, None)
    }

    /// The same, with `drives`.
    pub(crate) fn of(bytes: u64, drives: Option<DriveGeometry>) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("region");
        let cache = CacheGeometry::new(1024, 256).unwrap().with_drives(drives);
        let geometry = Geometry {
            region_bytes: bytes,
            nodes: NODES,
            locks: 8,
            chunk_bytes: 1 << 20,
            area_lines: cache.area_lines(NODES),
            host_words: 0,
        };
        let host_words = cache.host_words(&Layout::new(geometry).unwrap()) as u64;
        let uuid = Uuid::new_v4();
        let (high, low) = uuid.as_u64_pair();
        let geometry = Geometry { host_words, ..geometry };
        let superblock = Superblock::new([high, low], geometry, cache.encode());
        let superblock = Superblock { lock_protocol: LockProtocol::Bakery, ..superblock };
        let region = Region::create_file(&path, bytes).unwrap();
        format_superblock(region.fabric(), &superblock, |_, _| ()).unwrap();
        Self { _folder: folder, path, uuid }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The files in /dev/shm by which processes of a host find each other.
    pub(crate) fn host_tiers(&self) -> Vec<PathBuf> {
        let uuid = self.uuid.to_string();
        let files = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.to_string_lossy().contains(&uuid)).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for tier in self.host_tiers() {
            let _ = std::fs::remove_file(tier);
        }
    }
}
