//! Figures of one name, and their text.

use std::fmt::Write as _;

/// What a figure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, and begins at 0 again when what counts it starts anew.
    Counter,
    /// It is as large as something is now.
    Gauge,
    /// How many events were at most how large.
    Histogram,
}

/// A figure with its labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    suffix: &'static str,
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// Figures of one name. Each has other values of the same labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<Sample>,
}

/// Labels of a figure, with their values.
type Labels<'a> = &'a [(&'static str, &'a str)];

impl Sample {
    /// What stands behind the name of the family: `_bucket`, `_sum` and `_count` of distributions.
    #[must_use]
    pub fn suffix(&self) -> &'static str {
        self.suffix
    }

    /// The labels, with their values.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.labels.iter().map(|(label, value)| (*label, value.as_str()))
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels().find(|(label, _)| *label == name).map(|(_, value)| value)
    }

    /// The figure.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.value
    }
}

impl Family {
    /// Figures that only grow. Their name ends with `_total`.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: Kind::Counter, samples: Vec::new() }
    }

    /// Figures of what is now.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: Kind::Gauge, samples: Vec::new() }
    }

    /// Distributions. Their name ends with the unit.
    #[must_use]
    pub fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: Kind::Histogram, samples: Vec::new() }
    }

    /// The same, with one figure more.
    #[must_use]
    pub fn with(mut self, labels: Labels<'_>, value: u64) -> Self {
        self.push(labels, value);
        self
    }

    /// Adds a figure.
    #[expect(clippy::cast_precision_loss, reason = "the text format has floats: exact up to 2^53")]
    pub fn push(&mut self, labels: Labels<'_>, value: u64) {
        self.push_real(labels, value as f64);
    }

    /// Adds a figure that is no whole number.
    pub fn push_real(&mut self, labels: Labels<'_>, value: f64) {
        self.add("", owned(labels), value);
    }

    /// Adds a distribution: for each bucket its bound, and how many events it has beyond those of the
    /// bucket before. A bucket without a bound has all others, and is the last. `sum` is that of all
    /// events.
    #[expect(clippy::cast_precision_loss, reason = "the text format has floats: exact up to 2^53")]
    pub fn push_histogram(
        &mut self,
        labels: Labels<'_>,
        buckets: impl IntoIterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        let mut count = 0;
        for (bound, events) in buckets {
            count += events;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let mut labels = owned(labels);
            labels.push(("le", bound));
            self.add("_bucket", labels, count as f64);
        }
        self.add("_sum", owned(labels), sum);
        self.add("_count", owned(labels), count as f64);
    }

    fn add(&mut self, suffix: &'static str, labels: Vec<(&'static str, String)>, value: f64) {
        self.samples.push(Sample { suffix, labels, value });
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What the figures are.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The figures.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// The sum of the figures that have these labels, with others or without; `None` when no figure
    /// has them. Buckets and sums of distributions are no such figures, their counts are.
    #[must_use]
    pub fn value(&self, labels: Labels<'_>) -> Option<f64> {
        let counts = |sample: &&Sample| matches!(sample.suffix, "" | "_count");
        let has = |sample: &&Sample| {
            labels.iter().all(|(name, value)| {
                sample.labels.iter().any(|(its, text)| its == name && text == value)
            })
        };
        let found = self.samples.iter().filter(counts).filter(has).map(|sample| sample.value);
        found.reduce(|sum, value| sum + value)
    }

    fn write(&self, text: &mut String) {
        let Self { name, help, kind, samples } = self;
        if samples.is_empty() {
            return;
        }
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // A string takes everything.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for Sample { suffix, labels, value } in samples {
            let _ = write!(text, "{name}{suffix}");
            for (at, (label, value)) in labels.iter().enumerate() {
                let begin = if at == 0 { '{' } else { ',' };
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(text, "{begin}{label}=\"{value}\"");
            }
            let end = if labels.is_empty() { "" } else { "}" };
            let _ = writeln!(text, "{end} {value}");
        }
    }
}

fn owned(labels: Labels<'_>) -> Vec<(&'static str, String)> {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// Families in the text format of Prometheus, version 0.0.4. A family without a figure is left out.
#[must_use]
pub fn text(families: &[Family]) -> String {
    let mut text = String::new();
    families.iter().for_each(|family| family.write(&mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_text_that_prometheus_reads() {
        let path = [("drive", "/mnt/a \"b\"\\c\nd"), ("direction", "read")];
        let mut took = Family::histogram("took_seconds", "How long.");
        took.push_histogram(
            &[("call", "fetch")],
            [(Some(0.001), 2), (Some(2.0), 0), (None, 1)],
            7.5,
        );
        let families = [
            Family::counter("bytes_total", "Bytes.\nAll.").with(&path, (1 << 53) - 1),
            Family::gauge("blocks", "Blocks.").with(&[], 0).with(&[("tier", "G3")], 5),
            Family::gauge("none", "Nothing."),
            took,
        ];
        let expected = "\
            # HELP bytes_total Bytes.\\nAll.\n\
            # TYPE bytes_total counter\n\
            bytes_total{drive=\"/mnt/a \\\"b\\\"\\\\c\\nd\",direction=\"read\"} 9007199254740991\n\
            # HELP blocks Blocks.\n\
            # TYPE blocks gauge\n\
            blocks 0\n\
            blocks{tier=\"G3\"} 5\n\
            # HELP took_seconds How long.\n\
            # TYPE took_seconds histogram\n\
            took_seconds_bucket{call=\"fetch\",le=\"0.001\"} 2\n\
            took_seconds_bucket{call=\"fetch\",le=\"2\"} 2\n\
            took_seconds_bucket{call=\"fetch\",le=\"+Inf\"} 3\n\
            took_seconds_sum{call=\"fetch\"} 7.5\n\
            took_seconds_count{call=\"fetch\"} 3\n";
        assert_eq!(text(&families), expected);
        assert_eq!(families[3].value(&[("call", "fetch")]), Some(3.0));
        assert_eq!(families[1].value(&[]), Some(5.0));
        assert_eq!(families[1].value(&[("tier", "G4")]), None);
    }
}
