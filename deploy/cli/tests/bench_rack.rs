//! `rackline bench rack`: real bytes beside virtual time, tables, JSON, pictures, and clear errors.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fmt::Write as _;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn rackline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(["bench", "rack"]);
    command
}

fn bench(arguments: &[&str]) -> Output {
    rackline().args(arguments).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--json"]].concat())).unwrap()
}

fn error(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Prompts of one document that grow, and some of their own. Each is answered before the next arrives,
/// so that what is found depends on nothing else.
fn trace(requests: usize, output_tokens: usize) -> tempfile::NamedTempFile {
    let mut lines = String::new();
    for number in 0..requests {
        let shared = (0..3 + number).map(|block| block.to_string());
        let own = (0..2).map(|block| (1000 + 10 * number + block).to_string());
        let ids: Vec<_> = shared.chain(own).collect();
        let (at_ms, input_length) = (number * 20_000, ids.len() * 64 + 10);
        let ids = ids.join(",");
        writeln!(
            lines,
            "{{\"timestamp\":{at_ms},\"input_length\":{input_length},\"output_length\":{output_tokens},\"hash_ids\":[{ids}]}}"
        )
        .unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    file
}

const DEVICE: [&str; 2] = ["--device-gb-per-s", "10.1"];

fn sum(served: &Value, name: &str) -> u64 {
    served.as_array().unwrap().iter().map(|it| it[name].as_u64().unwrap()).sum()
}

#[test]
fn real_bytes_and_virtual_time_find_the_same_blocks() {
    let file = trace(6, 4);
    let path = file.path().to_str().unwrap();
    let size = ["--speed", "30", "--block-bytes", "4KiB", "--prefill", "2", "--beside-simulation"];
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("rack.svg");
    let svg = ["--svg", picture.to_str().unwrap()];
    let report = json(&[&[path][..], &DEVICE, &size, &svg].concat());
    let (measured, simulated) = (&report["measured"], &report["simulated"]);
    for name in ["requests", "blocks", "hits", "published", "refused", "lost"] {
        assert_eq!(measured[name], simulated[name], "{name}");
    }
    // All but the last of the document's blocks were there; no block of a prompt's own was.
    assert_eq!(measured["hits"], 3 + 4 + 5 + 6 + 7);
    assert_eq!(measured["lost"], 0);
    for served in measured["served"].as_array().unwrap() {
        let time = |name: &str| served[name].as_u64().unwrap();
        let stages =
            ["queue_ns", "lookup_ns", "read_ns", "compute_ns", "write_ns", "decode_queue_ns"];
        let later = ["decode_lookup_ns", "decode_read_ns", "decode_compute_ns", "first_token_ns"];
        let all: u64 = stages.iter().chain(&later).map(|name| time(name)).sum();
        // Nothing is counted twice: the rest are messages.
        assert!(all <= time("ttft_ns") && time("ttft_ns") <= time("latency_ns"), "{served}");
        assert!(time("cpu_ns") > 0, "{served}");
        assert!(time("compute_ns") > 0 && time("first_token_ns") > 0, "{served}");
    }
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("measured") && drawn.contains("simulated"));
}

#[test]
fn without_reuse_each_prompt_is_computed_whole() {
    let file = trace(3, 4);
    let path = file.path().to_str().unwrap();
    let report = json(&[path, "--speed", "100", "--block-bytes", "4KiB", "--no-reuse"]);
    let measured = &report["measured"];
    assert_eq!((&measured["hits"], &measured["published"]), (&0.into(), &measured["blocks"]));
    assert_eq!(sum(&measured["served"], "lost"), 0);
    assert_eq!(report["simulated"], Value::Null);
}

#[test]
fn a_pool_that_is_too_small_costs_time_and_says_so() {
    let file = trace(4, 4);
    let path = file.path().to_str().unwrap();
    let small =
        ["--speed", "100", "--block-bytes", "64KiB", "--capacity-blocks", "1", "--nodes", "1"];
    // Two chunks of 1 MiB on the one node are 16 blocks each; a prompt of 40 does not fit.
    let long: Vec<_> = (0..40).map(|block| block.to_string()).collect();
    let line =
        format!("{{\"timestamp\":0,\"output_length\":2,\"hash_ids\":[{}]}}\n", long.join(","));
    std::fs::write(path, line).unwrap();
    let words = text(&[&[path][..], &small].concat());
    let report = json(&[&[path][..], &small].concat());
    let measured = &report["measured"];
    let (refused, lost) =
        (measured["refused"].as_u64().unwrap(), measured["lost"].as_u64().unwrap());
    assert!(refused > 0 && refused == lost, "{measured:#}");
    assert!(sum(&measured["served"], "decode_compute_ns") > 0);
    assert!(words.contains("  refused: "), "{words}");
}

#[test]
fn a_long_trace_in_virtual_time_is_the_same_each_time() {
    let many =
        ["--requests", "300", "--workload", "C", "--rate", "0.4", "--simulate", "--nodes", "4"];
    let workers = ["--prefill", "4", "--decode", "2"];
    let all = [&many[..], &workers, &DEVICE].concat();
    let words = text(&all);
    assert_eq!(words, text(&all));
    assert!(words.contains("300 requests of TraCT C, seed 1, on 4 nodes"), "{words}");
    assert!(words.contains("roofline"), "{words}");
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let file = trace(1, 4);
    let path = file.path().to_str().unwrap();
    for (arguments, said) in [
        (&["--simulate"][..], "--device-gb-per-s"),
        (&["--device-gb-per-s", "0"], "0 * 10^9 bytes a second is no bandwidth of a link"),
        (&["--speed", "0"], "give --speed 0.01 to 1000"),
        (&["--requests", "0"], "give --requests 1 or more"),
        (&["--rate", "-1"], "give a rate above 0"),
        (&["--profile", "h1000"], "there is no profile \"h1000\""),
        (&["--profile", "nowhere.toml"], "cannot read nowhere.toml"),
        (&["--kill-node", "0", "--kill-at-s", "1"], "without node 0 there are no"),
        (&["--kill-node", "0"], "--kill-at-s"),
        (&["--svg", "/nowhere/a.svg"], "cannot write /nowhere/a.svg"),
        (&[path, "--block-tokens", "16"], "give --block-tokens as in the trace"),
        (&["--device-gb-per-s", "10", "--rate", "1e-9"], "give a higher rate"),
        (&["--nodes", "4"], "4 nodes and 2 workers: a node would have none"),
        (&["nowhere.jsonl"], "cannot open nowhere.jsonl"),
        (&[path, "--seed", "2"], "cannot be used with"),
        (&[path, "--block-bytes", "0"], "give --block-bytes from 1"),
    ] {
        let error = error(arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn requests_of_a_killed_node_are_answered_by_others() {
    // Long answers, so that each worker has some.
    let file = trace(12, 300);
    let path = file.path().to_str().unwrap();
    let workers = ["--prefill", "3", "--decode", "3", "--nodes", "3", "--kill-node", "1"];
    let size = ["--speed", "20", "--block-bytes", "4KiB", "--rate", "1", "--kill-at-s", "5"];
    let beside = ["--device-gb-per-s", "10", "--beside-simulation"];
    let report = json(&[&[path][..], &workers, &size, &beside].concat());
    let measured = &report["measured"];
    assert_eq!(measured["requests"], 12);
    assert!(report["simulated"]["restarted"].as_u64().unwrap() > 0, "{report:#}");
    let late = [&size[..5], &["1", "--kill-at-s", "5000"]].concat();
    let late = error(&[&[path][..], &workers, &late].concat());
    assert!(late.contains("give a smaller --kill-at-s"), "{late}");
    // Before anything is measured: there is no room for this pool.
    let late = ["--rate", "1", "--kill-at-s", "5000", "--block-bytes", "1GiB"];
    let late = error(&[&[path][..], &workers, &beside, &late].concat());
    assert!(late.contains("simulated: all requests were answered before node 1"), "{late}");
    assert!(measured["restarted"].as_u64().unwrap() > 0, "{measured:#}");
    for served in measured["served"].as_array().unwrap() {
        assert!(served["latency_ns"].as_u64() >= served["ttft_ns"].as_u64(), "{served}");
        assert!(served["ttft_ns"].as_u64().unwrap() > 0, "{served}");
    }
}

#[test]
fn what_left_the_pool_comes_back_from_drives() {
    let folder = tempfile::tempdir().unwrap();
    let drive = format!("{}:256MiB", folder.path().display());
    // Twelve prompts of 40 blocks, each asked twice, and room for fewer.
    let mut lines = String::new();
    for number in (0..12).chain(0..12) {
        let ids: Vec<_> = (40 * number..40 * number + 40).map(|id| id.to_string()).collect();
        let line = format!(
            "{{\"input_length\":2560,\"output_length\":2,\"hash_ids\":[{}]}}\n",
            ids.join(",")
        );
        lines.push_str(&line);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    let path = file.path().to_str().unwrap();
    let room =
        ["--capacity-blocks", "250", "--block-bytes", "64KiB", "--speed", "4", "--rate", "1"];
    let report = json(&[&[path][..], &room, &["--drive", &drive]].concat());
    let measured = &report["measured"];
    assert!(measured["from_drives"].as_u64().unwrap() > 0, "{measured:#}");
    assert!(measured["hits"].as_u64().unwrap() > 0, "{measured:#}");
    // The drives were there for the time of the run.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A bench whose lock manager is gone measures nothing that a user would see.
#[test]
fn without_its_lock_manager_it_fails() {
    let mut command = rackline();
    command.args(["--requests", "100"]).args(DEVICE);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let clock = cxl_shm::clock::SystemClock::start();
    let manager = loop {
        assert!(clock.now_us() < 60_000_000, "no lock manager was started");
        clock.sleep_ms(10);
        let (all, manager) = children(process.id());
        // With both workers.
        if let (3, Some(manager)) = (all, manager) {
            break manager;
        }
    };
    kill_process(Pid::from_raw(manager).unwrap(), Signal::KILL).unwrap();
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("lock manager ended"), "{said}");
}

/// How many children a process has, and which of them is the lock manager.
fn children(id: u32) -> (usize, Option<i32>) {
    let text = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let all: Vec<i32> = text.split_whitespace().map(|child| child.parse().unwrap()).collect();
    let is_manager = |child: &&i32| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"lock-manager")
    };
    (all.len(), all.iter().find(is_manager).copied())
}

/// Workers end soon after the bench, whatever they do.
#[test]
fn killed_it_leaves_no_worker() {
    let file = trace(1, 4);
    let path = file.path().to_str().unwrap();
    // Half an hour of decoding.
    let line = "{\"timestamp\":0,\"input_length\":64,\"output_length\":90000,\"hash_ids\":[1]}\n";
    std::fs::write(path, line).unwrap();
    let mut process = rackline().arg(path).stdout(Stdio::null()).spawn().unwrap();
    let clock = cxl_shm::clock::SystemClock::start();
    let own = format!("rackline-bench-{}", process.id());
    let is_used = || {
        let maps =
            |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("maps")).ok();
        let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| maps(entry.ok()?));
        all.filter(|maps| maps.contains(&own)).count()
    };
    // The workers, the lock manager and the bench.
    while is_used() < 4 {
        assert!(clock.now_us() < 60_000_000, "no worker was started");
        clock.sleep_ms(20);
    }
    clock.sleep_ms(500);
    process.kill().unwrap();
    process.wait().unwrap();
    while is_used() > 0 {
        assert!(clock.now_us() < 120_000_000, "workers are left");
        clock.sleep_ms(50);
    }
}

#[test]
fn interrupted_it_leaves_nothing() {
    let mut command = rackline();
    command.args(["--requests", "100"]).args(DEVICE);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = process.id();
    let clock = cxl_shm::clock::SystemClock::start();
    let children = || std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    // The lock manager and both workers.
    while children().split_whitespace().count() < 3 {
        assert!(clock.now_us() < 60_000_000, "no worker was started");
        clock.sleep_ms(10);
    }
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    let output = process.wait_with_output();
    let output = output.unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    let left = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    let own = format!("rackline-bench-{id}");
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(&own)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// In a container the process id is the same in each run.
#[test]
fn a_folder_that_was_there_is_not_used_and_not_removed() {
    let drive = tempfile::tempdir().unwrap();
    let file = trace(2, 2);
    let script = "mkdir $0/rackline-bench-$$-0 && echo precious > $0/rackline-bench-$$-0/mine && \
                  exec $1 bench rack $2 --speed 50 --block-bytes 4KiB --rate 1 --drive $0:64MiB";
    let paths = [drive.path(), env!("CARGO_BIN_EXE_rackline").as_ref(), file.path()];
    let output = Command::new("sh").args(["-c", script]).args(paths).output().unwrap();
    let left: Vec<_> =
        std::fs::read_dir(drive.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert!(left.iter().any(|folder| folder.join("mine").exists()), "{left:?} {output:?}");
}

/// A terminal that is closed.
#[test]
fn hung_up_it_leaves_nothing_on_the_drive() {
    let drive = tempfile::tempdir().unwrap();
    let file = trace(6, 300);
    let mut command = rackline();
    command
        .arg(file.path())
        .args(["--rate", "1", "--drive"])
        .arg(format!("{}:64MiB", drive.path().display()));
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let clock = cxl_shm::clock::SystemClock::start();
    // The lock manager, two agents and both workers.
    while children(process.id()).0 < 5 {
        assert!(clock.now_us() < 60_000_000, "no worker was started");
        clock.sleep_ms(10);
    }
    kill_process(Pid::from_child(&process), Signal::HUP).unwrap();
    process.wait().unwrap();
    let left: Vec<_> =
        std::fs::read_dir(drive.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Without reuse no prompt has a block in common with another, so none is hit.
#[test]
fn a_request_that_begins_again_does_not_hit_its_own_blocks() {
    let file = trace(12, 300);
    let path = file.path().to_str().unwrap();
    let workers = ["--prefill", "3", "--decode", "3", "--nodes", "3", "--kill-node", "1"];
    let size = ["--speed", "20", "--block-bytes", "4KiB", "--rate", "1", "--kill-at-s", "8"];
    let report = json(&[&[path, "--no-reuse"][..], &workers, &size].concat());
    let measured = &report["measured"];
    assert!(measured["restarted"].as_u64().unwrap() > 0, "{measured:#}");
    assert_eq!(measured["hits"], 0, "{measured:#}");
    for served in measured["served"].as_array().unwrap() {
        // One node died, once.
        assert!(served["restarts"].as_u64().unwrap() <= 1, "{served}");
        let stages = ["queue_ns", "lookup_ns", "read_ns", "compute_ns", "write_ns"];
        let stages: u64 = stages.iter().map(|stage| served[stage].as_u64().unwrap()).sum();
        assert!(stages <= served["ttft_ns"].as_u64().unwrap(), "{served}");
    }
}

/// The agent of a killed host is killed, too: the host is declared dead, and its drive serves nobody.
#[test]
fn a_killed_host_with_a_drive_is_declared_dead() {
    let drive = tempfile::tempdir().unwrap();
    let file = trace(12, 300);
    let mut command = rackline();
    command.arg(file.path()).args(["--prefill", "3", "--decode", "3", "--nodes", "3"]);
    command.args(["--kill-node", "1", "--kill-at-s", "4", "--rate", "1", "--block-bytes", "4KiB"]);
    command.arg("--drive").arg(format!("{}:64MiB", drive.path().display()));
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("was declared dead"), "{errors}");
    assert_eq!(std::fs::read_dir(drive.path()).unwrap().count(), 0);
}
