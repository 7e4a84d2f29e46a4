//! `.ci/run`: what it makes of its steps and their budgets, seen on small steps of the test's own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// The longest that all steps together may take: CI takes less than 45 minutes.
const BUDGETS_MAX_S: u32 = 45 * 60;

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A copy of `.ci/run` with these budgets, and steps by name and script.
fn copy(budget: &str, steps: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let ci = folder.path().join(".ci");
    fs::create_dir_all(ci.join("steps")).unwrap();
    fs::copy(repository().join(".ci/run"), ci.join("run")).unwrap();
    fs::write(ci.join("budget"), budget).unwrap();
    for (name, script) in steps {
        let path = ci.join("steps").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// The status that it ends with, and all that it says.
fn run(folder: &TempDir, steps: &[&str]) -> (i32, String) {
    // Not the file itself: another test may begin a process while it is written, and then it is busy.
    let mut command = Command::new("bash");
    let output = command.arg(folder.path().join(".ci/run")).args(steps).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

/// The row of the table that begins with `name`, without its gaps.
fn row(said: &str, name: &str) -> String {
    let rows = said.lines().filter(|line| line.split_whitespace().next() == Some(name));
    rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// As [`row`], with `_` for each of the times, which depend on the machine. They stand before an
/// `s`; `budget` does too, and stays.
fn untimed_row(said: &str, name: &str, budget: u32) -> String {
    let (row, budget) = (row(said, name), budget.to_string());
    let words: Vec<_> = row.split(' ').collect();
    let is_time = |at: usize| words.get(at + 1) == Some(&"s") && words[at] != budget;
    let untimed = (0..words.len()).map(|at| if is_time(at) { "_" } else { words[at] });
    untimed.collect::<Vec<_>>().join(" ")
}

#[test]
fn all_steps_run_and_the_table_tells_of_each() {
    let folder =
        copy("# what they may take\n1-a 700\n\n2-b 3000\n", &[("1-a", "true"), ("2-b", "")]);
    let (status, said) = run(&folder, &[]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(row(&said, "step"), "step elapsed budget processor result");
    assert_eq!(untimed_row(&said, "1-a", 700), "1-a _ s 700 s _ s passed");
    assert_eq!(untimed_row(&said, "2-b", 3000), "2-b _ s 3000 s _ s passed");
    assert_eq!(untimed_row(&said, "total", 3700), "total _ s 3700 s");
    let (_, said) = run(&folder, &["2-b"]);
    assert_eq!(row(&said, "1-a"), "");
    assert_eq!(untimed_row(&said, "total", 3000), "total _ s 3000 s");
}

#[test]
fn nothing_runs_behind_a_step_that_fails() {
    let folder = copy("1-a 9\n2-b 9\n3-c 9\n", &[("1-a", ""), ("2-b", "exit 7"), ("3-c", "")]);
    let (status, said) = run(&folder, &[]);
    assert_eq!(status, 7, "{said}");
    assert!(row(&said, "1-a").ends_with("passed"), "{said}");
    assert!(row(&said, "2-b").ends_with("FAILED with status 7"), "{said}");
    assert_eq!(row(&said, "3-c"), "");
}

#[test]
fn a_step_over_twice_its_budget_is_marked_when_all_run() {
    // Only the second is long. The first has seconds to spare on a busy machine.
    let steps = [("1-a", "sleep 4.1"), ("2-b", "sleep 2.1; echo ended")];
    let folder = copy("1-a 4\n2-b 1\n", &steps);
    let (status, said) = run(&folder, &[]);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("ended"), "it was broken off: {said}");
    assert!(row(&said, "1-a").ends_with("passed"), "over its budget, but not twice: {said}");
    assert!(row(&said, "2-b").ends_with("passed, over twice its budget"), "{said}");
    let (status, said) = run(&folder, &["2-b"]);
    assert_eq!(status, 0, "{said}");
    assert!(row(&said, "2-b").ends_with("passed"), "alone it may have had to build: {said}");
}

#[test]
fn budgets_and_steps_that_do_not_belong_together_are_refused_before_anything_runs() {
    let steps = [("1-a", "echo ran"), ("2-b", "echo ran")];
    for (budget, wrong) in [
        ("1-a 9\n", "2-b has no budget"),
        ("1-a 9\n2-b 9\n3-c 9\n", "there is no step 3-c"),
        ("1-a 9\n2-b\n", "write each step once"),
        ("1-a 9\n2-b 0\n", "write each step once"),
        ("1-a 9\n2-b 9s\n", "write each step once"),
        ("1-a 9\n2-b 9 9\n", "write each step once"),
        ("1-a 9\n2-b 9\n1-a 9\n", "write each step once"),
    ] {
        let folder = copy(budget, &steps);
        for given in [&[][..], &["1-a"]] {
            let (status, said) = run(&folder, given);
            assert_eq!(status, 2, "{budget}: {said}");
            assert!(said.contains(wrong) && !said.contains("ran"), "{budget}: {said}");
        }
    }
}

#[test]
fn the_budgets_leave_ci_under_45_minutes() {
    let text = fs::read_to_string(repository().join(".ci/budget")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let seconds = lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap());
    let total: u32 = seconds.sum();
    assert!((1..=BUDGETS_MAX_S).contains(&total), "{total} s of budgets, {BUDGETS_MAX_S} at most");
}
