//! `gpu-check` itself, with a CUDA driver that is none: that it passes when all is well, and tells
//! what is not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn build_driver(folder: &Path, flags: &[&str]) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_cuda.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(folder.join("libcuda.so"))
        .args(flags)
        .arg(source)
        .output()
        .expect("a C compiler (cc) is installed");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// What it does with the driver built with `flags`, in that mode.
fn check(mode: &str, flags: &[&str], arguments: &[&str]) -> Output {
    check_with(mode, flags, arguments, None)
}

/// The same, with a setting in its environment.
fn check_with(
    mode: &str,
    flags: &[&str],
    arguments: &[&str],
    setting: Option<(&str, &str)>,
) -> Output {
    run(mode, flags, &[&["--skip-cost"], arguments].concat(), setting)
}

/// The same, with what it takes to register the file: that needs as much memory as the file has.
fn run(mode: &str, flags: &[&str], arguments: &[&str], setting: Option<(&str, &str)>) -> Output {
    let folder = tempfile::tempdir().unwrap();
    build_driver(folder.path(), flags);
    // Removed also when the check does not come to its end.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_gpu-check"))
        .args(["--size", "512MiB", "--rounds", "1", "--directory"])
        .arg(memory.path())
        .args(arguments)
        .env("LD_LIBRARY_PATH", folder.path())
        .env("FAKE_CUDA", mode)
        .envs(setting)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    remove_tier(process);
    output
}

/// What a check that was killed leaves of its pool in this host: the region's number begins with
/// that of the process.
fn remove_tier(process: u32) {
    let prefix = format!("rackline-00000000-{:04x}-{:04x}-", process >> 16, process & 0xffff);
    for file in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
}

fn report(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn failed(report: &serde_json::Value) -> Vec<&str> {
    let checks = report["checks"].as_array().unwrap();
    let failed = checks.iter().filter(|check| check["passed"] == false);
    failed.map(|check| check["name"].as_str().unwrap()).collect()
}

#[test]
fn it_passes_where_all_is_well() {
    for flags in [&[][..], &["-DWITHOUT_BATCH"]] {
        let output = check("", flags, &["--json"]);
        let report = report(&output);
        assert!(output.status.success(), "{report}");
        assert_eq!(failed(&report), Vec::<&str>::new(), "{report}");
        assert_eq!(report["checks"].as_array().unwrap().len(), 11);
        let speed = report["speed"].as_array().unwrap();
        assert_eq!(speed.iter().filter(|figure| figure["target"].is_number()).count(), 24);
        let of_parts: Vec<_> = speed.iter().filter(|figure| figure["target"].is_null()).collect();
        assert_eq!(of_parts.len(), 13);
        assert!(of_parts.iter().all(|figure| figure["gib_per_s"].as_f64() > Some(0.0)), "{report}");
        assert!(report["stored_bytes"].as_u64().unwrap() > 0);
        assert_eq!(report["bounced_bytes"], 0);
        assert_eq!(report["failed_payloads"], 0);
        let registered = report["registrations"].as_u64().unwrap() * (64 << 20);
        assert_eq!(report["registered_bytes"], registered, "nothing was unregistered");
        assert!(registered < 512 << 20, "pieces that nothing used are registered");
        assert_eq!(report["registration"], serde_json::Value::Null);
    }
}

#[test]
fn what_registration_takes_is_measured_and_told() {
    let output = run("", &[], &["--json"], None);
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    let cost = &report["registration"];
    assert_eq!(
        (&cost["pool_bytes"], &cost["piece_bytes"]),
        (&(512 << 20).into(), &(64 << 20).into())
    );
    let first_use_ms = cost["first_use_ms"].as_f64().unwrap();
    assert!(first_use_ms > 0.0, "{cost}");
    assert!(cost["pool_s"].as_f64().unwrap() >= first_use_ms / 1e3, "with the first piece: {cost}");
    let detail = report["checks"][1]["detail"].as_str().unwrap();
    assert!(detail.contains("the first use of 64.0 MiB takes"), "{detail}");
}

#[test]
fn a_process_that_says_so_registers_all_at_its_start() {
    let settings = Some(("RACKLINE_CUDA_REGISTER", "at-start"));
    let output = check_with("", &[], &["--json"], settings);
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["registered_bytes"], 512 << 20);
}

