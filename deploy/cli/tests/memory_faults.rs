//! The commands on a region whose file was truncated under them, which Linux answers like poison: a lock
//! manager and `status` end in order with an error, and failed chunks stay out of use.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;

use std::fs::OpenOptions;
use std::process::Stdio;

use cxl_shm::chunk::note_failed;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{CHUNK_LOCK, FailedPages};
use cxl_shm::lifecycle::Attachment;
use cxl_shm::units::ChunkId;
use serde_json::{Value, json};

use pool::Pool;

/// How often it is looked, 5 ms apart.
const LOOKS: u32 = 20_000;

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if reached() {
            return;
        }
        SystemClock::start().sleep_ms(5);
    }
    panic!("it never got there: {what}");
}

fn status(pool: &Pool) -> Value {
    let output = pool.rackline(&["status", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_lock_manager_whose_region_is_truncated_ends_with_one_error() {
    let pool = Pool::format_in("/dev/shm");
    let mut manager = pool.rackline(&["lock-manager", "--node", "0"]);
    let mut manager = manager.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the lock manager serves", || status(&pool)["lock_manager"]["serving"] == true);
    let before = std::fs::read(pool.path()).unwrap();
    let file = OpenOptions::new().write(true).open(pool.path()).unwrap();
    file.set_len(4096).unwrap();
    wait_until("the lock manager has ended", || manager.try_wait().unwrap().is_some());
    let output = manager.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{:?}: {said}", output.status);
    assert_eq!(said.matches("the memory of the region failed").count(), 1, "{said}");
    // The region is there again: nothing of it was changed, and the command that removes it finds it.
    drop(file);
    std::fs::write(pool.path(), before).unwrap();
    assert_eq!(status(&pool)["chunks_failed"], json!([]));
}

#[test]
fn failed_chunks_are_shown_and_stay_out_of_use_when_the_region_is_formatted_again() {
    let pool = Pool::format_in("/dev/shm");
    let bakery = ["format", "--force", "--lock", "bakery", "--chunk", "256KiB", "--block", "16KiB"];
    let format = || {
        let output = pool.rackline(&bakery).args(["--nodes", "3"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    format();
    let free = status(&pool)["chunks_free"].as_u64().unwrap();
    let attachment = Attachment::attach(&pool.path(), 0).unwrap();
    let (member, clock) = (attachment.member(), SystemClock::start());
    let guard = member.lock_shared(CHUNK_LOCK, &clock, 10_000).unwrap();
    member.fabric().refresh(member.layout().chunk_table());
    let failed = FailedPages { first: 3, pages: 2 };
    assert!(note_failed(member, ChunkId(1), failed));
    assert!(!note_failed(member, ChunkId(1), failed), "it says so already");
    drop(guard);
    let offset = member.layout().chunk(ChunkId(1)).offset() + 3 * 4096;
    // Nobody takes it, however many are taken.
    let taken: Vec<_> =
        std::iter::from_fn(|| member.allocate_chunk(&clock, 10_000, 7).ok()).collect();
    assert_eq!(taken.len() as u64, free - 1);
    assert!(!taken.contains(&ChunkId(1)));
    drop(attachment);
    let shown = json!([{ "chunk": 1, "offset": offset, "bytes": 8192, "node": null }]);
    assert_eq!(status(&pool)["chunks_failed"], shown);
    format();
    assert_eq!(status(&pool)["chunks_failed"], shown);
    assert_eq!(status(&pool)["chunks_free"], free - 1);
    let text = pool.rackline(&["status"]).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("chunk 1: 8192 bytes at") && text.contains("out of use"), "{text}");
}
