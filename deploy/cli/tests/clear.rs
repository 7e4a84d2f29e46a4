//! `rackline clear`, run beside processes that keep blocks and after one that left some.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use rackline::{BlockHash, Model, Namespace, NewBlock, Pool, SessionOptions};

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

fn rackline(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.stdin(Stdio::null()).args(arguments).output().unwrap()
}

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

fn attach(path: &Path, node: u16) -> Pool {
    Pool::attach(path, node).unwrap()
}

#[test]
fn a_tenant_is_cleared_on_nodes_that_live_and_that_left() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("pool");
    let region = path.to_str().unwrap();
    let format = ["format", "--region", region, "--create", "64MiB", "--chunk", "1MiB"];
    let output = rackline(&[&format[..], &["--lock", "bakery"]].concat());
    assert!(output.status.success(), "{output:?}");
    let gone = attach(&path, 0);
    publish(&gone, "one", 1);
    publish(&gone, "two", 2);
    drop(gone);
    let pool = attach(&path, 1);
    publish(&pool, "one", 3);
    publish(&pool, "two", 4);
    assert!(finds(&pool, "one", 1) && finds(&pool, "one", 3));

    let clear = ["clear", "--region", region, "--node", "2"];
    let output = rackline(&[&clear[..], &["--tenant", "one"]].concat());
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("no block of tenant"), "{said}");
    assert!(said.contains("removed for nodes that died or left: 1"), "{said}");
    assert!(!finds(&pool, "one", 1) && !finds(&pool, "one", 3));
    assert!(finds(&pool, "two", 2) && finds(&pool, "two", 4), "another tenant");

    let output = rackline(&[&clear[..], &["--all"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(!finds(&pool, "two", 2) && !finds(&pool, "two", 4));

    let output = rackline(&clear);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--tenant <NAME>"), "{output:?}");
}
