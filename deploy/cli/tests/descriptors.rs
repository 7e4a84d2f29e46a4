//! The descriptors of a pool that is formatted with the defaults, as `rackline status` shows them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Command, Stdio};

use serde_json::Value;

fn rackline(arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    let output = command.stdin(Stdio::null()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn with_the_defaults_each_node_can_own_a_pool_of_blocks_of_64_kib() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("pool");
    let region = path.to_str().unwrap();
    rackline(&["format", "--region", region, "--create", "256MiB", "--chunk", "1MiB"]);
    let _pool = rackline::Pool::attach(&path, 3).unwrap();
    let status = rackline(&["status", "--region", region, "--json"]);
    let status: Value = serde_json::from_slice(&status).unwrap();
    let blocks = status["chunks"].as_u64().unwrap() * (1 << 20) / (64 << 10);
    assert!(blocks > 3900, "little of the pool is metadata: {status}");
    let nodes = status["nodes"].as_array().unwrap();
    assert!(!nodes.is_empty(), "{status}");
    for node in nodes {
        assert_eq!(node["descriptors"], 0);
        assert!(node["descriptors_max"].as_u64().unwrap() >= blocks, "{node}");
    }
}
