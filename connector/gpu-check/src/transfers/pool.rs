//! The pool of the check.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::Region;
use kv_cache::CacheGeometry;
use rackline::{Attention, Dtype, KvGeometry, SessionOptions};

use super::BLOCK_BYTES;

const REGION_BYTES: u64 = 64 << 20;

pub(super) fn options() -> Result<SessionOptions> {
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    let model = KvGeometry::new(2, heads, Dtype::F16, 16)?.model("gpu-check", "1", 1);
    let options = SessionOptions::new(model, BLOCK_BYTES as u64);
    Ok(options.with_chunk_timeout(Duration::from_secs(5)))
}

/// A region whose locks need no lock manager.
pub(super) fn make_region(path: &Path) -> Result<()> {
    let cache = CacheGeometry::new(64, 64).context("the geometry of the cache")?;
    let geometry = Geometry {
        region_bytes: REGION_BYTES,
        nodes: 1,
        locks: 8,
        chunk_bytes: 4 << 20,
        area_lines: cache.area_lines(1),
        host_words: 0,
    };
    let host_words = cache.host_words(&Layout::new(geometry)?) as u64;
    // Host tiers are told apart by it: the random name of the folder, in part.
    let name = path.as_os_str().as_encoded_bytes();
    let random = name.iter().fold(0, |sum: u64, byte| sum.rotate_left(7) ^ u64::from(*byte));
    let uuid = [u64::from(std::process::id()), random];
    let superblock = Superblock::new(uuid, Geometry { host_words, ..geometry }, cache.encode());
    let superblock = Superblock { lock_protocol: LockProtocol::Bakery, ..superblock };
    let region = Region::create_file(path, REGION_BYTES)?;
    format_superblock(region.fabric(), &superblock, |_, _| ())?;
    Ok(())
}
