//! `rackline inspect` on a region in use.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rackline::{BlockHash, Model, NewBlock, Pool, SessionOptions};
use tempfile::TempDir;

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

fn rackline(region: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    let (first, rest) = arguments.split_first().unwrap();
    command.stdin(Stdio::null()).arg(first).arg("--region").arg(region).args(rest);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), text.concat())
}

fn formatted() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = folder.path().join("pool");
    let sizes = ["--chunk", "1MiB", "--block", "64KiB", "--nodes", "2", "--lock", "bakery"];
    let (made, said) = rackline(&region, &[&["format", "--create", "32MiB"], &sizes[..]].concat());
    assert!(made, "{said}");
    (folder, region)
}

#[test]
fn blocks_locks_chunks_nodes_and_lines_are_shown_with_the_names_of_their_fields() {
    let (_folder, region) = formatted();
    let pool = Pool::attach(&region, 1).unwrap();
    let session = pool.session(SessionOptions::new(MODEL, 64 << 10)).unwrap();
    let (hash, bytes) = (BlockHash::new([9; 32]), vec![5; 64 << 10]);
    let block = NewBlock { hash, depth: 0, bytes: [bytes.as_slice()] };
    assert_eq!(session.publish(&[block]).unwrap().available(), 1);
    let held = session.lookup_and_hold(&[hash]).unwrap();
    let key: String =
        held.blocks()[0].key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let inspect = |arguments: &[&str]| {
        let (done, said) = rackline(&region, &[&["inspect"], arguments].concat());
        assert!(done, "{said}");
        said
    };
    let said = inspect(&["block", &key[..16]]);
    assert!(said.contains(&format!("block {key} of node 1, descriptor")), "{said}");
    assert!(said.contains("payload_bytes          0x00010000 (65536)"), "{said}");
    assert!(said.contains("held by nodes 1"), "{said}");
    // The payload of the descriptor is in the chunk that the next command shows.
    let offset = said.lines().find(|line| line.contains("payload_offset")).unwrap();
    let offset = offset.split_whitespace().nth(1).unwrap();
    let said = inspect(&["line", offset]);
    assert!(said.contains("payload, number ") && said.contains("0505050505050505"), "{said}");
    let chunk = said.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned();
    let said = inspect(&["chunk", &chunk]);
    assert!(said.contains(&format!(": chunk, number {chunk}")), "{said}");
    assert!(said.contains("owner                  0x00000001 (1)"), "{said}");
    assert!(said.contains("1 blocks") || said.contains("2 blocks"), "{said}");
    let said = inspect(&["node", "1"]);
    assert!(said.contains("state of a node, node 1, number 0"), "{said}");
    assert!(said.contains("state                  0x00000002 (2)"), "{said}");
    assert!(said.contains("heartbeat of a node, node 1"), "{said}");
    assert!(said.contains("heads of the log and the directives, area of node 1"), "{said}");
    let said = inspect(&["lock", "1"]);
    assert!(said.contains("lock 1 guards the chunk table; locks are bakery"), "{said}");
    assert!(said.contains("head of a redo record, node 1, number 1"), "{said}");
    let said = inspect(&["line", "0"]);
    assert!(said.contains("superblock: identity") && said.contains("chunk_bytes "), "{said}");
    drop(held);
    drop(session);
    drop(pool);
    let said = inspect(&["block", &key]);
    assert!(said.contains("held by no node"), "{said}");
}

#[test]
fn what_does_not_exist_is_refused_with_what_does() {
    let (_folder, region) = formatted();
    for (arguments, expected) in [
        (["node", "2"], "node 2 does not exist: this region has nodes 0 to 1"),
        (["chunk", "999"], "chunk 999 does not exist: this region has chunks 0 to"),
        (["lock", "99999"], "lock 99999 does not exist: this region has locks 0 to"),
        (["line", "0x8000000"], "offset 0x8000000 is behind the end"),
        (["line", "ten"], "give bytes from the start"),
        (["block", "abc"], "no block in the region has a key that begins with abc"),
        (["block", "xyz"], "give hexadecimal digits"),
    ] {
        let (done, said) = rackline(&region, &[&["inspect"], &arguments[..]].concat());
        assert!(!done && said.contains(expected), "{arguments:?}: {said}");
    }
    // A line that does not read says so.
    let file = std::fs::File::options().write(true).open(&region).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1], 3 * 4096 + 8).unwrap();
    let (done, said) = rackline(&region, &["inspect", "line", "0x3000"]);
    assert!(done && said.contains("does not read: line 0x3000 does not hold"), "{said}");
}
