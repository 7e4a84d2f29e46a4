//! A prompt of 131,072 tokens on 8 ranks, with blocks of 16 tokens: 65,536 blocks.

use std::error::Error;

use rackline::{
    Attention, BlockHash, Dtype, HoldReport, KvGeometry, NewBlock, Pool, ScratchRegion, Session,
    SessionOptions,
};

const RANKS: u64 = 8;
const BLOCKS_A_RANK: u32 = 131_072 / 16;
const BLOCK_BYTES: usize = 64;
/// A page for each block, and what describes them.
const REGION_BYTES: u64 = 320 << 20;

fn hashes() -> Vec<BlockHash> {
    let hash = |number: u32| {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        BlockHash::new(bytes)
    };
    (0..BLOCKS_A_RANK).map(hash).collect()
}

/// A session for each rank: other bytes under the same hashes.
fn sessions(pool: &Pool) -> Result<Vec<Session<'_>>, Box<dyn Error>> {
    let session = |rank| {
        let heads = Attention::Heads { kv_heads: 1, head_dim: 16 };
        let kv = KvGeometry::new(1, heads, Dtype::F16, 1)?;
        let name = format!("rank {rank}");
        let model = kv.model(&name, "1", 1);
        Ok(pool.session(SessionOptions::new(model, BLOCK_BYTES as u64))?)
    };
    (0..RANKS).map(session).collect()
}

fn publish(pool: &Pool, hashes: &[BlockHash]) -> Result<(), Box<dyn Error>> {
    for (rank, session) in (0u8..).zip(sessions(pool)?) {
        let bytes = [rank; BLOCK_BYTES];
        let blocks: Vec<_> = (0..)
            .zip(hashes)
            .map(|(depth, hash)| NewBlock { hash: *hash, depth, bytes: [&bytes[..]] })
            .collect();
        for part in blocks.chunks(1024) {
            assert_eq!(session.publish(part)?.published(), part.len());
        }
    }
    Ok(())
}

#[test]
fn a_long_prompt_on_many_ranks_is_held_and_served_to_its_last_block() -> Result<(), Box<dyn Error>>
{
    let region = ScratchRegion::create(REGION_BYTES, 2, 4096)?;
    let (prefill, decode) = (Pool::attach(region.path(), 0)?, Pool::attach(region.path(), 1)?);
    let hashes = hashes();
    publish(&prefill, &hashes)?;
    let ranks = sessions(&decode)?;
    for _ in 0..3 {
        let held: Result<Vec<HoldReport>, _> =
            ranks.iter().map(|session| session.lookup_and_hold(&hashes)).collect();
        for ((rank, session), held) in (0u8..).zip(&ranks).zip(held?) {
            let blocks = held.blocks();
            assert_eq!((blocks.len(), held.stop()), (hashes.len(), None), "rank {rank}");
            // The last ones, as all others before them.
            let last = &blocks[blocks.len() - 512..];
            let mut buffers = vec![[0; BLOCK_BYTES]; last.len()];
            let into = buffers.iter_mut().map(|buffer| vec![&mut buffer[..]]).collect();
            assert_eq!(session.fetch(last, into)?.valid_blocks(), last.len());
            assert!(buffers.iter().all(|buffer| *buffer == [rank; BLOCK_BYTES]));
            session.release(held);
        }
    }
    let metrics = decode.metrics();
    assert_eq!(metrics.held_blocks, 3 * RANKS * u64::from(BLOCKS_A_RANK));
    assert_eq!(metrics.released_blocks, metrics.held_blocks, "nothing is left behind");
    assert_eq!((metrics.refused_holds, metrics.holds_without_room), (0, 0));
    assert_eq!(prefill.metrics().evicted_blocks, 0);
    Ok(())
}
