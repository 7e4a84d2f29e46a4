//! A tenant whose blocks are pinned and cleared, by a process beside the ones that keep them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use rackline::{
    BlockHash, DirectiveError, Model, Namespace, NewBlock, Pool, ScratchRegion, SessionOptions,
};

const MODEL: Model<'_> = Model {
    name: "model",
    revision: "1",
    dtype: "f16",
    layout_version: 1,
    block_tokens: 16,
    tensor_parallel_rank: 0,
    tensor_parallel_size: 1,
    layers: 1,
    kv_heads: 1,
    head_dim: 1,
};
const BLOCK_BYTES: u64 = 64 << 10;

fn options(tenant: &str) -> SessionOptions {
    SessionOptions::new(MODEL, BLOCK_BYTES).with_namespace(Namespace::new(tenant, b""))
}

fn publish(pool: &Pool, tenant: &str, number: u8) {
    let bytes = vec![number; usize::try_from(BLOCK_BYTES).unwrap()];
    let hash = BlockHash::new([number; 32]);
    let block = NewBlock { hash, depth: 0, bytes: [bytes.as_slice()] };
    let report = pool.session(options(tenant)).unwrap().publish(&[block]).unwrap();
    assert_eq!(report.available(), 1);
}

fn finds(pool: &Pool, tenant: &str, number: u8) -> bool {
    let session = pool.session(options(tenant)).unwrap();
    !session.lookup(&[BlockHash::new([number; 32])]).unwrap().blocks().is_empty()
}

#[test]
fn a_tenant_is_cleared_on_nodes_that_live_and_that_left() {
    let region = ScratchRegion::create(32 << 20, 3, BLOCK_BYTES).unwrap();
    let attach = |node| Pool::attach(region.path(), node).unwrap();
    let gone = attach(0);
    publish(&gone, "one", 1);
    publish(&gone, "two", 2);
    drop(gone);
    let pool = attach(1);
    publish(&pool, "one", 3);
    publish(&pool, "two", 4);
    assert!(finds(&pool, "one", 1) && finds(&pool, "one", 3));

    let one = Namespace::new("one", b"");
    let cleared = attach(2).clear(Some(&one), Duration::from_secs(30)).unwrap();
    assert_eq!((cleared.unanswered, cleared.orphaned_blocks), (vec![], 1));
    assert!(!finds(&pool, "one", 1) && !finds(&pool, "one", 3));
    assert!(finds(&pool, "two", 2) && finds(&pool, "two", 4), "another tenant");

    let cleared = pool.clear(None, Duration::from_secs(30)).unwrap();
    assert_eq!(cleared.unanswered, []);
    assert!(!finds(&pool, "two", 2) && !finds(&pool, "two", 4));
    publish(&pool, "one", 3);
    assert!(finds(&pool, "one", 3), "published later");
}

#[test]
fn a_tenant_is_pinned_on_all_nodes_and_its_blocks_stay_found() {
    let region = ScratchRegion::create(32 << 20, 2, BLOCK_BYTES).unwrap();
    let pool = Pool::attach(region.path(), 0).unwrap();
    let asking = Pool::attach(region.path(), 1).unwrap();
    publish(&pool, "one", 1);
    let (one, hour) = (Namespace::new("one", b""), Duration::from_secs(3600));
    let timeout = Duration::from_secs(30);
    assert_eq!(asking.pin(&one, 30, hour, timeout), Ok(vec![]));
    assert!(finds(&pool, "one", 1));
    assert_eq!(asking.unpin(&one, timeout), Ok(vec![]));
    for (percent, length, error) in [
        (51, hour, DirectiveError::Percent(51)),
        (30, Duration::ZERO, DirectiveError::Length(0)),
        (30, Duration::MAX, DirectiveError::Length(u64::MAX)),
    ] {
        assert_eq!(asking.pin(&one, percent, length, timeout), Err(error));
    }
}
