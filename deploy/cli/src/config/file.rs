//! The keys of the file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The whole file. What both commands need stands at its beginning.
#[derive(Deserialize, Serialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    region: Option<PathBuf>,
    node: Option<u16>,
    /// The numbers of all hosts, by their names: then one file serves the whole rack.
    nodes: Option<BTreeMap<String, u16>>,
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
    cpu: Option<String>,
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

    /// The number of `host`, where the file has the numbers of all hosts.
    ///
    /// # Errors
    /// The file does not have the host, has two hosts of one number, or has one number beside those.
    pub(super) fn choose_node(&mut self, host: &str) -> anyhow::Result<()> {
        let Some(nodes) = self.nodes.take() else { return Ok(()) };
        if self.node.is_some() {
            anyhow::bail!("it has both `node` and `nodes`; remove one of them");
        }
        let mut hosts = BTreeMap::new();
        for (host, node) in &nodes {
            if let Some(other) = hosts.insert(node, host) {
                anyhow::bail!(
                    "`nodes` gives {other} and {host} one number, {node}; number each host"
                );
            }
        }
        self.node = nodes.get(host).copied();
        if self.node.is_none() {
            anyhow::bail!(
                "`nodes` has no number for this host, {host}; add it, or set RACKLINE_HOST to the name \
                 that it has there"
            );
        }
        Ok(())
    }

    /// What is common, and one section: keys, each with its values as flags have them. A key that is
    /// true is a flag without a value, and one that is false is no flag.
    pub(super) fn settings(&self, section: &str) -> Vec<(String, Vec<Option<String>>)> {
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

fn texts(value: &Value) -> Vec<Option<String>> {
    match value {
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::String(text) => vec![Some(text.clone())],
        Value::Bool(true) => vec![None],
        Value::Bool(false) | Value::Null => Vec::new(),
        other => vec![Some(other.to_string())],
    }
}
