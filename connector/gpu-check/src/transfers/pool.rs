//! The pool of the check.

use std::path::Path;

use anyhow::{Context, Result};
use connector::session::SessionOptions;
use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::Region;
use kv_cache::{CacheGeometry, Model, Namespace};

use super::BLOCK_BYTES;

const REGION_BYTES: u64 = 64 << 20;

pub(super) fn options() -> SessionOptions {
    let model = Model {
        name: "gpu-check",
        revision: "1",
        dtype: "f16",
        layout_version: 1,
        block_tokens: 16,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 2,
        kv_heads: 1,
        head_dim: 64,
    };
    SessionOptions {
        model: model.fingerprint(),
        namespace: Namespace::default(),
        block_bytes: BLOCK_BYTES as u64,
        chunk_timeout_ms: 5000,
    }
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
