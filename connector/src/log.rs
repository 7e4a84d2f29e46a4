//! What the libraries below say in a program of another language: each event as a line of text.
//!
//! Rust programs choose their own subscriber of `tracing` and do not use this.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A line for the log of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogLine {
    /// How serious it is.
    pub level: Level,
    /// The module that logs the line, as a path: `kv_cache::read::fetch`.
    pub target: &'static str,
    /// What it says, with what it names: `a block is damaged (reason="checksum")`. One line.
    pub text: String,
}

/// Sends everything of `level` and above to `take`, from now on and for this whole program. `take`
/// is called on whichever thread has something to say, holding whatever locks that has: it waits
/// for nobody. False, and nothing is changed, when the program has a log already.
pub fn send_log(level: LevelFilter, take: impl Fn(LogLine) + Send + Sync + 'static) -> bool {
    tracing::subscriber::set_global_default(Lines { level, take }).is_ok()
}

/// The level that a text names (`off`, `error`, `warn`, `info`, `debug`, `trace`); `usual` where
/// there is none, or one that names no level.
#[must_use]
pub fn log_level(text: Option<&str>, usual: LevelFilter) -> LevelFilter {
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(usual)
}

/// Turns events into lines. There are no spans in the libraries.
struct Lines<T> {
    level: LevelFilter,
    take: T,
}

impl<T: Fn(LogLine) + Send + Sync + 'static> Subscriber for Lines<T> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let (level, target) = (*metadata.level(), metadata.target());
        (self.take)(LogLine { level, target, text: text.line() });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event in words.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn line(self) -> String {
        let Self { message, fields } = self;
        let line = if fields.is_empty() { message } else { format!("{message} ({fields})") };
        line.replace(|letter: char| letter.is_control(), " ")
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A string takes whatever is written to it.
        let _ = match (field.name(), self.fields.is_empty()) {
            ("message", _) => write!(self.message, "{value:?}"),
            (name, true) => write!(self.fields, "{name}={value:?}"),
            (name, false) => write!(self.fields, ", {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn an_event_is_a_line_with_what_it_names() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&lines);
        let take = move |line| taken.lock().unwrap().push(line);
        let subscriber = Lines { level: LevelFilter::WARN, take };
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(node = %3, reason = "of\ntwo lines", "{} went wrong", "something");
            tracing::error!("that is all");
            tracing::info!("not asked for");
        });
        let lines = lines.lock().unwrap();
        let texts: Vec<_> = lines.iter().map(|line| (line.level, line.text.as_str())).collect();
        assert_eq!(
            texts,
            [
                (Level::WARN, "something went wrong (node=3, reason=\"of\\ntwo lines\")"),
                (Level::ERROR, "that is all"),
            ]
        );
        assert_eq!(lines[0].target, "rackline::log::tests");
    }

    #[test]
    fn what_names_no_level_is_the_usual_one() {
        for (text, level) in [
            (Some("debug"), LevelFilter::DEBUG),
            (Some(" OFF "), LevelFilter::OFF),
            (Some("loud"), LevelFilter::WARN),
            (None, LevelFilter::WARN),
        ] {
            assert_eq!(log_level(text, LevelFilter::WARN), level, "{text:?}");
        }
    }
}
