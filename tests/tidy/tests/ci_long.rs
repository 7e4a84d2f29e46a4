//! `.ci/long`: which commands its parts are, and what it makes of one that fails. Programs of the
//! test's own stand in for cargo and for what it builds.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// A copy of `.ci/long` among programs that say what they were asked; `prove simulate` fails.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join(".ci/long");
    fs::create_dir_all(long.parent().unwrap()).unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/long"), long).unwrap();
    program(&folder.path().join("bin/cargo"), "echo asked cargo $*");
    let prove = "echo asked prove $*; test $1 != simulate";
    program(&folder.path().join("target/release/prove"), prove);
    program(&folder.path().join("tests/fuzz/run"), "echo asked fuzz $*");
    let arguments = "echo asked arguments $* with $RACKLINE_SEEDS seeds";
    program(&folder.path().join("tests/engines/vllm/run"), arguments);
    program(&folder.path().join("benches/rack/run"), "echo asked rack");
    program(&folder.path().join("tests/virtual-hosts/run"), "echo asked virtual-hosts $*");
    let wheels = folder.path().join("connector/python/tests/equal_wheels");
    program(&wheels, "echo asked equal-wheels");
    folder
}

fn run(folder: &TempDir, parts: &[&str]) -> (i32, String) {
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", folder.path().join("bin").display());
    // Not the file itself: another test may begin a process while it is written, and then it is busy.
    let mut command = Command::new("bash");
    command
        .arg(folder.path().join(".ci/long"))
        .env("PATH", path)
        .env_remove("CARGO_TARGET_DIR")
        .args(parts);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn all_parts_run_and_the_one_that_fails_is_told() {
    let (status, said) = run(&copy(), &[]);
    assert_eq!(status, 1, "{said}");
    let asked: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("asked ")).collect();
    let begins = [
        "cargo build --release",
        "cargo bench --workspace",
        "prove explore --long",
        "prove explore --mutants --long",
        "prove mutate --seed",
        "prove simulate --seconds 3600",
        "prove torture --seconds 1200 --seed 7 --declare --stops",
        "prove torture --seconds 1200 --seed 8 --scarce",
        "prove torture --drives --seconds 1200",
        "fuzz 1200",
        "cargo test --locked -p rackline-cli",
        "arguments test_arbitrary with 500 seeds",
        "rack",
        "virtual-hosts hmem",
        "equal-wheels",
    ];
    assert_eq!(asked.len(), begins.len(), "{said}");
    for (asked, begin) in asked.iter().zip(begins) {
        assert!(asked.starts_with(begin), "{asked}, not {begin}");
    }
    assert!(said.contains("part 5 of 14, simulate: begins at"), "{said}");
    assert!(said.contains("part 5 of 14, simulate: FAILED"), "{said}");
    assert!(said.contains("part 13 of 14, virtual-hosts: passed"), "{said}");
    let rows = said.lines().skip_while(|line| !line.starts_with("part  "));
    assert_eq!(rows.filter(|row| row.ends_with("passed")).count(), 13, "{said}");
}

#[test]
fn parts_are_chosen_by_name() {
    let folder = copy();
    let (status, said) = run(&folder, &["mutate"]);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("part 1 of 1, mutate: passed") && !said.contains("explore"), "{said}");
    let (status, said) = run(&folder, &["mutate", "none"]);
    assert_eq!(status, 2, "{said}");
    assert!(said.contains("there is no part none") && !said.contains("asked"), "{said}");
}
