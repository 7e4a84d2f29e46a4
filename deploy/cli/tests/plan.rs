//! `rackline plan`: known answers, pictures, and clear errors.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// The batch of `kv-cache/docs/placement.md`: the first request has so many blocks a layer.
fn batch(first: u64) -> Value {
    json!({
        "layers": 9, "link_blocks_per_layer": 3, "gpu_blocks": 70,
        "requests": [{"blocks_per_layer": first}, {"blocks_per_layer": 6}]
    })
}

fn with(mut batch: Value, key: &str, value: Value) -> Value {
    batch[key] = value;
    batch
}

fn plan(input: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(["plan", "-"]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn answer(input: &Value, arguments: &[&str]) -> Value {
    let output = plan(&input.to_string(), &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn words(input: &Value, arguments: &[&str]) -> String {
    let output = plan(&input.to_string(), arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What is said on standard error, of a command that succeeds.
fn remark(input: &Value, arguments: &[&str]) -> (String, String) {
    let output = plan(&input.to_string(), arguments);
    let [said, remark] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{remark}");
    (said, remark)
}

fn error(input: &str, arguments: &[&str]) -> String {
    let output = plan(input, arguments);
    assert!(!output.status.success(), "{input}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(output.stdout.is_empty(), "an error says nothing else");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn given_placements_are_evaluated() {
    let (a, b, c) =
        (json!([[3, 6, 9], [3, 6, 9]]), json!([[], [9, 6, 3]]), json!([[4, 8], [3, 6, 9]]));
    for (first, placements, discipline, stall, memory, feasible) in [
        (3, &a, "edf", "9", 63, true),
        (3, &b, "edf", "0", 69, true),
        (3, &c, "edf", "0", 63, true),
        (4, &a, "edf", "12", 70, true),
        (4, &b, "edf", "0", 78, false),
        (4, &c, "edf", "2", 70, true),
        (3, &c, "equal-share", "6", 63, true),
        (4, &c, "equal-share", "6", 70, true),
    ] {
        let input = with(batch(first), "placements", placements.clone());
        let found = answer(&input, &["--discipline", discipline]);
        assert_eq!(found["stall_blocks"], stall, "{input}");
        assert_eq!(found["memory_blocks"], memory, "{input}");
        assert_eq!(found["feasible"], feasible, "{input}");
        assert_eq!(found.get("reason").is_some(), !feasible, "{found}");
    }
}

#[test]
fn stalls_are_fractions_where_they_are() {
    let input = with(batch(4), "placements", json!([[4], [3]]));
    let found = answer(
        &with(input, "link_blocks_per_layer", json!(3.5)),
        &["--discipline", "equal-share", "--memory", "safe"],
    );
    // 7 of 10 blocks have come when layer 3 could begin, 3.5 for each; then half a block each,
    // and the other two blocks at the whole rate.
    assert_eq!(found["stall_blocks"], "3");
    let input = with(batch(1), "placements", json!([[2], []]));
    let found = answer(&with(input, "link_blocks_per_layer", json!("2/3")), &[]);
    assert_eq!(found["stall_blocks"], "1/3");
}

#[test]
fn a_plan_is_found_and_shown() {
    let found = answer(&batch(3), &[]);
    assert_eq!(found["feasible"], true);
    assert_eq!(found["stall_blocks"], "0");
    assert_eq!((&found["moved_blocks"], &found["memory_blocks"]), (&json!(18), &json!(69)));
    assert_eq!((&found["bound_blocks"], &found["optimal"]), (&json!("0"), &json!(true)));
    let evaluated = answer(&with(batch(3), "placements", found["placements"].clone()), &[]);
    for key in ["stall_blocks", "moved_blocks", "memory_blocks", "window_steps"] {
        assert_eq!(evaluated[key], found[key], "{key}");
    }
    let text = words(&batch(3), &[]);
    assert!(text.contains("stall     0 block-transfer times (no choice stalls less)"), "{text}");
    let full = answer(&batch(3), &["--full"]);
    assert!(full["moved_blocks"].as_u64() <= found["moved_blocks"].as_u64());
}

#[test]
fn the_iteration_is_drawn_in_columns() {
    let text = words(&with(batch(4), "placements", json!([[4, 8], [3, 6, 9]])), &[]);
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let gpu = row("GPU");
    let stalls: Vec<_> = gpu.match_indices('.').map(|(column, _)| column).collect();
    assert_eq!(stalls.len(), 6, "two thirds of a layer time, at nine columns each: {gpu}");
    assert_eq!(gpu.trim_start_matches("GPU").trim().len(), 9 * 9 + 6);
    assert!(row("link 1").contains("444444444444"), "{text}");
    assert!(row("link 2").trim_end().ends_with("999"), "{text}");
}

#[test]
fn no_plan_is_an_answer_with_its_reason() {
    let found = answer(&with(batch(3), "gpu_blocks", json!(40)), &[]);
    assert_eq!((&found["feasible"], &found["stall_blocks"]), (&json!(false), &Value::Null));
    let reason = found["reason"].as_str().unwrap();
    assert!(
        reason.contains("room for 40 blocks") && reason.contains("pause a request"),
        "{reason}"
    );
    let text = words(&with(batch(3), "gpu_blocks", json!(40)), &[]);
    assert!(text.contains("not feasible: the GPU has room for 40 blocks"), "{text}");
    let input = with(with(batch(3), "decode_window", json!(90)), "gpu_blocks", json!(75));
    assert_eq!(answer(&input, &[])["feasible"], false);
    // Known before the search: more time would not help.
    let found = answer(&with(batch(3), "gpu_blocks", json!(53)), &["--limit-ms", "0"]);
    assert!(found["reason"].as_str().unwrap().contains("need at least 54"), "{found}");
}

#[test]
fn a_search_without_time_gives_one_distance_for_all_and_says_so() {
    let found = answer(&batch(3), &["--limit-ms", "0"]);
    assert_eq!((&found["feasible"], &found["optimal"]), (&json!(true), &json!(false)));
    assert_eq!(found["placements"][0], found["placements"][1]);
    let text = words(&batch(3), &["--limit-ms", "0"]);
    assert!(text.contains("stopped early"), "{text}");
}

#[test]
fn the_picture_of_the_page_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kv-cache/docs/placement.svg");
    let folder = tempfile::tempdir().unwrap();
    let drawn = folder.path().join("plan.svg");
    let input = with(batch(4), "placements", json!([[4, 8], [3, 6, 9]]));
    words(&input, &["--svg", drawn.to_str().unwrap()]);
    let drawn = std::fs::read_to_string(drawn).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    assert_eq!(drawn, std::fs::read_to_string(page).unwrap());
}

#[test]
fn a_picture_of_nothing_is_not_written_and_the_answer_is_told() {
    let small = with(batch(3), "gpu_blocks", json!(40));
    let (said, remark) = remark(&small, &["--svg", "plan.svg"]);
    assert!(said.contains("not feasible: "), "{said}");
    assert!(remark.contains("plan.svg is not written: there is no plan to draw"), "{remark}");
    assert!(!Path::new("plan.svg").exists());
    let nowhere = error(&batch(3).to_string(), &["--svg", "/nowhere/plan.svg"]);
    assert!(nowhere.contains("/nowhere/plan.svg cannot be written"), "{nowhere}");
}

#[test]
fn bad_input_is_one_clear_error() {
    let usual = batch(3);
    let huge = 10_u64.pow(19);
    for (input, said) in [
        (with(usual.clone(), "layers", json!(0)), "number of layers is 0"),
        (with(usual.clone(), "layers", json!(2000)), "layers is 2000: at most 1024"),
        (with(usual.clone(), "layers", json!(-1)), "expected u64"),
        (with(usual.clone(), "layers", json!(huge)), "at most 1024"),
        (with(usual.clone(), "window_max", json!(u32::MAX)), "window_max is 4294967295: at most"),
        (with(usual.clone(), "decode_window", json!(1 << 21)), "decode_window is 2097152: at most"),
        (
            with(
                usual.clone(),
                "requests",
                json!([{"blocks_per_layer": 1, "deposit_tokens": u32::MAX}]),
            ),
            "deposit_tokens of request 1 is 4294967295: at most",
        ),
        (with(usual.clone(), "colour", json!(1)), "unknown field `colour`"),
        (with(usual.clone(), "requests", json!([])), "number of requests is 0"),
        (with(usual.clone(), "requests", json!([{"blocks_per_layer": 0}])), "of request 1 is 0"),
        (with(usual.clone(), "requests", json!([{"blocks": 1}])), "unknown field `blocks`"),
        (with(usual.clone(), "requests", json!([{"blocks_per_layer": huge}])), "check the unit"),
        (with(usual.clone(), "link_blocks_per_layer", json!(0)), "in a layer time is 0"),
        (with(usual.clone(), "link_blocks_per_layer", json!("5/0")), "kept exactly"),
        (with(usual.clone(), "link_blocks_per_layer", json!("NaN")), "kept exactly"),
        (with(usual.clone(), "link_blocks_per_layer", json!(1e300)), "kept exactly"),
        (with(usual.clone(), "link_blocks_per_layer", json!(true)), "a number of at least 0"),
        (with(usual.clone(), "alpha", json!(1.5)), "the share is 0 to 1"),
        (with(usual.clone(), "decode_window", json!(0)), "the window has 0 steps"),
        (with(usual.clone(), "block_tokens", json!(0)), "a block has 0 tokens"),
        (with(usual.clone(), "placements", json!([[3]])), "1 placements for 2 requests"),
        (with(usual.clone(), "placements", json!([[3], [3, 3]])), "layer 3 is given twice"),
        (with(usual.clone(), "placements", json!([[3], [10]])), "there is no layer 10"),
        (with(usual.clone(), "placements", json!([[3], [0]])), "counted from 1 to 9"),
    ] {
        let error = error(&input.to_string(), &[]);
        assert!(error.contains(said), "{input}: {error}");
    }
    for (text, said) in [
        ("", "EOF"),
        ("{\"layers\": 9", "EOF"),
        ("{\"layers\": NaN}", "expected value"),
        ("{\"layers\": 9}", "missing field"),
        ("{\"layers\": 9, \"layers\": 9}", "duplicate field `layers`"),
        ("[]", "`rackline plan --help` shows the input"),
    ] {
        let error = error(text, &[]);
        assert!(error.contains(said), "{text}: {error}");
    }
    let many = with(usual, "layers", json!(13));
    assert!(error(&many.to_string(), &["--full"]).contains("up to 12 layers"));
}

#[test]
fn a_file_that_does_not_exist_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    let output = command.args(["plan", "nowhere.json"]).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("nowhere.json cannot be read"), "{error}");
}

/// An iteration of 9 layers takes 9 layer times until the requests have grown, and 9 and 2/3 then.
#[test]
fn tokens_are_released_at_the_promised_rate() {
    let mut input = with(batch(3), "placements", json!([[4, 8], [3, 6, 9]]));
    input["requests"][0]["free_tokens"] = json!(1);
    input["requests"][0]["slo_layer_times"] = json!(10);
    input["requests"][0]["deposit_tokens"] = json!(1);
    input["requests"][1]["free_tokens"] = json!(9);
    input["block_tokens"] = json!(16);
    let found = answer(&input, &["--deposit", "4"]);
    let column = |name: &str| {
        let tokens = found["tokens"].as_array().unwrap();
        tokens.iter().map(|token| token[name].clone()).collect::<Vec<_>>()
    };
    // The second request has no promise. The first has 4 blocks a layer from step 3 on.
    assert_eq!(column("request"), [1, 1, 1, 1]);
    assert_eq!(column("ready"), ["9", "18", "83/3", "112/3"]);
    assert_eq!(column("released"), ["20", "30", "40", "50"]);
    assert_eq!(column("deposit_tokens"), [2, 2, 2, 2]);
    assert_eq!(column("late"), [false; 4]);

    // Nothing is deposited, and 9 layer times are promised: the growth is late twice.
    input["requests"][0]["slo_layer_times"] = json!(9);
    input["requests"][0]["deposit_tokens"] = json!(0);
    let found = answer(&input, &["--deposit", "4"]);
    let late: Vec<_> = (0..4).map(|step| found["tokens"][step]["late"].clone()).collect();
    assert_eq!(late, [false, false, true, true]);
    assert_eq!(found["tokens"][3]["released"], "112/3");
    assert!(words(&input, &["--deposit", "4"]).contains("83/3         83/3        1  late"));

    let (said, remark) = remark(&batch(3), &["--deposit", "4"]);
    assert!(said.contains("holds for ") && !said.contains("released"), "{said}");
    assert!(remark.contains("no request of the input has slo_layer_times"), "{remark}");
}

#[test]
fn steps_that_do_not_fit_any_more_are_told_and_long_times_stand_apart() {
    let mut input = with(batch(3), "placements", json!([[4, 8], [3, 6, 9]]));
    input["requests"][0]["slo_layer_times"] = json!(10);
    (0..2).for_each(|request| input["requests"][request]["free_tokens"] = json!(10));
    assert_eq!(answer(&input, &["--deposit", "4"])["token_steps"], 4);
    let steps = answer(&input, &["--deposit", "400"])["token_steps"].as_u64().unwrap();
    let said = words(&input, &["--deposit", "400"]);
    assert!(said.contains(&format!("{steps} steps of 400 are shown")), "{said}");

    // An iteration takes more than 10^12 layer times.
    let slow = json!({
        "layers": 2, "link_blocks_per_layer": "1/1000000000", "gpu_blocks": 5000,
        "requests": [{"blocks_per_layer": 2000, "slo_layer_times": 1}],
        "placements": [[1, 2]]
    });
    let said = words(&slow, &["--deposit", "2"]);
    let times = said.lines().find(|line| line.starts_with("time")).unwrap();
    let marks: Vec<_> = times.split_whitespace().skip(1).collect();
    assert!(marks.iter().all(|mark| mark.len() <= 13) && marks.len() > 3, "{times}");
    let rows: Vec<_> =
        said.lines().skip_while(|line| !line.starts_with("request   step")).collect();
    assert_eq!(rows[0].len() + "  late".len(), rows[1].len(), "{said}");
}
