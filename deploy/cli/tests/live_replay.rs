//! `rackline replay --live`: through a real pool, with the hits of a simulated one; and nothing is
//! left of it, however it ends.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod processes;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use self::processes::{children, mapped_files, wait_until};

fn rackline(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.stdin(Stdio::null()).args(arguments);
    command
}

fn replay(trace: &Path, arguments: &[&str]) -> Output {
    rackline(&["replay"]).arg(trace).args(arguments).output().unwrap()
}

fn report(trace: &Path, arguments: &[&str]) -> Value {
    let output = replay(trace, &[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Conversations in turn, each of which grows behind a beginning that all share.
fn conversations(conversations: u64, turns: u64) -> (TempDir, PathBuf) {
    let mut text = String::new();
    for turn in 1..=turns {
        for conversation in 0..conversations {
            let length = 3 * turn + conversation % 5;
            let own = (0..length).map(|depth| 1000 * (conversation + 1) + depth);
            let ids: Vec<_> = (0..4).chain(own).collect();
            writeln!(text, "{{\"hash_ids\": {ids:?}}}").unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn a_real_pool_hits_what_a_simulated_one_does() {
    let (_folder, trace) = conversations(20, 8);
    let alone = report(&trace, &[]);
    let unlimited = report(&trace, &["--live"]);
    let members = ["requests", "block_refs", "unique_blocks", "hits", "hit_rate", "evictions"];
    for member in members.iter().chain(&["policy", "touch", "capacity_blocks"]) {
        assert_eq!(unlimited[member], alone[member], "{member}");
    }
    for (nodes, workers, capacity, block_bytes) in
        [("1", "1", "96", "4KiB"), ("2", "1", "200", "4KiB"), ("3", "2", "30%", "5000B")]
    {
        let arguments = [
            "--nodes",
            nodes,
            "--workers-per-node",
            workers,
            "--capacity-blocks",
            capacity,
            "--block-bytes",
            block_bytes,
        ];
        let simulated = report(&trace, &arguments);
        let live = report(&trace, &[&arguments[..], &["--live"]].concat());
        assert!(live["evictions"].as_u64().unwrap() > 0, "{live}");
        for member in members.iter().chain(&["capacity_blocks", "refused_blocks"]) {
            assert_eq!(live[member], simulated[member], "{member} of {arguments:?}");
        }
        assert_eq!(live["hits"], live["expected_hits"]);
        assert_eq!(live["fetch"]["blocks"], live["hits"]);
        for call in ["lookup", "hold", "fetch", "publish"] {
            let latency = &live[call]["latency_us"];
            let at = |quantile: &str| latency[quantile].as_f64().unwrap();
            assert!(at("p50") > 0.0 && at("p50") <= at("p99"), "{call}: {latency}");
            assert!(at("p90") <= at("max"), "{call}: {latency}");
        }
    }
}

/// Figures of the first admission of a replay with a drive.
fn first_admission(trace: &Path, arguments: &[&str]) -> (Value, Value) {
    let report = report(trace, arguments);
    let mut lines = report["admissions"].as_array().unwrap().clone();
    assert_eq!(lines.len(), 1, "{report}");
    (lines.remove(0), report)
}

#[test]
fn a_real_pool_and_a_real_folder_hit_what_simulated_ones_do() {
    // 874 different blocks, and room for 480 in the least folder.
    let (_folder, trace) = conversations(30, 9);
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let parent_path = parent.path().to_str().unwrap();
    for (admission, leaves) in [("all", true), ("second-touch", false)] {
        let sizes = ["--tiers", "10%,20%", "--block-bytes", "16KiB", "--backup-age-ms", "2000"];
        let arguments = [&sizes[..], &["--admission", admission]].concat();
        let (simulated, _) = first_admission(&trace, &[&arguments[..], &["--nodes", "1"]].concat());
        let live = ["--live", "--drive-in", parent_path];
        let (real, report) = first_admission(&trace, &[&arguments[..], &live].concat());
        assert_eq!(real, simulated);
        assert!(real["drive_hits"].as_u64().unwrap() > 0, "{real}");
        assert!(!leaves || real["left_blocks"].as_u64().unwrap() > 0, "{real}");
        assert_eq!(report["get"]["blocks"], real["drive_hits"]);
        assert_eq!(report["put"]["blocks"], real["written_blocks"]);
        assert!(report["folder_written_bytes"].as_u64() >= real["written_bytes"].as_u64());
        let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn people_get_the_figures_in_words() {
    let (_folder, trace) = conversations(2, 2);
    let output = replay(&trace, &["--live"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["0 evictions", "requests and", "lookup", "publish", "a simulated pool of this"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_pool_that_is_there_is_used_and_left_empty() {
    let (_folder, trace) = conversations(5, 3);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = folder.path().join("pool");
    let region = region.to_str().unwrap();
    let format = ["format", "--region", region, "--create", "24MiB", "--nodes", "4"];
    let sizes = ["--chunk", "1MiB", "--block", "4KiB"];
    assert!(rackline(&[&format[..], &sizes].concat()).output().unwrap().status.success());
    let blocks = || -> u64 {
        let status = rackline(&["status", "--json", "--region", region]).output().unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().filter_map(|node| node["blocks"].as_u64()).sum()
    };
    let unlimited = report(&trace, &[]);
    // The second replay finds nothing of the first.
    for _ in 0..2 {
        let live = report(&trace, &["--live", "--region", region, "--first-node", "1"]);
        assert_eq!(live["hits"], unlimited["hits"]);
        assert!(live["expected_hits"].is_null());
        assert_eq!(blocks(), 0);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (_folder, trace) = conversations(50, 10);
    for (arguments, said) in [
        (&["--live", "--policy", "lru"][..], "--live evicts as the pool does"),
        (&["--live", "--touch", "root-first"], "--live evicts as the pool does"),
        (&["--nodes", "2", "--policy", "s3-fifo"], "--nodes evicts as the pool does"),
        (&["--live", "--svg", "x.svg"], "cannot be used with"),
        (&["--live", "--nodes", "33"], "33 is not in 1..=32"),
        (&["--live", "--block-bytes", "0"], "give --block-bytes from 1 to"),
        (&["--live", "--block-bytes", "3GiB"], "give a smaller --block-bytes or --capacity-blocks"),
        (&["--region", "/dev/shm/nowhere"], "--live"),
        (&["--live", "--tiers", "9,9", "--region", "/dev/shm/nowhere"], "cannot be used with"),
        (&["--live", "--tiers", "9,9", "--drive-in", "/dev/shm/nowhere/x"], "/dev/shm/nowhere/x"),
        (&["--live", "--first-node", "1"], "--region"),
        (&["--live", "--region", "/dev/shm/nowhere"], "/dev/shm/nowhere"),
        (&["--live", "--region", "/dev/shm/nowhere", "--capacity-blocks", "9"], "cannot be used"),
    ] {
        let output = replay(&trace, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(said), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// A replay that continues for minutes, its processes, and their files in /dev/shm.
struct Running {
    _folder: TempDir,
    coordinator: Child,
    others: BTreeSet<i32>,
    files: BTreeSet<PathBuf>,
}

impl Running {
    /// Starts it, and waits until it serves.
    fn start() -> Self {
        let (folder, trace) = conversations(200, 60);
        let child = rackline(&["replay"]).arg(&trace).arg("--live").stderr(Stdio::null()).spawn();
        let mut running = Self {
            _folder: folder,
            coordinator: child.unwrap(),
            others: BTreeSet::new(),
            files: BTreeSet::new(),
        };
        // The region's file goes when all have attached.
        let pid = running.coordinator.id();
        let region = PathBuf::from(format!("/dev/shm/rackline-replay-{pid} (deleted)"));
        wait_until("all have attached", || {
            running.others = children(pid);
            running.others.len() == 3
                && running.others.iter().all(|pid| mapped_files(*pid).contains(&region))
        });
        running.files = running.others.iter().flat_map(|pid| mapped_files(*pid)).collect();
        assert!(running.files.iter().any(|file| file.exists()), "host tiers: {:?}", running.files);
        running
    }

    fn assert_nothing_is_left(&mut self, success: bool) {
        assert_eq!(self.coordinator.wait().unwrap().success(), success);
        wait_until("its processes are gone", || {
            self.others.iter().all(|pid| mapped_files(*pid).is_empty())
        });
        let left: Vec<_> = self.files.iter().filter(|file| file.exists()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn nothing_is_left_of_one_that_is_stopped() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut running = Running::start();
        let pid = Pid::from_child(&running.coordinator);
        kill_process(pid, signal).unwrap();
        running.assert_nothing_is_left(false);
    }
}

#[test]
fn nothing_is_left_of_one_that_loses_a_worker() {
    let mut running = Running::start();
    let worker = *running.others.last().unwrap();
    kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
    running.assert_nothing_is_left(false);
}
