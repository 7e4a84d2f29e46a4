//! `--log-format json`: every line of an agent and of a lock manager is a JSON object.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use pool::Pool;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn run(command: &mut Command) -> Output {
    command.env_remove("RUST_LOG").env_remove("RACKLINE_LOG_FORMAT").output().unwrap()
}

fn rackline(arguments: &[&str]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_rackline")).args(arguments))
}

/// The line of a log, whose members are there.
fn parsed(line: &str) -> Value {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    for member in ["timestamp", "level", "target"] {
        assert!(value[member].is_string(), "{line}");
    }
    assert!(value["fields"]["message"].is_string(), "{line}");
    value
}

/// What ends a program is its last line.
fn last_error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let lines: Vec<_> = text.lines().map(parsed).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["level"], "ERROR");
    last["fields"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn lines_of_a_lock_manager_are_objects() {
    let pool = Pool::format_in("/dev/shm");
    let mut command = pool.rackline(&["lock-manager", "--node", "1", "--log-format", "json"]);
    command.args(["--metrics", "127.0.0.1:0"]).env("RUST_LOG", "info").stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (mut has_address, mut serves) = (false, false);
    // It heeds signals before it serves; the line of the metrics may come earlier.
    while !serves {
        let line = parsed(&lines.next().unwrap().unwrap());
        has_address |= line["fields"]["address"].is_string();
        serves = line["fields"]["message"] == "serves";
    }
    assert!(has_address);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    // The lines of its end, too.
    assert!(lines.map(|line| parsed(&line.unwrap())).all(|line| line["level"] != "ERROR"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_error_that_ends_a_program_is_a_line_of_its_form() {
    let nowhere = ["--region", "/nowhere/pool", "--node", "0"];
    for command in ["agent", "lock-manager"] {
        let json = rackline(&[&[command][..], &nowhere, &["--log-format", "json"]].concat());
        assert!(last_error(&json).contains("/nowhere/pool"));
        let text = rackline(&[&[command][..], &nowhere].concat());
        let text = String::from_utf8(text.stderr).unwrap();
        assert!(text.lines().last().unwrap().starts_with("rackline: "), "{text}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.arg("agent").args(nowhere).env_remove("RUST_LOG").env("RACKLINE_LOG_FORMAT", "json");
    assert!(last_error(&command.output().unwrap()).contains("/nowhere/pool"));
}

#[test]
fn the_file_of_settings_has_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rackline.toml");
    let config = format!("--config={}", file.display());
    let common = "region = \"/nowhere/pool\"\nnode = 0\n";
    std::fs::write(&file, format!("{common}log_format = \"json\"\n")).unwrap();
    for command in ["agent", "lock-manager"] {
        assert!(last_error(&rackline(&[command, &config])).contains("/nowhere/pool"));
    }
    std::fs::write(&file, format!("{common}log_format = \"xml\"\n")).unwrap();
    let refused = rackline(&["agent", &config]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("[possible values: text, json]"));
}
