//! Good settings, as an operator may write them.

use cxl_shm::verify::simulated::Random;

use crate::config::host_name;

/// A key with its value.
struct Setting {
    /// Empty at the top of the file.
    section: &'static str,
    key: &'static str,
    /// As it stands in the file.
    value: String,
    /// The flags that it stands for.
    flags: Vec<String>,
}

/// Settings of an agent and of a lock manager.
pub(super) struct Chosen(Vec<Setting>);

/// Keys whose values are one of some words.
const WORDS: [(&str, &str, &[&str]); 6] = [
    ("", "log_format", &["text", "json"]),
    ("agent", "io", &["uring", "posix"]),
    ("agent", "admission", &["second-touch", "frequency", "all"]),
    ("agent", "encoding", &["raw", "lz4", "lz4-planes", "auto"]),
    ("lock_manager", "fence", &["process", "none"]),
    ("lock_manager", "cpu", &["near", "any", "0"]),
];

/// Keys whose values are numbers, and their limits.
const NUMBERS: [(&str, &str, u64, u64); 10] = [
    ("agent", "backup_age_ms", 0, i64::MAX as u64),
    ("agent", "commit_ms", 0, i64::MAX as u64),
    ("agent", "idle_ms", 0, i64::MAX as u64),
    ("agent", "write_wait_ms", 0, i64::MAX as u64),
    ("agent", "encoding_percent", 0, 99),
    ("agent", "depth", 1, 256),
    ("agent", "queue", 1, 65536),
    ("lock_manager", "takeover_ms", 0, i64::MAX as u64),
    ("lock_manager", "declare_ms", 1500, i64::MAX as u64),
    ("lock_manager", "fence_timeout_ms", 0, i64::MAX as u64),
];

/// Keys whose values are sizes.
const SIZES: [&str; 2] = ["backlog", "commit_bytes"];
const UNITS: [&str; 8] = ["", "B", "KB", "KiB", "MB", "MiB", " GiB", "TiB"];

impl Chosen {
    /// What is needed, and half of what is not.
    pub(super) fn choose(random: &mut Random) -> Self {
        let mut all = Self(Vec::new());
        all.text_value("", "region", "/dev/dax0.0");
        if random.one_in(3) {
            let (here, node) = (host_name(), random.below(1 << 15));
            let other = node + 1;
            let value = format!("{{ \"{here}\" = {node}, \"another host\" = {other} }}");
            let flags = vec![format!("--node={node}")];
            all.0.push(Setting { section: "", key: "nodes", value, flags });
        } else {
            all.plain("", "node", random.below(1 << 16));
        }
        for (section, key, words) in WORDS {
            if random.one_in(2) {
                let word = words[random.index(words.len()).unwrap_or(0)];
                all.text_value(section, key, word);
            }
        }
        for (section, key, least, most) in NUMBERS {
            if random.one_in(2) {
                all.plain(section, key, least + random.magnitude(most - least));
            }
        }
        for key in SIZES {
            if random.one_in(2) {
                let unit = UNITS[random.index(UNITS.len()).unwrap_or(0)];
                all.text_value("agent", key, &format!("{}{unit}", random.below(1000)));
            }
        }
        if random.one_in(2) {
            let low = 1 + random.below(99);
            all.plain("agent", "low_percent", low);
            all.plain("agent", "high_percent", low + 1 + random.below(100 - low));
        }
        if random.one_in(2) {
            all.drives(random);
        }
        for section in ["agent", "lock_manager"] {
            if random.one_in(2) {
                all.text_value(section, "metrics", "127.0.0.1:9101");
                all.flag(section, "metrics_beyond_loopback", random.one_in(2));
            }
        }
        all.flag("agent", "take_over", random.one_in(2));
        if random.one_in(2) {
            all.text_value("lock_manager", "fence_command", "/usr/local/bin/power-off");
        }
        all
    }

    fn plain(&mut self, section: &'static str, key: &'static str, number: u64) {
        let flags = vec![format!("--{}={number}", key.replace('_', "-"))];
        self.0.push(Setting { section, key, value: number.to_string(), flags });
    }

    fn text_value(&mut self, section: &'static str, key: &'static str, text: &str) {
        let flags = vec![format!("--{}={text}", key.replace('_', "-"))];
        self.0.push(Setting { section, key, value: format!("\"{text}\""), flags });
    }

    fn flag(&mut self, section: &'static str, key: &'static str, is_set: bool) {
        let flags = is_set.then(|| format!("--{}", key.replace('_', "-")));
        let flags = flags.into_iter().collect();
        self.0.push(Setting { section, key, value: is_set.to_string(), flags });
    }

    fn drives(&mut self, random: &mut Random) {
        let count = 1 + random.below(4);
        let drives: Vec<_> = (0..count)
            .map(|number| match random.below(3) {
                0 => format!("/mnt/nvme{number}/kv"),
                size => format!("/mnt/nvme{number}/kv:{size}TiB"),
            })
            .collect();
        let flags = drives.iter().map(|drive| format!("--drive={drive}")).collect();
        let value = format!("{drives:?}");
        self.0.push(Setting { section: "agent", key: "drive", value, flags });
    }

    /// The file.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for section in ["", "agent", "lock_manager"] {
            if !section.is_empty() {
                text += &format!("[{section}]\n");
            }
            for Setting { key, value, .. } in self.0.iter().filter(|it| it.section == section) {
                text += &format!("{key} = {value}\n");
            }
        }
        text
    }

    /// What `command` is told by it.
    pub(super) fn flags(&self, command: &str) -> Vec<String> {
        let section = command.replace('-', "_");
        let is_of = |it: &&Setting| it.section.is_empty() || it.section == section;
        self.0.iter().filter(is_of).flat_map(|it| it.flags.clone()).collect()
    }
}
