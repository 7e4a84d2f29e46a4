//! `rackline geometry`: the bytes of well-known models, and clear errors.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn geometry(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.stdin(Stdio::null()).arg("geometry").args(arguments).output().unwrap()
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = geometry(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn error(arguments: &[&str]) -> String {
    let output = geometry(arguments);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.stdout.is_empty(), "an error says nothing else");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_model_by_name_and_by_numbers() {
    let named = rows(&["SmolLM2-135M-Instruct", "--dtype", "f16"]);
    assert_eq!(named.len(), 1);
    assert_eq!(named[0]["token_bytes"], 23_040);
    assert_eq!(named[0]["rank_block_bytes"], 368_640);
    let numbers = ["--layers", "30", "--kv-heads", "3", "--head-dim", "64"];
    assert_eq!(rows(&numbers)[0]["token_bytes"], 23_040);
    assert_eq!(rows(&["--layers", "61", "--latent", "576"])[0]["token_bytes"], 70_272);
    assert_eq!(rows(&["SmolLM2-135M", "--dtype", "fp8_e4m3"])[0]["token_bytes"], 11_520);
}

#[test]
fn ranks_share_what_they_hold_alike() {
    let found = rows(&["DeepSeek-V3", "Llama-3.1-70B", "Qwen3-30B-A3B", "--tp", "8"]);
    let column = |name: &str| found.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("parts"), [1, 8, 4]);
    let blocks = [16 * 70_272, 16 * 327_680 / 8, 16 * 98_304 / 4];
    assert_eq!(column("rank_block_bytes"), blocks);
}

#[test]
fn without_a_name_all_models_are_shown() {
    let all = rows(&[]);
    assert!(all.len() >= 30);
    let text = String::from_utf8(geometry(&[]).stdout).unwrap();
    for row in &all {
        assert!(text.contains(row["model"].as_str().unwrap()), "{row}");
    }
    // Three heads cannot be divided over eight ranks; the others are shown all the same.
    let output = geometry(&["--tp", "8"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("SmolLM2-135M: 3 KV heads cannot be divided over 8"), "{said}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("Llama-3.1-405B"));
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, said) in [
        (&["GPT-9"][..], "\"GPT-9\" is not built in"),
        (&["SmolLM2-135M", "--tp", "8"], "3 KV heads cannot be divided over 8"),
        (&["SmolLM2-135M", "--tp", "0"], "ranks is 0"),
        (&["SmolLM2-135M", "--block-tokens", "0"], "tokens in a block is 0"),
        (&["SmolLM2-135M", "--dtype", "int4"], "no KV type \"int4\""),
        (&["--layers", "3"], "--layers needs --kv-heads and --head-dim, or --latent"),
        (&["--layers", "3", "--kv-heads", "3"], "--head-dim"),
        (&["--latent", "3"], "--layers"),
        (&["SmolLM2-135M", "--layers", "3"], "cannot be used with"),
        (&["SmolLM2-135M", "--prompt", "0"], "0 is not in 1.."),
        (&["SmolLM2-135M", "--prompt", "18446744073709551615"], "larger than"),
        (&["SmolLM2-135M", "--tiers=tape=3"], "\"tape=3\" is no tier"),
        (&["SmolLM2-135M", "--layer-ms", "3"], "--prompt"),
        (&["SmolLM2-135M", "--prompt", "1", "--tiers", "--layer-ms=-3"], "-3 is no time"),
        (&["SmolLM2-135M", "--cost"], "--prefill-tokens-s"),
        (&["SmolLM2-135M", "--hit-rate", "2"], "share from 0 to 1"),
    ] {
        let error = error(arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn numbers_are_counted_and_vectors_named_in_words() {
    let output = geometry(&["DeepSeek-V3", "--prompt", "1", "--block-tokens", "1"]);
    let said = String::from_utf8(output.stdout).unwrap();
    for words in ["1 token a block", "prompt of 1 token: 1 block,", "the latent vectors of each"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let output = geometry(&["Llama-3.1-8B", "--prompt", "17"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("prompt of 17 tokens: 2 blocks,") && said.contains("K and V of each"));
}

#[test]
fn prices_without_a_cost_are_refused() {
    for price in ["--hit-rate", "--ssd-gib", "--gpu-hour-usd", "--prefill-tokens-s"] {
        let error = error(&["Llama-3.1-8B", price, "1"]);
        assert!(error.contains("--cost"), "{price}: {error}");
    }
}

/// 128K tokens of a 32B model, 64 tokens a block: the prompt of Tutti's example.
#[test]
fn a_prompt_on_its_tiers_and_what_it_costs() {
    let model = ["Qwen3-32B", "--block-tokens", "64", "--prompt", "131072"];
    let tiers = ["--tiers=nvme=29", "--layer-ms", "20"];
    let cost = ["--cost", "--prefill-tokens-s", "5000", "--hit-rate", "0.6"];
    let arguments = [&model[..], &tiers, &cost].concat();
    let row = &rows(&arguments)[0];
    assert_eq!(row["prompt"]["objects"], 262_144);
    let nvme = &row["tiers"][3];
    assert_eq!((&nvme["tier"], &nvme["source"]), (&"nvme".into(), &"given".into()));
    let near = |value: &Value, expected: f64| {
        let found = value.as_f64().unwrap();
        assert!((found - expected).abs() < 1e-4 * expected, "{found}: {expected}");
    };
    // 16 MiB, 32 GiB and 512 MiB at 29 GB/s; a layer that computes for 20 ms hides the last.
    near(&nvme["block_us"], 578.52);
    near(&nvme["prompt"]["prompt_ms"], 1184.818);
    near(&nvme["prompt"]["slack_needed_ms"], 18.5128);
    near(&nvme["prompt"]["stall_ms"], 18.5128);
    near(&row["cost"]["alone_usd"], 6.88 / 3600.0 / 5000.0 * 1e6);
    let ssd = &row["cost"]["tiers"][1];
    let hour = 14_305.0 * 0.0859 / 730.0;
    near(&ssd["layered_break_even"], hour / (hour + 6.88));
    // 256 KiB of a token at 29 GB/s, against 0.2 ms of computing.
    near(&ssd["hidden_up_to"], 1.0 / (1.0 + 5000.0 * 262_144.0 / 29e9));

    let text = String::from_utf8(geometry(&arguments).stdout).unwrap();
    for said in ["2048 blocks", "262144 pieces of 128.0 KiB", "slack needed ms", "pays from"] {
        assert!(text.contains(said), "{said}: {text}");
    }
}
