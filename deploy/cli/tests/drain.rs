//! `rackline drain`, run beside a process that publishes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rackline::{BlockHash, Model, NewBlock, SessionOptions};
use serde_json::{Value, json};
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
const BLOCK_BYTES: usize = 16 << 10;

/// A pool of three nodes whose locks need no manager.
struct Pool(TempDir);

impl Pool {
    fn format() -> Self {
        let pool = Self(tempfile::tempdir_in("/dev/shm").unwrap());
        let sizes = ["--create", "16MiB", "--nodes", "3", "--chunk", "1MiB", "--lock", "bakery"];
        said(&pool.rackline(&[&["format"][..], &sizes].concat()).output().unwrap());
        pool
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("pool")
    }

    fn rackline(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
        command.args(arguments).arg("--region").arg(self.path()).stdin(Stdio::null());
        command
    }
}

/// What becomes of a block.
fn publish(pool: &rackline::Pool, number: u8) -> &'static str {
    let bytes = vec![number; BLOCK_BYTES];
    let hash = BlockHash::new([number; 32]);
    let block = NewBlock { hash, depth: 0, bytes: [bytes.as_slice()] };
    let session = pool.session(SessionOptions::new(MODEL, BLOCK_BYTES as u64)).unwrap();
    session.publish(&[block]).unwrap().outcomes()[0].label()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_node_is_drained_until_somebody_ends_that() {
    let pool = Pool::format();
    let drain = |more: &[&str]| {
        let arguments = [&["drain", "--node", "1", "--from", "2"], more].concat();
        pool.rackline(&arguments).output().unwrap()
    };
    let status = || {
        let output = pool.rackline(&["status", "--json"]).output().unwrap();
        serde_json::from_str::<Value>(&said(&output)).unwrap()
    };
    let engine = rackline::Pool::attach(pool.path(), 1).unwrap();
    assert_eq!(publish(&engine, 1), "published");

    let outcome: Value = serde_json::from_str(&said(&drain(&["--json"]))).unwrap();
    assert_eq!(
        outcome,
        json!({
            "node": 1, "drained": true, "left": false, "blocks": 1, "block_bytes": BLOCK_BYTES,
            "drive_blocks": 0, "drive_bytes": 0,
        })
    );
    assert_eq!((publish(&engine, 1), publish(&engine, 2)), ("already_there", "drained"));
    let seen = status();
    let directive = &seen["directives"][0];
    assert_eq!(
        (&directive["directive"], &directive["drained"], &directive["unanswered"]),
        (&json!("drain"), &json!(1), &json!([]))
    );
    let findings = seen["findings"].to_string();
    assert!(findings.contains("node 1 is drained"), "{findings}");
    let words = said(&drain(&[]));
    assert!(words.contains("1 blocks (16.0 KiB) stay in the pool, for all hosts"), "{words}");
    assert!(words.contains("stop its engines and its agent now"), "{words}");

    let late = refused(&drain(&["--until-left", "--timeout-ms", "300"]));
    assert!(late.contains("after 300 ms its processes have not stopped"), "{late}");
    let waits = ["drain", "--node", "1", "--from", "2", "--until-left"];
    let waiting = pool.rackline(&waits).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    drop(engine);
    let words = said(&waiting.unwrap().wait_with_output().unwrap());
    assert!(words.contains("all its processes have stopped"), "{words}");

    // It starts again, drained as before.
    let engine = rackline::Pool::attach(pool.path(), 1).unwrap();
    let words = said(&drain(&[]));
    assert!(words.contains("node 1 is drained"), "{words}");
    assert_eq!(publish(&engine, 3), "drained");
    assert!(said(&drain(&["--undo"])).contains("it publishes blocks again"));
    assert_eq!((publish(&engine, 1), publish(&engine, 3)), ("already_there", "published"));
    assert_eq!(status()["directives"], json!([]));
}

/// While one operator waits until the node has stopped, another ends the drain.
#[test]
fn who_waits_is_told_that_somebody_ended_the_drain() {
    let pool = Pool::format();
    let engine = rackline::Pool::attach(pool.path(), 1).unwrap();
    assert_eq!(publish(&engine, 1), "published");
    let waits = ["drain", "--node", "1", "--from", "2", "--until-left"];
    let waiting = pool.rackline(&waits).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let is_drained = || {
        let seen = said(&pool.rackline(&["status", "--json"]).output().unwrap());
        serde_json::from_str::<Value>(&seen).unwrap()["directives"][0]["drained"] == json!(1)
    };
    while !is_drained() {}
    let undo = ["drain", "--node", "1", "--from", "0", "--undo"];
    said(&pool.rackline(&undo).output().unwrap());
    drop(engine);
    let late = refused(&waiting.unwrap().wait_with_output().unwrap());
    assert!(late.contains("node 1 is not drained any more"), "{late}");
}

#[test]
fn bad_input_is_one_clear_error() {
    let pool = Pool::format();
    let missing = pool.rackline(&["drain", "--node", "9"]).output().unwrap();
    assert!(refused(&missing).contains("node 9 does not exist: this region has 3"));
    let both = ["drain", "--node", "1", "--undo", "--until-left"];
    let both = pool.rackline(&both).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}
