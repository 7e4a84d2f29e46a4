//! How long forwards take, by model and shape: learned, corrected, and kept over restarts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kv_cache::tier::ForwardShape;

/// Rows at most: what was learned longest ago goes first.
const ROWS_MAX: usize = 1 << 14;
/// The part of a new forward in the averages: one in so many. The mean follows a drift within tens of
/// forwards.
const MEAN_SAMPLES: i64 = 8;
const DEVIATION_SAMPLES: i64 = 4;
/// Forwards of a shape that are seen before it has slack.
const SAMPLES_MIN: u64 = 4;
/// How many mean deviations before the mean the slack ends.
const DEVIATIONS: u64 = 2;
const HEADER: &str = "rackline slack 1";

/// What decides how long a forward takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Shape {
    /// The model, as engines number it.
    pub(crate) model: u64,
    /// Tokens of the prompt and of the prefix.
    pub(crate) forward: ForwardShape,
}

/// What is known of a shape, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Learned {
    mean_us: i64,
    deviation_us: i64,
    samples: u64,
    /// Which of all forwards was the last of it.
    last: u64,
}

/// How long the drives may be written after a forward began, by its shape.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SlackTable {
    rows: BTreeMap<Shape, Learned>,
    forwards: u64,
}

impl SlackTable {
    /// A forward of this shape took so long.
    pub(crate) fn learn(&mut self, shape: Shape, took_us: u64) {
        let took_us = i64::try_from(took_us).unwrap_or(i64::MAX / 2).min(i64::MAX / 2);
        self.forwards += 1;
        let last = self.forwards;
        let first = Learned { mean_us: took_us, deviation_us: 0, samples: 0, last };
        let row = self.rows.entry(shape).or_insert(first);
        let off_us = took_us - row.mean_us;
        row.mean_us += off_us / MEAN_SAMPLES;
        row.deviation_us += (off_us.abs() - row.deviation_us) / DEVIATION_SAMPLES;
        row.samples += 1;
        row.last = last;
        if self.rows.len() > ROWS_MAX
            && let Some(oldest) = self.rows.iter().min_by_key(|(_, row)| row.last)
        {
            let oldest = *oldest.0;
            self.rows.remove(&oldest);
        }
    }

    /// For how long after its begin a forward of this shape leaves the drives alone, in microseconds.
    /// 0 when little is known of it, or when such forwards take very different times.
    #[must_use]
    pub(crate) fn slack_us(&self, shape: Shape) -> u64 {
        let Some(row) = self.rows.get(&shape).filter(|row| row.samples >= SAMPLES_MIN) else {
            return 0;
        };
        let [mean_us, deviation_us] = [row.mean_us, row.deviation_us].map(|it| it.max(0) as u64);
        mean_us.saturating_sub(DEVIATIONS * deviation_us)
    }

    /// How many forwards it has learned from, those before a restart with them.
    #[must_use]
    pub(crate) fn forwards(&self) -> u64 {
        self.forwards
    }

    /// How many shapes it knows.
    #[must_use]
    pub(crate) fn shapes(&self) -> usize {
        self.rows.len()
    }

    /// The lines of a file that keeps it.
    #[must_use]
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{HEADER} {}\n", self.forwards);
        for (shape, row) in &self.rows {
            let Shape { model, forward } = shape;
            let Learned { mean_us, deviation_us, samples, last } = row;
            let _ = writeln!(
                text,
                "{model} {} {} {mean_us} {deviation_us} {samples} {last}",
                forward.prompt, forward.prefix
            );
        }
        let _ = writeln!(text, "end {}", self.rows.len());
        text
    }

    /// What a file has; `None` when it is damaged, or of another version.
    #[must_use]
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let forwards = lines.next()?.strip_prefix(HEADER)?.trim().parse().ok()?;
        let mut rows = BTreeMap::new();
        for line in lines.by_ref() {
            if let Some(count) = line.strip_prefix("end ") {
                let is_whole = count.parse() == Ok(rows.len()) && lines.next().is_none();
                return is_whole.then_some(Self { rows, forwards });
            }
            let (shape, row) = row_of(line)?;
            rows.insert(shape, row);
        }
        None
    }
}

