//! The keys of the file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The whole file. What both commands need stands at its beginning.
#[derive(Deserialize, Serialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    region: Option<PathBuf>,
    node: Option<u16>,
    log_format: Option<String>,
    agent: Option<Agent>,
    lock_manager: Option<LockManager>,
}

/// Flags of `rackline agent`.
#[derive(Deserialize, Serialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
struct Agent {
    drive: Option<Vec<String>>,
    io: Option<String>,
    take_over: Option<bool>,
    backup_age_ms: Option<u64>,
    admission: Option<String>,
    backlog: Option<String>,
    commit_ms: Option<u64>,
    commit_bytes: Option<String>,
    idle_ms: Option<u64>,
    write_wait_ms: Option<u64>,
    high_percent: Option<u16>,
    low_percent: Option<u16>,
    encoding: Option<String>,
    encoding_percent: Option<u8>,
    depth: Option<u64>,
    queue: Option<u64>,
    metrics: Option<String>,
    metrics_beyond_loopback: Option<bool>,
}

/// Flags of `rackline lock-manager`.
#[derive(Deserialize, Serialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
struct LockManager {
    takeover_ms: Option<u64>,
    declare_ms: Option<u64>,
    fence: Option<String>,
    fence_command: Option<PathBuf>,
    fence_timeout_ms: Option<u64>,
    metrics: Option<String>,
    metrics_beyond_loopback: Option<bool>,
}

impl File {
    /// The settings in `text`.
    ///
    /// # Errors
    /// Where, and what is wrong: a key that no setting has, a value of another kind.
    pub(super) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// What is common, and one section: keys, each with its values as flags have them. A key that is
    /// false has none.
    pub(super) fn settings(&self, section: &str) -> Vec<(String, Vec<String>)> {
        let mut all = match serde_json::to_value(self) {
            Ok(Value::Object(all)) => all,
            _ => Map::new(),
        };
        let of_section = all.remove(section);
        let common = all.into_iter().filter(|(_, value)| !value.is_object());
        let section = of_section.and_then(|it| it.as_object().cloned()).unwrap_or_default();
        let given = common.chain(section).filter(|(_, value)| !value.is_null());
        given.map(|(key, value)| (key, texts(&value))).collect()
    }
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::String(text) => vec![text.clone()],
        Value::Bool(false) | Value::Null => Vec::new(),
        other => vec![other.to_string()],
    }
}
