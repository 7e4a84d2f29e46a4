//! What the page asks for every two seconds.

use rackline_metrics::Family;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::watch::events::Event;
use crate::watch::findings::Finding;
use crate::watch::history::Rates;
use crate::watch::lookout::Seen;

/// What is in it beside the figures. Times are ages: the clocks of two hosts are never compared.
#[derive(Debug, Serialize)]
pub(super) struct RackJson<'a> {
    /// `agent` or `lock-manager`.
    pub(super) program: &'a str,
    pub(super) node: u16,
    /// How often the program looks.
    pub(super) look_every_ms: u64,
    /// How long ago it looked; none before its first look.
    pub(super) looked_ago_ms: Option<u64>,
    /// Why the rack cannot be looked at.
    pub(super) error: Option<&'a str>,
    pub(super) seen: Option<&'a Seen>,
    /// All findings: of the rack, and of this program.
    pub(super) findings: &'a [Finding],
    pub(super) history: Vec<Aged<&'a Rates>>,
    pub(super) events: Vec<Aged<&'a Event>>,
    /// The figures of `/metrics`.
    pub(super) figures: Vec<Figure>,
}

/// With its age.
#[derive(Debug, Serialize)]
pub(super) struct Aged<T> {
    pub(super) ago_ms: u64,
    #[serde(flatten)]
    pub(super) what: T,
}

/// A figure of `/metrics`.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    name: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    labels: Map<String, Value>,
    value: f64,
}

/// Families one figure after the other, as `/metrics` has them.
pub(super) fn figures(families: &[Family]) -> Vec<Figure> {
    let of_family = |family: &Family| {
        let name = family.name();
        let figure = |sample: &rackline_metrics::Sample| Figure {
            name: format!("{name}{}", sample.suffix()),
            labels: sample
                .labels()
                .map(|(label, value)| (label.to_owned(), json!(value)))
                .collect(),
            value: sample.value(),
        };
        family.samples().map(figure).collect::<Vec<_>>()
    };
    families.iter().flat_map(of_family).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure as a line of `/metrics`, by the rules of that format.
    fn line(figure: &Value) -> String {
        let labels = figure["labels"].as_object().into_iter().flatten().map(|(name, value)| {
            let value = value.as_str().unwrap().replace('\\', "\\\\");
            format!("{name}=\"{}\"", value.replace('"', "\\\"").replace('\n', "\\n"))
        });
        let labels: Vec<_> = labels.collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!(
            "{}{labels} {}",
            figure["name"].as_str().unwrap(),
            figure["value"].as_f64().unwrap()
        )
    }

    #[test]
    fn figures_are_those_of_the_metrics() {
        let hostile = "</script><script>alert(1)</script> \"x\"\\\n";
        let mut took = Family::histogram("took_seconds", "How long.");
        took.push_histogram(&[], [(Some(0.001), 2), (None, 1)], 7.5);
        let families = [
            Family::counter("bytes_total", "Bytes.").with(&[("tenant", hostile)], (1 << 53) - 1),
            Family::gauge("worn", "Worn.").with(&[], 0),
            took,
        ];
        let text = rackline_metrics::text(&families);
        let expected: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let json = serde_json::to_value(figures(&families)).unwrap();
        let lines: Vec<_> = json.as_array().unwrap().iter().map(line).collect();
        assert_eq!(lines, expected);
    }
}
