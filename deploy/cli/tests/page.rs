//! The page of an agent and of a lock manager: served beside the metrics, with their values, closed to
//! other sites and hosts; and what it says when something goes wrong.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod monitoring;
mod pool;
mod served;

use std::collections::BTreeMap;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cxl_shm::clock::SystemClock;
use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use pool::Pool;
use served::{BLOCKS, Program, lock_manager, work};

fn blocks_of(rack: &Value) -> u64 {
    let nodes = rack["seen"]["status"]["nodes"].as_array().into_iter().flatten();
    nodes.filter_map(|node| node["blocks"].as_u64()).sum()
}

fn texts<'r>(rack: &'r Value, part: &str) -> Vec<&'r str> {
    rack[part].as_array().unwrap().iter().map(|it| it["what"].as_str().unwrap()).collect()
}

/// The name with its labels in the order of their names.
fn name(name: &str, mut labels: Vec<String>) -> String {
    labels.sort();
    format!("{name}{{{}}}", labels.join(","))
}

/// The samples of `/metrics`, by name with labels. No value of a label has a comma here.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (its, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        (name(its, labels.map(str::to_owned).collect()), value.parse().unwrap())
    };
    lines.map(sample).collect()
}

fn figures(rack: &Value) -> BTreeMap<String, f64> {
    let figure = |it: &Value| {
        let label = |(label, value): (&String, &Value)| format!("{label}={value}");
        let labels = it["labels"].as_object().into_iter().flatten().map(label).collect();
        (name(it["name"].as_str().unwrap(), labels), it["value"].as_f64().unwrap())
    };
    rack["figures"].as_array().unwrap().iter().map(figure).collect()
}

/// Every figure lies between those of `/metrics` before and after it.
fn figures_are_those_of_the_metrics(program: &Program) {
    let before = samples(&program.get("/metrics"));
    let between = figures(&program.rack());
    let after = samples(&program.get("/metrics"));
    let differ = |of: &BTreeMap<String, f64>, from: &BTreeMap<String, f64>| {
        of.keys().filter(|name| !from.contains_key(*name)).cloned().collect::<Vec<_>>()
    };
    assert_eq!((differ(&between, &after), differ(&after, &between)), (Vec::new(), Vec::new()));
    let mut same = 0;
    for (name, value) in &between {
        let (low, high) = (before[name].min(after[name]), before[name].max(after[name]));
        assert!((low..=high).contains(value), "{name} {value} is not in {low}..={high}");
        same += usize::from((high - low).abs() < f64::EPSILON);
    }
    assert!(same > 4, "{between:?}");
}

fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    text.split_once(begin).unwrap().1.split_once(end).unwrap().0
}

/// The page runs its own program and style, and nothing else; no other site reads it.
fn is_closed(program: &Program) {
    let (head, page) = program.ask("/", "127.0.0.1:1");
    assert!(head.contains("content-type: text/html; charset=utf-8"), "{head}");
    let policy = between(&head, "content-security-policy: ", "\r\n");
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    for (what, begin, end) in
        [("script-src", "<script>", "</script>"), ("style-src", "<style>", "</style>")]
    {
        let hash = STANDARD.encode(Sha256::digest(between(&page, begin, end)));
        assert!(policy.contains(&format!("{what} 'sha256-{hash}'")), "{what}: {policy}");
    }
    // Nothing comes from elsewhere, and nothing runs that has no hash.
    for elsewhere in ["src=\"", "@import", "url(", " style=\"", " onclick=", "href=\"http"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    for path in ["/", "/rack.json", "/docs/page.md"] {
        let (head, _) = program.ask(path, "evil.example");
        assert!(head.starts_with("HTTP/1.1 403"), "{path}: {head}");
    }
}

#[test]
fn the_page_has_the_values_of_the_metrics_and_says_what_is_wrong() {
    let (pool, folder) = (Pool::format_in("/dev/shm"), tempfile::tempdir().unwrap());
    let manager = lock_manager(&pool);
    let drive = format!("{}:64MiB", folder.path().display());
    let flags = ["--node", "0", "--drive", &drive, "--admission", "all", "--backup-age-ms", "0"];
    let agent = Program::start(pool.rackline(&["agent"]).args(flags));
    let engine = rackline::Pool::attach(pool.path(), 0).unwrap();
    work(&engine);

    for program in [&manager, &agent] {
        let lookups = |rack: &Value| rack["seen"]["status"]["rack"]["lookup_blocks"].as_u64();
        let rack = program.rack_with("all is seen, and nothing is wrong", |rack| {
            blocks_of(rack) >= BLOCKS.into()
                && lookups(rack) > Some(BLOCKS.into())
                && texts(rack, "findings").is_empty()
        });
        // The identity of an engine is a block of its own.
        let status = pool.rackline(&["status", "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        for name in ["uuid", "chunks", "chunks_free", "chunk_bytes", "membership_epoch"] {
            assert_eq!(rack["seen"]["status"][name], status[name], "{name}");
        }
        assert_eq!(blocks_of(&rack), status["nodes"][0]["blocks"].as_u64().unwrap());
        let cells = rack["seen"]["map"]["cells"].as_array().unwrap();
        let free = cells.iter().filter_map(|cell| cell["free"].as_u64()).sum::<u64>();
        assert_eq!(
            (cells.len() as u64, free),
            (status["chunks"].as_u64().unwrap(), status["chunks_free"].as_u64().unwrap(),)
        );
        figures_are_those_of_the_metrics(program);
        is_closed(program);
    }

    // The agent still serves its page when the lock manager dies, and says so.
    manager.send(Signal::KILL);
    drop(manager);
    let missed = "missed its heartbeats";
    let rack = agent.rack_with("the death is a finding", |rack| {
        texts(rack, "findings").iter().any(|what| what.contains(missed))
    });
    let events = texts(&rack, "events");
    assert!(
        events.iter().any(|what| what.contains("lock manager") && what.contains("no heartbeat"))
    );
    assert!(!events.iter().any(|what| what.contains("again")), "{events:?}");
    for finding in rack["findings"].as_array().unwrap() {
        let (file, heading) = finding["page"].as_str().unwrap().split_once('#').unwrap();
        let page = agent.get(&format!("/docs/{file}"));
        assert!(page.contains(&format!(" id=\"{heading}\"")), "{finding}");
    }
    drop(engine);
}

#[test]
fn nobody_serves_the_page_to_other_hosts_unasked() {
    let pool = Pool::format_in("/dev/shm");
    for program in ["agent", "lock-manager"] {
        let mut command = pool.rackline(&[program, "--node", "0", "--metrics", "0.0.0.0:0"]);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("--metrics-beyond-loopback"), "{error}");
    }
}

/// Nodes beat within some milliseconds. A lock manager that shares a busy core takes longer.
#[test]
fn a_lock_manager_that_is_slow_is_not_said_to_be_dead() {
    let pool = Pool::format_in("/dev/shm");
    // This process beats for node 1 while the lock manager is stopped.
    let engine = rackline::Pool::attach(pool.path(), 1).unwrap();
    let manager = lock_manager(&pool);
    manager.rack_with("it serves", |rack| {
        rack["seen"]["status"]["lock_manager"]["alive"] == Value::Bool(true)
    });
    manager.send(Signal::STOP);
    let status = pool.rackline(&["status", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    SystemClock::start().sleep_ms(500);
    manager.send(Signal::CONT);
    let output = status.wait_with_output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["lock_manager"]["alive"], true, "{status:#}");
    assert_eq!(status["findings"], Value::Array(Vec::new()), "{status:#}");
    drop(engine);
}
