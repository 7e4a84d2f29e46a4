//! A file with the settings of a lock manager and of an agent: `--config FILE`.
//!
//! A key is the name of a flag, with `_` for `-`. So the file is turned into flags, which are read
//! and checked as if an operator had typed them. A flag that the operator did type replaces the
//! one in the file.

mod file;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use file::File;

/// Where settings come from.
#[derive(Args, Debug)]
pub(crate) struct FileOptions {
    /// A TOML file with the settings of this host. Flags replace what it says, and it replaces
    /// what variables of the environment say. Unknown keys are refused.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the flags and the file, say what is wrong with them, and do nothing else.
    #[arg(long)]
    pub(crate) check: bool,
}

impl FileOptions {
    /// What was checked, in words.
    pub(crate) fn checked(&self) -> String {
        match &self.config {
            Some(file) => format!("the settings in {} and the flags are good", file.display()),
            None => "the flags are good".to_owned(),
        }
    }
}

/// The commands whose settings a file may have, and their sections.
const SECTIONS: [(&str, &str); 2] = [("agent", "agent"), ("lock-manager", "lock_manager")];
const CONFIG: &str = "--config";
const NODE: &str = "--node";
/// The name of this host in the file. Containers have names of their own.
const HOST: &str = "RACKLINE_HOST";

fn host_name() -> String {
    let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    std::env::var(HOST).unwrap_or_else(|_| name())
}

/// The arguments of the program, with those of the file behind the name of the command.
///
/// # Errors
/// The file cannot be read, or has keys or values that no settings are.
pub(crate) fn with_file(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let command = arguments.get(1).cloned().unwrap_or_default();
    let Some((_, section)) = SECTIONS.iter().find(|(name, _)| *name == command.as_os_str()) else {
        return Ok(arguments);
    };
    let Some(path) = value_of(&arguments, CONFIG) else { return Ok(arguments) };
    let path = PathBuf::from(path);
    let mut file = read(&path)?;
    if !is_given(&arguments, NODE) {
        file.choose_node(&host_name()).with_context(|| path.display().to_string())?;
    }
    let settings = file.settings(section);
    let mut expanded: Vec<_> = arguments[..2].to_vec();
    for (key, values) in settings {
        let flag = format!("--{}", key.replace('_', "-"));
        // Typed flags win.
        if !is_given(&arguments, &flag) {
            let with_value = |value: &Option<String>| match value {
                Some(value) => OsString::from(format!("{flag}={value}")),
                None => OsString::from(&flag),
            };
            expanded.extend(values.iter().map(with_value));
        }
    }
    expanded.extend_from_slice(&arguments[2..]);
    Ok(expanded)
}

fn read(path: &Path) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the settings in {}", path.display()))?;
    match File::parse(&text) {
        Ok(file) => Ok(file),
        Err(error) => bail!("{}: {error}", path.display()),
    }
}

fn is_given(arguments: &[OsString], flag: &str) -> bool {
    arguments.iter().any(|it| it == flag || with_value(it, flag).is_some())
}

/// The value of the last such flag.
fn value_of(arguments: &[OsString], flag: &str) -> Option<OsString> {
    let each = arguments.iter().enumerate().rev();
    each.filter_map(
        |(at, it)| {
            if it == flag { arguments.get(at + 1).cloned() } else { with_value(it, flag) }
        },
    )
    .next()
}

/// What follows `flag=` in an argument.
fn with_value(argument: &OsStr, flag: &str) -> Option<OsString> {
    let rest = argument.to_str()?.strip_prefix(flag)?.strip_prefix('=')?;
    Some(rest.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(file: &str, typed: &[&str]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rackline.toml");
        std::fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let arguments = ["rackline"].iter().chain(typed).copied().chain([config.as_str()]);
        let expanded = with_file(arguments.map(OsString::from).collect())?;
        let texts = expanded.into_iter().map(|it| it.into_string().unwrap());
        Ok(texts.filter(|it| !it.starts_with(CONFIG)).collect())
    }

    const FILE: &str = "\
        region = \"/dev/dax0.0\"\n\
        node = 3\n\
        [agent]\n\
        drive = [\"/mnt/a:1GiB\", \"/mnt/b\"]\n\
        backup_age_ms = 500\n\
        idle_ms = 5\n\
        write_wait_ms = 900\n\
        take_over = false\n\
        [lock_manager]\n\
        declare_ms = 4000\n";

    #[test]
    fn each_command_has_its_section_and_what_is_common() {
        let agent = expand(FILE, &["agent"]).unwrap();
        let mut flags = agent[2..].to_vec();
        flags.sort();
        let expected = [
            "--backup-age-ms=500",
            "--drive=/mnt/a:1GiB",
            "--drive=/mnt/b",
            "--idle-ms=5",
            "--node=3",
            "--region=/dev/dax0.0",
            "--write-wait-ms=900",
        ];
        assert_eq!(flags, expected);
        let manager = expand(FILE, &["lock-manager", "--takeover-ms", "9"]).unwrap();
        assert!(manager.contains(&"--declare-ms=4000".to_owned()), "{manager:?}");
        assert!(!manager.iter().any(|it| it.starts_with("--drive")), "{manager:?}");
        assert_eq!(expand(FILE, &["status"]).unwrap(), ["rackline", "status"]);
    }

    #[test]
    fn a_typed_flag_replaces_all_values_of_the_file() {
        let typed = ["agent", "--drive", "/mnt/c", "--node=7"];
        let flags = expand(FILE, &typed).unwrap();
        assert!(
            !flags.iter().any(|it| it.contains("/mnt/a") || it.contains("--node=3")),
            "{flags:?}"
        );
    }

    #[test]
    fn keys_that_are_true_are_flags_without_a_value() {
        let file = "[agent]\ntake_over = true\nmetrics_beyond_loopback = false";
        assert_eq!(expand(file, &["agent"]).unwrap()[2..], ["--take-over"]);
    }

    #[test]
    fn one_file_has_the_numbers_of_all_hosts() {
        let file = format!("[nodes]\n\"{}\" = 5\nrack1-b = 1\n", host_name());
        assert_eq!(expand(&file, &["agent"]).unwrap()[2..], ["--node=5"]);
        assert_eq!(expand(&file, &["agent", "--node", "7"]).unwrap()[2..], ["--node", "7"]);
        for (file, word) in [
            ("[nodes]\nrack1-b = 1", "no number for this host"),
            ("node = 3\n[nodes]\nrack1-b = 1", "both `node` and `nodes`"),
            ("[nodes]\nrack1-a = 1\nrack1-b = 1", "rack1-a and rack1-b one number"),
            ("[nodes]\nrack1-a = \"one\"", "line 2"),
        ] {
            let error = crate::in_words(&expand(file, &["agent"]).unwrap_err());
            assert!(error.contains(word) && error.contains("rackline.toml"), "{file}: {error}");
        }
    }

    #[test]
    fn what_no_settings_are_is_refused_by_name() {
        for (file, word) in [
            ("regions = \"x\"", "regions"),
            ("[agent]\nbackup_age = 3", "backup_age"),
            ("[lock_manager]\ndeclare_ms = \"soon\"", "declare_ms"),
            ("[metrics]\nport = 1", "metrics"),
            ("node = ", "line 1"),
        ] {
            let error = expand(file, &["agent"]).unwrap_err().to_string();
            assert!(error.contains(word), "{file}: {error}");
            assert!(error.contains("rackline.toml"), "{error}");
        }
        let missing = with_file(["rackline", "agent", CONFIG, "none"].map(OsString::from).to_vec());
        assert!(missing.unwrap_err().to_string().contains("none"));
    }
}
