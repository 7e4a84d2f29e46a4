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
        assert_eq!(report["checks"].as_array().unwrap().len(), 10);
        assert_eq!(report["speed"].as_array().unwrap().len(), 24);
        assert!(report["stored_bytes"].as_u64().unwrap() > 0);
        assert_eq!(report["bounced_bytes"], 0);
        assert_eq!(report["failed_payloads"], 0);
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
    let engines = 3;
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
