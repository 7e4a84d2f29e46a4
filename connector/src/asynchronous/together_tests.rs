//! Sessions whose transfers go together, on a real region in /dev/shm.

use std::sync::Arc;

use kv_cache::{Attention, BlockHash, Dtype, KvGeometry, MatchedBlock};

use super::tests::{BLOCK_BYTES, attach, region};
use super::*;
use crate::block::NewBlock;
use crate::dma::Layers;

const SHARES: [&str; 3] = ["a", "b", "c"];

fn options(name: &str) -> SessionOptions {
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    let kv = KvGeometry::new(2, heads, Dtype::F16, 16).unwrap();
    SessionOptions::new(kv.model(name, "1", 1), BLOCK_BYTES as u64)
}

fn sessions(pool: &AsyncPool) -> Vec<AsyncSession> {
    SHARES.iter().map(|name| pool.session(options(name)).unwrap()).collect()
}

fn together(sessions: &[AsyncSession]) -> AsyncSession {
    let others: Vec<_> = sessions[1..].iter().collect();
    sessions[0].together(&others).unwrap()
}

fn hash(number: u8) -> BlockHash {
    BlockHash::new([number; 32])
}

fn bytes(number: u8, share: usize) -> Vec<Vec<u8>> {
    let fill = number * 3 + u8::try_from(share).unwrap();
    vec![vec![fill; 100], vec![!fill; BLOCK_BYTES - 100]]
}

/// Blocks of all shares in turns.
fn blocks(numbers: std::ops::Range<u8>) -> Vec<NewBlock<Vec<Vec<u8>>>> {
    let in_turns = numbers.flat_map(|number| (0..SHARES.len()).map(move |share| (number, share)));
    let block = |(number, share)| {
        let bytes = bytes(number, share);
        NewBlock { hash: hash(number), depth: u32::from(number), bytes }
    };
    in_turns.map(block).collect()
}

/// What each session finds by itself, in turns.
fn find(sessions: &[AsyncSession], count: u8) -> Vec<MatchedBlock> {
    let hashes: Vec<_> = (0..count).map(hash).collect();
    let each = sessions.iter().map(|session| {
        let found = session.lookup(hashes.clone()).unwrap().wait().unwrap().unwrap();
        assert_eq!(found.blocks().len(), usize::from(count));
        found.into_blocks()
    });
    let each: Vec<_> = each.collect();
    (0..usize::from(count)).flat_map(|number| each.iter().map(move |found| found[number])).collect()
}

fn empty(count: usize) -> Vec<Vec<Vec<u8>>> {
    vec![vec![vec![0; BLOCK_BYTES / 2]; 2]; count]
}

#[test]
fn a_transfer_has_the_blocks_of_each_session() {
    let (_folder, path) = region();
    let (prefill, decode) = (attach(&path, 0, 8), attach(&path, 1, 8));
    let published = together(&sessions(&prefill)).publish(blocks(0..20)).unwrap().wait().unwrap();
    assert_eq!(published.report.unwrap().published(), 60);
    assert_eq!(published.blocks, blocks(0..20));

    let sessions = sessions(&decode);
    let found = find(&sessions, 20);
    let fetched = together(&sessions).fetch(found.clone(), empty(60)).unwrap().wait().unwrap();
    assert_eq!(fetched.report.unwrap().valid_blocks(), 60);
    for (parts, block) in fetched.destinations.iter().zip(blocks(0..20)) {
        assert_eq!(parts.concat(), block.bytes.concat());
    }
    // A block of another session than its turn is: a miss, behind which nothing is valid.
    for wrong in [0, 3 * 7 + 1, 59] {
        let mut swapped = found.clone();
        swapped[wrong] = found[wrong / 3 * 3 + (wrong + 1) % 3];
        let fetched = together(&sessions).fetch(swapped, empty(60)).unwrap().wait().unwrap();
        let report = fetched.report.unwrap();
        assert_eq!(report.valid_blocks(), wrong);
        assert_eq!(report.stop().unwrap().label(), "key_collision");
    }
}

#[test]
fn layers_of_all_sessions_go_together() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let layers = Arc::new(Layers::new([100, BLOCK_BYTES as u64 - 100]));
    let sessions = sessions(&pool);
    let publish = together(&sessions).publish_by_layers(blocks(0..5), Arc::clone(&layers)).unwrap();
    publish.layer_ready(0);
    publish.layer_ready(1);
    let published = publish.finish().wait().unwrap();
    assert_eq!(published.report.unwrap().unwrap().published(), 15);

    let found = find(&sessions, 5);
    let fetch = together(&sessions).fetch_by_layers(found, empty(15), layers).unwrap();
    fetch.arrivals.wait(1).unwrap();
    let fetched = fetch.completion.wait().unwrap();
    assert_eq!(fetched.report.unwrap().valid_blocks(), 15);
    for (parts, block) in fetched.destinations.iter().zip(blocks(0..5)) {
        assert_eq!(parts.concat(), block.bytes.concat());
    }
}

#[test]
fn sessions_that_differ_in_more_than_the_model_do_not_go_together() {
    let (_folder, path) = region();
    let (pool, other_pool) = (attach(&path, 0, 8), attach(&path, 1, 8));
    let session = pool.session(options("a")).unwrap();
    assert!(session.together(&[]).is_some());
    assert!(session.together(&[&pool.session(options("b")).unwrap()]).is_some());
    let short = SessionOptions::new(options("b").model(), 64);
    assert!(session.together(&[&pool.session(short).unwrap()]).is_none());
    assert!(session.together(&[&other_pool.session(options("b")).unwrap()]).is_none());
}