#[test]
fn pieces_come_and_go_within_the_limit_of_the_process() {
    let settings = Some(("RACKLINE_CUDA_REGISTER_LIMIT", "64MiB"));
    let output = check_with("", &[], &["--json"], settings);
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["registered_bytes"], 64 << 20, "of one piece");
    let count = |name: &str| report[name].as_u64().unwrap();
    assert!(count("unregistrations") > 0 && count("bounced_bytes") == 0, "{report}");
    assert_eq!(count("registrations"), count("unregistrations") + 1);
    assert!(count("registrations_over_limit") > 0, "{report}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("set RACKLINE_CUDA_REGISTER_LIMIT to more"), "{told}");
    // Copies to memory that is not registered would say nothing.
    let checks = report["checks"].to_string();
    assert!(checks.contains("copies alone are left out"), "{checks}");
    let speed = report["speed"].as_array().unwrap();
    let named = |name: &str| speed.iter().filter(|figure| figure["name"] == name).count();
    assert_eq!(["copy only", "pinned", "flush only"].map(named), [0, 4, 3]);
}

#[test]
fn pieces_that_the_driver_refuses_bounce_and_are_counted() {
    // The engine of the checks registers its first piece, and no other.
    let output = check("fail:cuMemHostRegister_v2:2", &[], &["--json"]);
    let report = report(&output);
    let failed = failed(&report);
    assert!(!failed.contains(&"round trips") && !failed.contains(&"several streams"), "{report}");
    assert!(!failed.contains(&"layers") && !failed.contains(&"speed"), "{report}");
    let count = |name: &str| report[name].as_u64().unwrap();
    assert!(count("refused_registrations") > 0 && count("bounced_bytes") > 0, "{report}");
    assert!(count("bounced_bytes") < count("stored_bytes") + count("loaded_bytes"), "{report}");
    assert_eq!(count("failed_payloads"), 0);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("does not register a piece of the pool"), "{told}");
}

#[test]
fn a_driver_with_room_for_few_pieces_is_served() {
    let mode = format!("room:{}", 160 << 20);
    let output = run(&mode, &[], &["--json"], None);
    let report = report(&output);
    // What it takes to register all is not known. A second pool finds no room for its first piece.
    assert_eq!(failed(&report), ["cost of it", "transfers"], "{report}");
    let detail = report["checks"][1]["detail"].as_str().unwrap();
    assert!(detail.contains("of 512.0 MiB at once"), "{detail}");
    let count = |name: &str| report[name].as_u64().unwrap();
    assert!(count("unregistrations") > 0, "{report}");
    assert_eq!(count("failed_payloads"), 0);
}

