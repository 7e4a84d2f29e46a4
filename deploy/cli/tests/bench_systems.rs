//! `rackline bench systems`: tables, JSON, pictures, and clear errors.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Command, Output};

use serde_json::Value;

fn systems(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(["bench", "systems"]).args(arguments).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = systems(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn systems_stand_side_by_side_at_each_load() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("systems.svg");
    let few = ["--requests", "150", "--rates", "0.6,0.2", "--svg", picture.to_str().unwrap()];
    let words = text(&few);
    assert_eq!(words, text(&few), "the same seed");
    assert!(words.starts_with("simulated: 150 requests of TraCT A, seed 1"), "{words}");
    // Where figures are from stands beside them.
    for source in ["roofline", "arXiv:2512.18194"] {
        assert!(words.contains(source), "{words}");
    }
    let report: Value = serde_json::from_str(&text(&[&few[..], &["--json"]].concat())).unwrap();
    let points = report["points"].as_array().unwrap();
    let names = ["rackline", "direct", "host-cache", "store"];
    for (place, point) in points.iter().enumerate() {
        assert_eq!(point["system"], names[place % 4]);
        assert_eq!(point["rate"], if place < 4 { 0.2 } else { 0.6 });
        assert_eq!(point["requests"], 150);
        assert!(words.contains(&format!("{:.1}", point["ttft"]["mean_ms"].as_f64().unwrap())));
    }
    let mean = |place: usize| points[place]["ttft"]["mean_ms"].as_f64().unwrap();
    // Without a cache the load counts for more.
    assert!(mean(5) / mean(4) > mean(1) / mean(0) && mean(1) > mean(0), "{words}");
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(names.iter().all(|name| drawn.contains(name)));
    assert!(drawn.matches("<polyline").count() >= 8);
}

#[test]
fn drives_find_what_a_small_memory_has_no_more() {
    let small = ["--requests", "300", "--rates", "0.3", "--capacity-blocks", "5%"];
    let run = |more: &[&str]| {
        text(&[&small[..], &["--systems", "rackline,rackline-drives"], more].concat())
    };
    let report: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let figure = |place: usize, name: &str| report["points"][place][name].as_u64().unwrap();
    assert_eq!((figure(0, "from_drives"), figure(0, "written_to_drives")), (0, 0));
    assert!(figure(1, "hits") > figure(0, "hits") + 1000, "{report:#}");
    assert!(figure(1, "from_drives") > 1000 && figure(1, "written_to_drives") > 1000);
    assert!(run(&[]).contains("rackline-drives at 0.3 requests/s: "));

    // A small drive has less, and nothing that is seen only once is written on request.
    let admitted: Value = serde_json::from_str(&run(&[
        "--json",
        "--drive-blocks",
        "10%",
        "--admission",
        "second-touch",
    ]))
    .unwrap();
    let admitted = &admitted["points"][1];
    assert!(admitted["written_to_drives"].as_u64().unwrap() < figure(1, "written_to_drives"));
    assert!(admitted["from_drives"].as_u64().unwrap() < figure(1, "from_drives"));

    let without = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let links = include_str!("../../serving/profiles/links-tract.toml");
    let lines = links.lines().filter(|line| !line.starts_with("drive_"));
    std::fs::write(without.path(), lines.collect::<Vec<_>>().join("\n")).unwrap();
    let links = without.path().to_str().unwrap();
    let refused = systems(&["--systems", "rackline-drives", "--links", links]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("these links have no drives: add drive_read_gb_per_s"), "{error}");
}

/// Not 0.30000000000000004, which was on the axis of this run.
#[test]
fn labels_of_axes_are_short() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("h200.svg");
    let few = ["--requests", "300", "--rates", "1,7", "--profile", "h200-llama-8b-fp8"];
    text(&[&few[..], &["--svg", picture.to_str().unwrap()]].concat());
    let drawn = std::fs::read_to_string(picture).unwrap();
    let labels: Vec<_> = drawn.lines().filter(|line| line.parse::<f64>().is_ok()).collect();
    assert!(labels.contains(&"0.3") && labels.iter().all(|label| label.len() < 6), "{labels:?}");
}

