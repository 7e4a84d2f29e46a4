//! `rackline fsck` on real regions: without findings while processes publish, and with each damage by its
//! name, which a repair removes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rackline::{BlockHash, Model, NewBlock, Pool, SessionOptions};
use serde_json::Value;
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
const BLOCK_BYTES: usize = 64 << 10;

fn rackline(region: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.stdin(Stdio::null()).args(arguments).arg("--region").arg(region).output().unwrap()
}

fn formatted() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = folder.path().join("pool");
    let arguments = ["format", "--create", "32MiB", "--chunk", "1MiB", "--block", "64KiB"];
    let output =
        rackline(&region, &[&arguments[..], &["--nodes", "2", "--lock", "bakery"]].concat());
    assert!(output.status.success(), "{output:?}");
    (folder, region)
}

fn hash(number: u32) -> BlockHash {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    BlockHash::new(bytes)
}

/// The bytes of a block, which are nowhere else in the region.
fn content(number: u32) -> Vec<u8> {
    let word = 0x5EED_0000_u32 | number;
    word.to_le_bytes().repeat(BLOCK_BYTES / 4)
}

fn publish(pool: &Pool, number: u32) {
    let bytes = content(number);
    let block = NewBlock { hash: hash(number), depth: 0, bytes: [bytes.as_slice()] };
    let session = pool.session(SessionOptions::new(MODEL, BLOCK_BYTES as u64)).unwrap();
    assert_eq!(session.publish(&[block]).unwrap().available(), 1);
}

fn finds(pool: &Pool, number: u32) -> bool {
    let session = pool.session(SessionOptions::new(MODEL, BLOCK_BYTES as u64)).unwrap();
    !session.lookup(&[hash(number)]).unwrap().blocks().is_empty()
}

/// Exit code, names of the findings, and the whole report.
fn fsck(region: &Path, arguments: &[&str]) -> (i32, Vec<String>, Value) {
    let output = rackline(region, &[&["fsck", "--json"], arguments].concat());
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let found = report["findings"].as_array().unwrap();
    let names = found.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect();
    (output.status.code().unwrap(), names, report)
}

/// Changes a byte in the middle of a block, wherever it lies.
fn damage(region: &Path, number: u32) {
    let (bytes, wanted) = (std::fs::read(region).unwrap(), content(number));
    let at = (0..bytes.len()).step_by(4096).find(|at| bytes[*at..].starts_with(&wanted)).unwrap();
    flip(region, at as u64 + 30_000);
}

fn flip(region: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(region).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 8], at).unwrap();
}

#[test]
fn a_healthy_region_under_load_has_no_findings() {
    let (_folder, region) = formatted();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in 0..2 {
            let (region, over) = (&region, &over);
            scope.spawn(move || {
                let pool = Pool::attach(region, node).unwrap();
                // Far more than the region holds: blocks leave all the time.
                let mut number = u32::from(node) << 16;
                while !over.load(Ordering::Relaxed) {
                    publish(&pool, number);
                    number += 1;
                }
            });
        }
        let reports: Vec<_> = (0..5).map(|_| fsck(&region, &["--all"])).collect();
        over.store(true, Ordering::Relaxed);
        for (code, names, report) in reports {
            assert_eq!((code, names), (0, vec![]), "{report}");
        }
    });
    let (code, names, report) = fsck(&region, &["--offline", "--all"]);
    assert_eq!((code, names), (0, vec![]), "{report}");
    assert!(report["payload_blocks"].as_u64().unwrap() > 10, "{report}");
    assert_eq!((&report["changing"], &report["offline"]), (&0.into(), &true.into()));
}

#[test]
fn damage_is_found_in_use_and_repaired_when_nobody_uses_the_region() {
    let (_folder, region) = formatted();
    let pool = Pool::attach(&region, 0).unwrap();
    (0..4).for_each(|number| publish(&pool, number));
    damage(&region, 2);
    let (code, names, report) = fsck(&region, &["--all"]);
    assert_eq!((code, names), (2, vec!["payload_damaged".to_owned()]), "{report}");
    let found = &report["findings"][0];
    assert_eq!(found["gravity"], "damage");
    assert!(found["to_do"].as_str().unwrap().contains("--repair"), "{report}");
    assert_eq!(report["repaired"], false);
    for offline in ["--offline", "--repair"] {
        let output = rackline(&region, &["fsck", "--all", offline]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is in use"), "{said}");
    }
    drop(pool);
    let output = rackline(&region, &["fsck", "--all", "--repair"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let plan = said.find("--repair will\n  remove the block of node 0, descriptor");
    assert!(plan < said.find("repaired: 1") && plan.is_some(), "{said}");
    assert_eq!(fsck(&region, &["--offline", "--all"]).0, 0);
    let pool = Pool::attach(&region, 1).unwrap();
    let there: Vec<_> = (0..4).filter(|number| finds(&pool, *number)).collect();
    assert_eq!(there, [0, 1, 3]);
}

#[test]
fn a_node_that_ended_without_leaving_keeps_repairs_away() {
    let (_folder, region) = formatted();
    let mut manager = Command::new(env!("CARGO_BIN_EXE_rackline"))
        .args(["lock-manager", "--node", "1", "--region"])
        .arg(&region)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_joined = || {
        let output = rackline(&region, &["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status["nodes"].as_array().unwrap().iter().any(|node| node["state"] == "joined")
    };
    while !is_joined() {
        assert!(manager.try_wait().unwrap().is_none(), "the lock manager has ended");
    }
    manager.kill().unwrap();
    manager.wait().unwrap();
    let pool = Pool::attach(&region, 0).unwrap();
    (0..2).for_each(|number| publish(&pool, number));
    drop(pool);
    damage(&region, 1);
    let (code, mut names, report) = fsck(&region, &["--offline", "--all"]);
    names.sort_unstable();
    assert_eq!(
        (code, names),
        (2, vec!["node_abandoned".into(), "payload_damaged".into()]),
        "{report}"
    );
    let output = rackline(&region, &["fsck", "--all", "--repair"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was repaired: node 1 takes part"), "{said}");
    assert_eq!(fsck(&region, &["--all"]).0, 2, "it is still there");
    let output = rackline(&region, &["format", "--force", "--nodes", "2", "--chunk", "1MiB"]);
    assert!(output.status.success(), "the files of its host tier go, too: {output:?}");
}

#[test]
fn a_damaged_superblock_is_a_finding() {
    let (_folder, region) = formatted();
    flip(&region, 70);
    let (code, names, report) = fsck(&region, &[]);
    assert_eq!((code, names), (2, vec!["superblock_damaged".to_owned()]), "{report}");
    let output = rackline(&region, &["fsck"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("superblock_damaged at 0x0"), "{said}");
    std::fs::write(&region, [0; 64 << 10]).unwrap();
    let output = rackline(&region, &["fsck"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