#[test]
fn a_piece_that_is_not_registered_is_noticed() {
    // The first piece.
    let output = check("forget:1", &[], &["--json"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(!failed(&report).is_empty());
    let checks = report["checks"].to_string();
    assert!(checks.contains("the fake driver refuses"), "{checks}");
}

#[test]
fn what_the_driver_does_not_unregister_stays_mapped() {
    let output = check("fail:cuMemHostUnregister:1", &[], &["--json"]);
    let report = report(&output);
    let failed = failed(&report);
    assert_eq!(failed, ["pieces", "transfers", "shutdown"], "{report}");
    let checks = report["checks"].to_string();
    assert!(checks.contains("more is registered than allowed"), "{checks}");
    assert!(checks.contains("the mapping is still there after the engine ended"), "{checks}");
}

#[test]
fn mistakes_of_a_caller_are_noticed_by_the_stand_in() {
    let folder = tempfile::tempdir().unwrap();
    build_driver(folder.path(), &[]);
    let program = folder.path().join("misuse");
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/misuse.c"))
        .arg(folder.path().join("libcuda.so"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for case in ["outside", "across-two", "twice", "waited-for", "under-a-copy"] {
        let mut command = Command::new(&program);
        let output = command.arg(case).env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
        assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_pool_that_cannot_be_registered_bounces_and_is_said_to() {
    let output = check("no-register", &[], &["--json"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(failed(&report), ["registration"], "{report}");
    let bounced = report["bounced_bytes"].as_u64().unwrap();
    let copied =
        report["stored_bytes"].as_u64().unwrap() + report["loaded_bytes"].as_u64().unwrap();
    assert!(bounced > 0 && bounced == copied);
}

#[test]
fn a_driver_that_registers_memory_of_devices_only_is_served() {
    let output = check("only-iomemory", &[], &["--json"]);
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    let detail = report["checks"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("registered as memory of a device"), "{detail}");
}

#[test]
fn what_the_driver_does_not_copy_is_an_error_with_its_reason() {
    for call in ["cuMemcpyBatchAsync:1", "cuMemcpyAsync:3", "cuEventQuery:3", "cuLaunchKernel:3"] {
        let output = check(&format!("fail:{call}"), &[], &["--json"]);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(1), "{call}: {report}");
        assert!(report["failed_payloads"].as_u64().unwrap() > 0, "{call}: {report}");
        assert!(failed(&report).contains(&"round trips"), "{call}: {report}");
        let checks = report["checks"].to_string();
        assert!(checks.contains("the fake driver refuses (CUDA_ERROR_FAKE)"), "{call}: {checks}");
    }
}

#[test]
fn a_process_whose_gpu_cannot_be_waited_for_goes_on_without_it() {
    let output = check("fail:cuStreamSynchronize:400", &[], &["--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("the GPU cannot be waited for"), "{told}");
    let engines = 5;
    assert!(told.matches("cannot be waited for").count() <= engines, "once an engine: {told}");
    assert!(failed(&report(&output)).contains(&"speed"), "{output:?}");
}

#[test]
fn a_wrong_checksum_of_the_gpu_is_noticed() {
    let output = check("wrong-sums", &[], &["--json"]);
    let report = report(&output);
    let failed = failed(&report);
    assert!(failed.contains(&"checksums") && failed.contains(&"round trips"), "{report}");
}

#[test]
fn a_gpu_that_computes_no_checksums_is_served_and_said_to_be_unverified() {
    for (mode, settings) in [("no-kernel", None), ("", Some(("RACKLINE_CUDA_CHECKSUMS", "cpu")))] {
        let output = check_with(mode, &[], &["--json"], settings);
        let report = report(&output);
        assert_eq!(failed(&report), ["checksums"], "{report}");
        assert_eq!(report["gpu_summed_bytes"], 0);
    }
}

#[test]
fn copies_are_handed_over_one_by_one_where_the_process_says_so() {
    let settings = Some(("RACKLINE_CUDA_BATCH", "0"));
    let output = check_with("fail:cuMemcpyBatchAsync:1", &[], &["--json"], settings);
    assert!(output.status.success(), "{output:?}");
    let output = check_with("", &[], &["--json"], Some(("RACKLINE_CUDA_BATCH", "no")));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("RACKLINE_CUDA_BATCH=no is not known: set it to 1 or 0"), "{told}");
}

#[test]
fn a_byte_that_changes_on_the_way_is_noticed() {
    let output = check("corrupt", &[], &["--json"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1));
    let failed = failed(&report);
    assert!(failed.contains(&"round trips") && failed.contains(&"second process"), "{report}");
    // By the checksum, not by a look at the bytes.
    let checks = report["checks"].to_string();
    assert!(checks.contains("another checksum on the way back"), "{checks}");
}

#[test]
fn copies_before_the_work_they_wait_for_are_noticed() {
    let output = check("eager-copies", &[], &["--json"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(failed(&report).contains(&"several streams"), "{report}");
}

#[test]
fn a_machine_without_a_gpu_is_skipped() {
    let output = check("no-gpu", &[], &[]);
    assert!(output.status.success());
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "skipped: the CUDA driver is here, and no GPU\n");
}

#[test]
fn options_that_cannot_work_are_refused() {
    let told = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let output = check("", &[], &["--gpu", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("there is no GPU number 3: this machine has 1"), "{output:?}");
}