fn row_of(line: &str) -> Option<(Shape, Learned)> {
    let mut words = line.split(' ');
    let model = words.next()?.parse().ok()?;
    let mut step = || words.next()?.parse().ok().filter(|step| *step < 64);
    let forward = ForwardShape { prompt: step()?, prefix: step()? };
    let mut time = || words.next()?.parse().ok().filter(|time| (0..=i64::MAX / 2).contains(time));
    let (mean_us, deviation_us) = (time()?, time()?);
    let mut count = || words.next()?.parse().ok();
    let (samples, last) = (count()?, count()?);
    let row = Learned { mean_us, deviation_us, samples, last };
    words.next().is_none().then_some((Shape { model, forward }, row))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(prompt: u64, prefix: u64) -> Shape {
        Shape { model: 7, forward: ForwardShape::new(prompt, prefix) }
    }

    #[test]
    fn a_shape_has_slack_after_some_forwards() {
        let mut table = SlackTable::default();
        for _ in 0..SAMPLES_MIN {
            assert_eq!(table.slack_us(shape(1000, 0)), 0);
            table.learn(shape(1000, 0), 50_000);
        }
        assert_eq!(table.slack_us(shape(1000, 0)), 50_000);
        assert_eq!(table.slack_us(shape(1000, 4000)), 0, "another shape");
    }

    #[test]
    fn slack_follows_a_drift() {
        let mut table = SlackTable::default();
        (0..50).for_each(|_| table.learn(shape(8, 100), 20_000));
        (0..3).for_each(|_| table.learn(shape(8, 100), 10_000));
        assert!(table.slack_us(shape(8, 100)) < 10_000, "what varies has little slack");
        (0..100).for_each(|_| table.learn(shape(8, 100), 10_000));
        assert!((9_000..=10_010).contains(&table.slack_us(shape(8, 100))), "{table:?}");
    }

    #[test]
    fn a_table_has_a_bound() {
        let mut table = SlackTable::default();
        for model in 0..20 {
            for prompt in 0..64 {
                for prefix in 0..64 {
                    let forward = ForwardShape { prompt, prefix };
                    let few = model != 3 && prompt > 3;
                    if !few {
                        table.learn(Shape { model, forward }, 100);
                    }
                }
            }
        }
        assert!(table.shapes() <= ROWS_MAX);
        assert!(table.rows.contains_key(&Shape { model: 19, forward: ForwardShape::new(1, 1) }));
    }

    #[test]
    fn a_damaged_file_is_no_table() {
        let mut table = SlackTable::default();
        (0..9).for_each(|at| table.learn(shape(1 << at, 64), 1000 * at));
        let text = table.to_text();
        for cut in 0..text.len() - 1 {
            assert_eq!(SlackTable::from_text(&text[..cut]), None, "{cut}");
        }
        let other = text.replacen("slack 1", "slack 2", 1);
        assert_eq!(SlackTable::from_text(&other), None);
        assert_eq!(SlackTable::from_text(&format!("{text}7 1 1 1 1 1 1\n")), None);
    }

    proptest! {
        #[test]
        fn a_table_survives_its_file(
            seen in prop::collection::vec((0u64..3, 0u64..1 << 20, 0u64..1 << 20, 0u64..1 << 40), 0..100),
        ) {
            let mut table = SlackTable::default();
            for (model, prompt, prefix, took_us) in seen {
                table.learn(Shape { model, forward: ForwardShape::new(prompt, prefix) }, took_us);
            }
            prop_assert_eq!(SlackTable::from_text(&table.to_text()), Some(table));
        }
    }
}
