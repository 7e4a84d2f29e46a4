//! `rackline simulate`: tables, JSON, pictures, and clear errors.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Command, Output};

use serde_json::Value;

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.arg("simulate").args(arguments).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn error(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn policies_stand_side_by_side() {
    let few = ["--requests", "20", "--seed", "3"];
    let words = text(&few);
    assert!(words.starts_with("A6000, Llama-3.1-8B: 20 requests"), "{words}");
    assert_eq!(words, text(&few), "the same seed");
    let json: Value = serde_json::from_str(&text(&[&few[..], &["--json"]].concat())).unwrap();
    let policies = json["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 7);
    for policy in policies {
        let name = policy[0].as_str().unwrap();
        let line = words.lines().find(|line| line.split_whitespace().next() == Some(name));
        let kept = policy[1]["tbt_attainment_percent"].as_f64().unwrap();
        assert!(line.unwrap().contains(&format!(" {kept:.1}%")), "{line:?} {kept}");
        assert_eq!(policy[1]["served"], 20);
    }
}

#[test]
fn figures_are_tables_and_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slo.svg");
    let words = text(&["--figure", "slo", "--requests", "8", "--svg", path.to_str().unwrap()]);
    assert!(words.contains("TPOT kept, %, by scale of the SLO"), "{words}");
    let picture = std::fs::read_to_string(path).unwrap();
    for policy in ["no-offload", "deepspeed", "flexgen+", "uniform-slo", "heuristic", "ours"] {
        assert!(picture.contains(policy), "{policy}");
        assert!(words.contains(policy), "{policy}");
    }
    assert!(picture.starts_with("<svg") && picture.matches("<polyline").count() >= 14);
}

#[test]
fn a_trace_and_other_lengths_of_prompts_are_not_both_given() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{\"input_length\": 100, \"output_length\": 5}\n").unwrap();
    let said = error(&["--figure", "context", "--trace", file.path().to_str().unwrap()]);
    assert!(said.contains("give one of both"), "{said}");
}

#[test]
fn all_figures_go_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let profile = folder.path().join("mine.toml");
    let lines = [
        "name = \"mine\"",
        "source = \"a test\"",
        "layers = 8",
        "kv_bytes = 1000",
        "weight_bytes = 1000000",
        "gpu_kv_bytes = 60000000",
        "link_gb_per_s = 2.0",
        "layer_us = [{ context_tokens = 0, us = 100.0 }]",
    ];
    std::fs::write(&profile, lines.join("\n")).unwrap();
    let trace = folder.path().join("trace.jsonl");
    let line = "{\"input_length\": 3000, \"output_length\": 9, \"hash_ids\": [1]}\n";
    std::fs::write(&trace, line.repeat(5)).unwrap();
    let [profile, trace, to] = [&profile, &trace, &made].map(|path| path.to_str().unwrap());
    let words = text(&["--profile", profile, "--trace", trace, "--requests", "6", "--all", to]);
    assert!(words.contains("context: left out"), "{words}");
    let mut names: Vec<_> = std::fs::read_dir(&made)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 16, "{names:?}");
    let json = std::fs::read_to_string(made.join("batch.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["profile"], &json["figure"]), (&"mine".into(), &"batch".into()));
    assert_eq!(
        json["points"].as_array().unwrap().len(),
        json["series"][0]["figures"].as_array().unwrap().len()
    );
}

#[test]
fn errors_say_what_to_do() {
    let error_of = |arguments: &[&str], wanted: &str| {
        let error = error(arguments);
        assert!(error.contains(wanted), "{error}");
    };
    error_of(&["--profile", "b200"], "h100-llama-8b, or a file that ends with .toml");
    error_of(&["--profile", "/nowhere.toml"], "/nowhere.toml cannot be read");
    error_of(&["--load", "0"], "the load is 0: give 0.01 to 100");
    error_of(&["--batch", "0"], "the largest batch is 0: give 1 to 256");
    error_of(&["--svg", "x.svg"], "--figure");
    error_of(&["--trace", "/nowhere.jsonl"], "/nowhere.jsonl cannot be read");
}