#[test]
fn the_published_form_of_traces_is_served() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = "{\"timestamp\":0,\"input_length\":1100,\"output_length\":2,\"hash_ids\":[1,2]}\n\
                 {\"timestamp\":9,\"input_length\":1100,\"output_length\":2,\"hash_ids\":[1,3]}\n";
    std::fs::write(file.path(), lines).unwrap();
    let path = file.path().to_str().unwrap();
    let words =
        text(&[path, "--block-tokens", "512", "--rates", "0.1", "--systems", "direct,rackline"]);
    let hits = |name: &str| {
        let row =
            |line: &&str| line.split_whitespace().any(|word| word == name) && line.contains('.');
        let line = words.lines().skip_while(|line| !line.contains("TTFT mean")).find(row).unwrap();
        line.split_whitespace().rev().nth(1).unwrap().to_owned()
    };
    assert_eq!((hits("direct"), hits("rackline")), ("0.0".to_owned(), "25.0".to_owned()));
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    for (arguments, said) in [
        (&["--rates", "0"][..], "give a rate above 0"),
        (&["--systems", "nixl"], "there is no system \"nixl\""),
        (&["--links", "fast"], "there are no links \"fast\""),
        (&["--links", "nowhere.toml"], "cannot read nowhere.toml"),
        (&["--profile", "h1000"], "there is no profile \"h1000\""),
        (&["--kill-node", "1"], "--kill-at-s"),
        (&["--kill-node", "1", "--kill-at-s", "3"], "without node 1 there are no"),
    ] {
        let output = systems(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(said), "{arguments:?}: {error}");
    }
}

/// Memory that all share keeps the blocks; a store loses those of the killed node.
#[test]
fn a_killed_node_takes_with_it_what_its_own_memory_had() {
    let rack = ["--nodes", "3", "--prefill", "3", "--decode", "3", "--rates", "1.5"];
    let size = ["--requests", "150", "--systems", "rackline,direct,store", "--kill-node", "1"];
    let killed = [&rack[..], &size, &["--kill-at-s", "50"]].concat();
    let report: Value = serde_json::from_str(&text(&[&killed[..], &["--json"]].concat())).unwrap();
    assert_eq!(report["killed"], serde_json::json!([1, 50]));
    let [rackline, direct, store] = [0, 1, 2].map(|place| &report["points"][place]);
    for point in [rackline, direct, store] {
        assert_eq!(point["requests"], 150);
        assert!(point["restarted"].as_u64().unwrap() > 0, "{point:#}");
        assert!(point["around_kill"]["after"]["mean_ms"].as_f64().unwrap() > 0.0);
    }
    assert!(rackline["found_again"].as_u64().unwrap() > 0);
    assert_eq!((&direct["hits"], &direct["found_again"]), (&0.into(), &0.into()));
    assert!(rackline["hits"].as_u64() > store["hits"].as_u64());
    let words = text(&killed);
    assert!(words.contains("node 1 is killed after 50 s"), "{words}");
    assert!(words.contains("rackline at 1.5 requests/s: ") && words.contains("began again"));
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("killed.svg");
    let svg = ["--svg", picture.to_str().unwrap()];
    let late = systems(&[&rack[..], &size, &["--kill-at-s", "5000"], &svg].concat());
    let error = String::from_utf8(late.stderr).unwrap();
    assert!(!late.status.success() && error.contains("give a smaller --kill-at-s"), "{error}");
    assert!(error.contains("rackline at 1.5 requests/s: all requests were answered"), "{error}");
    assert!(!picture.exists(), "an empty picture is left");
    text(&[&killed[..], &svg].concat());
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.contains("node 1 killed after 50 s"), "the picture says it");
}
