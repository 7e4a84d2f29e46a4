//! `rackline pin` and `rackline unpin`, run beside a process that keeps blocks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Command, Output, Stdio};

use rackline::Pool;
use serde_json::{Value, json};

fn rackline(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.stdin(Stdio::null()).args(arguments).output().unwrap()
}

fn said(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_tenant_is_pinned_and_shown_until_it_is_unpinned() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("pool");
    let region = path.to_str().unwrap();
    let format = ["format", "--region", region, "--create", "64MiB", "--chunk", "1MiB"];
    said(rackline(&[&format[..], &["--lock", "bakery"]].concat()));
    let pool = Pool::attach(&path, 1).unwrap();
    let status = || said(rackline(&["status", "--region", region]));
    let directives = || {
        let text = said(rackline(&["status", "--region", region, "--json"]));
        serde_json::from_str::<Value>(&text).unwrap()["directives"].clone()
    };
    assert_eq!(directives(), json!([]));

    let tenant = ["--region", region, "--node", "2", "--tenant", "one"];
    let pin = [&["pin"][..], &tenant, &["--percent", "30", "--for", "2h"]].concat();
    let namespace = rackline::Namespace::new("one", b"").to_string();
    assert!(said(rackline(&pin)).contains(&format!("is pinned: namespace {namespace}")));
    let seen = &directives()[0];
    let left_s = seen["left_s"].as_u64().unwrap();
    assert!((7000..=7200).contains(&left_s), "{seen}");
    assert_eq!(
        (&seen["directive"], &seen["asked_by"], &seen["percent"], &seen["unanswered"]),
        (&json!("pin"), &json!(2), &json!(30), &json!([]))
    );
    assert_eq!(seen["namespace"], json!(namespace));
    let line = format!("pin of namespace {namespace} (30 % of each node, ");
    let text = status();
    assert!(text.contains(&line) && text.contains("by node 2: all nodes have answered"), "{text}");

    said(rackline(&[&["unpin"][..], &tenant].concat()));
    assert_eq!(directives(), json!([]));
    assert!(!status().contains("pin of namespace"));
    drop(pool);
}

#[test]
fn bad_input_is_one_clear_error() {
    let region = "/dev/shm/no such pool";
    let tenant = ["--region", region, "--node", "2", "--tenant", "one"];
    let good = ["--percent", "30", "--for", "2h"];
    for (command, wrong, code, expected) in [
        ("pin", &["--percent", "51", "--for", "2h"][..], 2, "51 is not in 1..=50"),
        ("pin", &["--percent", "0", "--for", "2h"], 2, "0 is not in 1..=50"),
        ("pin", &["--percent", "30", "--for", "2 weeks"], 2, "give a number with s, m, h or d"),
        ("pin", &["--percent", "30", "--for", "0h"], 2, "at most 365d"),
        ("pin", &["--for", "2h"], 2, "--percent <P>"),
        ("pin", &good, 1, region),
        ("unpin", &[], 1, region),
    ] {
        let output = rackline(&[&[command][..], &tenant, wrong].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(
            error.matches("error:").count() + error.matches("rackline: ").count(),
            1,
            "{error}"
        );
    }
}
