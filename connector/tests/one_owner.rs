//! One node of 8 fills the pool, as the prefill host of a rack does.

use std::error::Error;

use rackline::{
    Attention, BlockHash, Dtype, KvGeometry, NewBlock, Pool, ScratchRegion, SessionOptions,
};

const NODES: u16 = 8;
const REGION_BYTES: u64 = 64 << 20;
/// What `rackline format` plans for, unless it is told otherwise.
const PLANNED_BYTES: u64 = 64 << 10;

/// Publishes blocks of so many bytes until little of the pool is left. Returns how many bytes.
fn fill(block_bytes: usize, wanted_bytes: u64) -> Result<(), Box<dyn Error>> {
    let region = ScratchRegion::create(REGION_BYTES, NODES, PLANNED_BYTES)?;
    let (prefill, decode) = (Pool::attach(region.path(), 0)?, Pool::attach(region.path(), 1)?);
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    let kv = KvGeometry::new(2, heads, Dtype::F16, 16)?;
    let options = || SessionOptions::new(kv.model("one owner", "1", 1), block_bytes as u64);
    let (from, to) = (prefill.session(options())?, decode.session(options())?);
    let count = u32::try_from(wanted_bytes / block_bytes as u64)?;
    let hashes: Vec<_> = (0..count)
        .map(|number| {
            let mut hash = [7; 32];
            hash[..4].copy_from_slice(&number.to_le_bytes());
            BlockHash::new(hash)
        })
        .collect();
    let bytes = vec![5; block_bytes];
    for (first, part) in (0..).step_by(64).zip(hashes.chunks(64)) {
        let blocks = NewBlock::chain(first, part.to_vec(), vec![[&bytes[..]]; part.len()]);
        assert_eq!(from.publish(&blocks)?.published(), part.len());
    }
    let metrics = prefill.metrics();
    assert_eq!((metrics.evicted_blocks, metrics.refused), (0, 0), "blocks of {block_bytes} bytes");
    assert_eq!(to.lookup(&hashes)?.blocks().len(), hashes.len());
    Ok(())
}

#[test]
fn one_node_of_eight_fills_the_pool_with_blocks_of_any_size() -> Result<(), Box<dyn Error>> {
    // All but metadata, and a chunk that is not full.
    for block_bytes in [64 << 10, 100 << 10, 512 << 10] {
        let a_megabyte = (1 << 20) / block_bytes as u64 * block_bytes as u64;
        fill(block_bytes, 58 * a_megabyte)?;
    }
    Ok(())
}
