//! The dashboard and the alert rules name what agents and lock managers serve, and pages that exist.

use std::collections::{BTreeMap, BTreeSet};

use super::{Pool, Program, Value, lock_manager};

const RULES: &str = include_str!("../../../prometheus/rackline.rules.yml");
const DASHBOARD: &str = include_str!("../../../grafana/rackline.json");
/// Labels that Prometheus adds, or that only a histogram has.
const ADDED: [&str; 4] = ["instance", "job", "le", "alertname"];

/// The values of each label, by metric.
type Served = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn add(served: &mut Served, text: &str) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let its = served.entry(name.to_owned()).or_default();
        for label in labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').unwrap();
            let value = value.trim_matches('"').to_owned();
            its.entry(label.to_owned()).or_default().insert(value);
        }
    }
}

fn is_of_word(byte: char) -> bool {
    byte.is_ascii_alphanumeric() || byte == '_'
}

/// What an expression asks of a label: name, operator, value.
type Asked<'e> = (&'e str, &'e str, &'e str);

/// The metrics that an expression names, each with what it asks of their labels.
fn named(expression: &str) -> Vec<(&str, Vec<Asked<'_>>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_of_word) {
        let word = &rest[start..];
        let end = word.find(|it| !is_of_word(it)).unwrap_or(word.len());
        let (name, behind) = word.split_at(end);
        rest = behind;
        if !["rackline_", "tier_", "spill_"].iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let mut labels = Vec::new();
        if let Some(selector) = behind.strip_prefix('{') {
            let (inside, _) = selector.split_once('}').unwrap();
            for part in inside.split(", ") {
                let operator = if part.contains("=~") { "=~" } else { "=" };
                let (label, value) = part.split_once(operator).unwrap();
                labels.push((label, operator, value.trim_matches('"')));
            }
        }
        found.push((name, labels));
    }
    found
}

/// The labels by which an expression groups.
fn groups(expression: &str) -> Vec<&str> {
    let lists = expression.split(" by (").skip(1).filter_map(|it| it.split_once(')'));
    lists.flat_map(|(list, _)| list.split(", ")).collect()
}

/// What is wrong with an expression.
fn unknown(served: &Served, expression: &str) -> Vec<String> {
    let metrics = named(expression);
    let mut wrong = Vec::new();
    let has = |metric: &str, label: &str| {
        ADDED.contains(&label) || served.get(metric).is_some_and(|it| it.contains_key(label))
    };
    for (metric, labels) in &metrics {
        let Some(known) = served.get(*metric) else {
            wrong.push(format!("{metric} is not served"));
            continue;
        };
        for (label, operator, value) in labels {
            let values: Vec<_> =
                if *operator == "=~" { value.split('|').collect() } else { vec![*value] };
            let is_value = |value: &&str| known.get(*label).is_some_and(|it| it.contains(*value));
            if !ADDED.contains(label) && !values.iter().all(is_value) {
                wrong.push(format!("{metric} has no {label}{operator}{value}"));
            }
        }
    }
    for label in groups(expression) {
        if !metrics.iter().any(|(metric, _)| has(metric, label)) {
            wrong.push(format!("no metric of {expression} has the label {label}"));
        }
    }
    if metrics.is_empty() {
        wrong.push(format!("{expression} names no metric"));
    }
    wrong
}

/// The texts behind `key` in the rules; a folded text is put together again.
fn texts(key: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = RULES.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(text) = line.trim_start().strip_prefix(key) else { continue };
        if text.trim() != ">-" {
            found.push(text.trim().to_owned());
            continue;
        }
        let depth = line.len() - line.trim_start().len();
        let mut folded = Vec::new();
        while let Some(more) = lines.next_if(|it| it.len() - it.trim_start().len() > depth) {
            folded.push(more.trim());
        }
        found.push(folded.join(" "));
    }
    found
}

/// The expressions of the panels, each with its legend.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().clone();
    let targets = panels.into_iter().flat_map(|it| it["targets"].as_array().cloned());
    let text = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
    targets.flatten().map(|it| (text(&it, "expr"), text(&it, "legendFormat"))).collect()
}

#[test]
fn alerts_and_dashboard_name_what_is_served() {
    let pool = Pool::format_in("/dev/shm");
    let drive = tempfile::tempdir().unwrap();
    let manager = lock_manager(&pool);
    let flag = format!("{}:64MiB", drive.path().display());
    let mut command = pool.rackline(&["agent", "--node", "0", "--drive", &flag]);
    let agent = Program::start(&mut command);
    let mut served = Served::new();
    add(&mut served, &manager.get("/metrics"));
    agent.rack_with("the drive is open", |_| agent.get("/metrics").contains("rackline_drive_up"));
    add(&mut served, &agent.get("/metrics"));

    let rules = texts("expr: ");
    assert_eq!(rules.len(), texts("- alert: ").len());
    let mut wrong: Vec<_> = rules.iter().flat_map(|it| unknown(&served, it)).collect();
    let panels = panels();
    assert!(panels.len() > 30 && rules.len() > 15);
    for (expression, legend) in &panels {
        wrong.extend(unknown(&served, expression));
        let shown = legend.split("{{").skip(1).filter_map(|it| it.split_once("}}"));
        for (label, _) in shown {
            let groups = groups(expression);
            let is_kept = groups.is_empty() || groups.contains(&label);
            let is_label = named(expression).iter().any(|(metric, _)| {
                ADDED.contains(&label)
                    || served.get(*metric).is_some_and(|it| it.contains_key(label))
            });
            if !is_kept || !is_label {
                wrong.push(format!("the legend {legend} of {expression} has no {label}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_alert_leads_to_a_section() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let runbooks = texts("runbook: ");
    assert_eq!(runbooks.len(), texts("- alert: ").len());
    assert_eq!(runbooks.len(), texts("summary: ").len());
    assert_eq!(runbooks.len(), texts("description: ").len());
    for runbook in runbooks {
        let (page, section) = runbook.split_once('#').unwrap();
        let text = std::fs::read_to_string(docs.join(page)).unwrap();
        let headings = text.lines().filter(|line| line.starts_with('#'));
        let slug = |line: &str| {
            let name = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            name.replace(|it| !is_of_word(it) && it != '-', "")
        };
        assert!(headings.map(slug).any(|it| it == section), "{runbook}");
    }
}

#[test]
fn what_is_not_served_is_found() {
    let mut served = Served::new();
    add(
        &mut served,
        "# HELP a b\nrackline_misses_total{reason=\"torn\"} 3\nrackline_agent_ready 1",
    );
    let good = "sum by (reason, instance) (rate(rackline_misses_total{reason=~\"torn\"}[5m]))";
    assert!(unknown(&served, good).is_empty());
    for bad in [
        "rackline_mises_total > 0",
        "rackline_misses_total{reason=\"tron\"}",
        "rackline_misses_total{reasons=\"torn\"}",
        "sum by (drive) (rackline_misses_total)",
        "up == 0",
    ] {
        assert_eq!(unknown(&served, bad).len(), 1, "{bad}");
    }
}
