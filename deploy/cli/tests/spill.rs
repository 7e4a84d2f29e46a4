//! `rackline spill`: acknowledged blocks survive `kill -9`, damage is named and repaired.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn rackline(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.arg("spill").arg(arguments[0]).arg(folder).args(&arguments[1..]);
    command
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    rackline(arguments, folder).output().expect("the command starts")
}

fn lines(output: &Output) -> BTreeSet<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn acknowledged(lines: BTreeSet<String>) -> BTreeSet<String> {
    lines.iter().map(|line| line.strip_prefix("ACK ").expect("an ACK").to_owned()).collect()
}

#[test]
fn what_was_acknowledged_is_listed_by_either_engine() {
    let folder = tempfile::tempdir().unwrap();
    let write = ["write", "--count", "40", "--seed", "7", "--size", "64MiB", "--io"];
    let first = acknowledged(lines(&run(&[&write[..], &["uring"]].concat(), folder.path())));
    assert_eq!(first.len(), 40);
    let again = acknowledged(lines(&run(&[&write[..], &["posix"]].concat(), folder.path())));
    assert_eq!(again, first);
    for io in ["uring", "posix"] {
        assert_eq!(lines(&run(&["list", "--io", io], folder.path())), first);
    }
    let other = ["write", "--count", "5", "--seed", "8", "--block", "5000B", "--size", "64MiB"];
    let more = acknowledged(lines(&run(&other, folder.path())));
    assert_eq!(lines(&run(&["list"], folder.path())), &first | &more);
}

#[test]
fn encoded_blocks_are_listed_checked_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let write = ["write", "--count", "20", "--size", "64MiB", "--encoding", "auto"];
    let keys = acknowledged(lines(&run(&write, folder.path())));
    assert_eq!(keys.len(), 20);
    assert_eq!(lines(&run(&["list"], folder.path())), keys);
    let json = |arguments: &[&str]| -> Value {
        let output = run(arguments, folder.path());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let report = json(&["fsck", "--json"]);
    assert_eq!((&report["verified_blocks"], &report["encoded_blocks"]), (&20.into(), &20.into()));
    assert_eq!(report["verified_bytes"], 20 << 16);
    assert_eq!(report["encoded_raw_bytes"], 20 << 16);
    assert!(report["encoded_bytes"].as_u64().unwrap() < 20 * 60_000, "{report}");
    let measured = json(&["measure", "--json"]);
    let [plain, planes, auto] = [0, 1, 2].map(|at| &measured["encodings"][at]);
    assert_eq!((&plain["encoding"], &plain["written_share"]), (&"lz4".into(), &1.0.into()));
    assert_eq!(planes["encoded_blocks"], 20);
    assert_eq!(auto["written_share"], planes["written_share"], "{measured}");
    let wrong = run(&["write", "--count", "1", "--encoding", "zip"], folder.path());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("lz4-planes or auto"), "{wrong:?}");
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut told = BTreeSet::new();
    for seed in 0..4_usize {
        let seed_text = seed.to_string();
        let arguments =
            ["write", "--count", "100000", "--seed", &seed_text, "--block", "8KiB", "--group", "3"];
        let mut child = rackline(&arguments, folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut output = output.lines();
        // Killed at another place of a commit each time.
        for line in output.by_ref().take(40 + seed * 13) {
            told.insert(line.unwrap());
        }
        child.kill().unwrap();
        told.extend(output.map_while(Result::ok).filter(|line| line.len() == 52));
        child.wait().unwrap();
        let listed = lines(&run(&["list"], folder.path()));
        let told = acknowledged(told.clone());
        assert!(told.is_subset(&listed), "{:?}", told.difference(&listed).collect::<Vec<_>>());
    }
    assert!(told.len() > 160);
    let report = run(&["fsck", "--json"], folder.path());
    assert!(report.status.success());
}

#[test]
fn damage_is_named_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let write = ["write", "--count", "300", "--size", "64MiB"];
    let keys = acknowledged(lines(&run(&write, folder.path())));
    let report = |arguments: &[&str], code: i32| -> Value {
        let output = run(arguments, folder.path());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let well = report(&["fsck", "--json"], 0);
    assert_eq!((&well["verified_blocks"], &well["repaired"]), (&300.into(), &false.into()));
    let segment = folder.path().join("segment-1.data");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[70_000] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let broken = report(&["fsck", "--json"], 2);
    assert_eq!(broken["damaged"].as_array().unwrap().len(), 1);
    let text = String::from_utf8(run(&["fsck"], folder.path()).stdout).unwrap();
    assert!(text.contains("damaged: 1") && text.contains("--repair"), "{text}");
    let damaged = broken["damaged"][0].as_str().unwrap().to_owned();
    let mut left = keys;
    left.remove(&damaged);
    assert_eq!(lines(&run(&["list"], folder.path())), left);
    assert_eq!(report(&["fsck", "--json", "--repair"], 0)["repaired"], true);
    report(&["fsck", "--json"], 0);
    // Without a manifest nothing is believed, and --repair finds everything.
    std::fs::remove_file(folder.path().join("manifest")).unwrap();
    let refused = run(&["list"], folder.path());
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("--repair"), "{words}");
    let output = run(&["write", "--count", "1"], folder.path());
    assert!(!output.status.success());
    assert_eq!(report(&["fsck", "--json", "--repair"], 0)["verified_blocks"], 299);
    assert_eq!(lines(&run(&["list"], folder.path())), left);
}

#[test]
fn folders_that_cannot_be_used_are_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let empty = run(&["list"], folder.path());
    let words = String::from_utf8_lossy(&empty.stderr).into_owned();
    assert!(!empty.status.success() && words.contains("no manifest"), "{words}");
    let missing = run(&["write", "--count", "1"], &folder.path().join("none"));
    let words = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && words.contains("check that the folder exists"), "{words}");
    let full = run(&["write", "--count", "100000", "--size", "4MiB"], folder.path());
    let words = String::from_utf8_lossy(&full.stderr).into_owned();
    assert_eq!(full.status.code(), Some(1));
    assert!(words.contains("full") && words.contains("wrote"), "{words}");
    let told = String::from_utf8_lossy(&full.stdout).lines().count();
    assert!(told > 20 && words.contains(&format!("wrote {told} of")), "{told}: {words}");
    // Each of its segments is an open file.
    let limited = |limit: &str| {
        let command = format!("{limit}; exec \"$0\" spill list \"$1\"");
        let folder = folder.path().as_os_str();
        let program = env!("CARGO_BIN_EXE_rackline");
        Command::new("sh").arg("-c").arg(command).arg(program).arg(folder).output().unwrap()
    };
    assert!(limited("ulimit -Sn 40").status.success(), "the soft limit is raised");
    let refused = limited("ulimit -n 40");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("LimitNOFILE="), "{words}");
    let repaired = run(&["fsck", "--repair"], tempfile::tempdir().unwrap().path());
    assert!(!repaired.status.success());
}
