//! The examples of this package, each run on a region that it makes itself.

use std::process::Command;

/// Runs an example, which `cargo test` has built beside this program.
fn run(name: &str) -> String {
    let program = std::env::current_exe().expect("a path");
    let target = program.parent().and_then(std::path::Path::parent).expect("a folder");
    let example = target.join("examples").join(name);
    assert!(example.exists(), "build it with `cargo build -p rackline --examples`");
    let output = Command::new(example).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_one_host_publishes_another_fetches() {
    let said = run("publish_and_fetch");
    assert!(said.contains("3 blocks are in the pool"), "{said}");
    assert!(said.contains("3 of them were fetched by another node"), "{said}");
}

#[test]
fn an_engine_does_not_wait() {
    let said = run("asynchronous");
    assert!(said.contains("4 blocks published"), "{said}");
    assert!(said.contains("4 blocks fetched"), "{said}");
}

#[test]
fn layers_go_one_by_one() {
    let said = run("layered");
    assert!(said.contains("2 blocks published by layers"), "{said}");
    assert!(said.contains("layer 3 is there"), "{said}");
}
