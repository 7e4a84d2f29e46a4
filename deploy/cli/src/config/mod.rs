//! A file with the settings of a lock manager and of an agent: `--config FILE`.
//!
//! A key is the name of a flag, with `_` for `-`. So the file is turned into flags, which are read
//! and checked as if an operator had typed them. A flag that the operator did type replaces the
//! one in the file.

mod file;
#[cfg(test)]
mod hostile;

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};

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

    /// Names the file in the error of a check of all settings together.
    pub(crate) fn named<T>(&self, checked: Result<T>) -> Result<T> {
        match &self.config {
            Some(file) => checked.with_context(|| format!("{}, with the flags", file.display())),
            None => checked,
        }
    }
}

/// The commands whose settings a file may have, and their sections.
const SECTIONS: [(&str, &str); 2] = [("agent", "agent"), ("lock-manager", "lock_manager")];
const CONFIG: &str = "--config";
const NODE: &str = "--node";
/// The name of this host in the file. Containers have names of their own.
const HOST: &str = "RACKLINE_HOST";
/// Most bytes of a file with settings.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most characters of a file and of its values that an error shows.
const SHOWN_MAX: usize = 1000;

fn host_name() -> String {
    let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    std::env::var(HOST).unwrap_or_else(|_| name())
}

/// The arguments of a program, with those of a file behind the name of the command.
#[derive(Debug)]
pub(crate) struct Expanded {
    /// All of them.
    pub(crate) arguments: Vec<OsString>,
    file: Option<FromFile>,
}

/// What a file gave.
#[derive(Debug)]
struct FromFile {
    path: PathBuf,
    keys: Vec<String>,
}

impl Expanded {
    /// The error of a flag in terms of the file, where the flag is the file's, or is missing in it.
    pub(crate) fn explained(&self, error: &clap::Error) -> Option<String> {
        let FromFile { path, keys } = self.file.as_ref()?;
        let what = in_short(&in_one_line(&error.to_string()));
        if error.kind() == ErrorKind::MissingRequiredArgument {
            return Some(format!("{}, with the flags: {what}", path.display()));
        }
        let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
            return None;
        };
        let key = keys.iter().find(|key| flag.split(' ').next() == Some(&flag_of(key)))?;
        Some(format!("{}: `{key}`: {what}", path.display()))
    }
}

/// Puts the arguments of the file that they name into the arguments of the program.
///
/// # Errors
/// The file cannot be read, or has keys or values that no settings are.
pub(crate) fn with_file(arguments: Vec<OsString>) -> Result<Expanded> {
    let command = arguments.get(1).cloned().unwrap_or_default();
    let section = SECTIONS.iter().find(|(name, _)| *name == command.as_os_str());
    let (Some((_, section)), Some(path)) = (section, value_of(&arguments, CONFIG)) else {
        return Ok(Expanded { arguments, file: None });
    };
    let path = PathBuf::from(path);
    let mut file = read(&path)?;
    if !is_given(&arguments, NODE) {
        file.choose_node(&host_name()).with_context(|| path.display().to_string())?;
    }
    let (mut expanded, mut keys) = (arguments[..2].to_vec(), Vec::new());
    for (key, values) in file.settings(section) {
        let flag = flag_of(&key);
        // Typed flags win.
        if is_given(&arguments, &flag) {
            continue;
        }
        if values.iter().flatten().any(|value| value.contains('\0')) {
            bail!("{}: `{key}` has a character of number 0: remove it", path.display());
        }
        let with_value = |value: &Option<String>| match value {
            Some(value) => OsString::from(format!("{flag}={value}")),
            None => OsString::from(&flag),
        };
        expanded.extend(values.iter().map(with_value));
        keys.push(key);
    }
    expanded.extend_from_slice(&arguments[2..]);
    Ok(Expanded { arguments: expanded, file: Some(FromFile { path, keys }) })
}

/// The flag that a key stands for.
fn flag_of(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

fn read(path: &Path) -> Result<File> {
    let unread = || format!("cannot read the settings in {}", path.display());
    let file = std::fs::File::open(path).with_context(unread)?;
    let mut bytes = Vec::new();
    // What is no file may have no end.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(unread)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        bail!("{} is longer than 1 MiB: it is no file with settings", path.display());
    }
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|it| **it == b'\n').count();
            bail!("{}: line {line} is not UTF-8: {error}", path.display());
        }
    };
    match File::parse(text) {
        Ok(file) => Ok(file),
        Err(error) => {
            let shown = error.to_string();
            if error.span().is_some() && shown.chars().count() <= SHOWN_MAX {
                bail!("{}: {shown}", path.display());
            }
            // A line that nobody reads, or an error without a place.
            let line = line_of(text, &error);
            bail!("{}: line {line}: {}", path.display(), in_short(error.message()));
        }
    }
}

/// The line of an error.
fn line_of(text: &str, error: &toml::de::Error) -> usize {
    if let Some(before) = error.span().and_then(|place| text.get(..place.start)) {
        return 1 + before.matches('\n').count();
    }
    // The last line that is needed for an error without a place.
    let ends = text.match_indices('\n').map(|(end, _)| end).chain([text.len()]);
    let ends: Vec<_> = ends.collect();
    let has_place =
        |end: &usize| File::parse(&text[..*end]).err().is_none_or(|it| it.span().is_some());
    1 + ends.partition_point(has_place)
}

/// What clap says, without how the program is used.
fn in_one_line(error: &str) -> String {
    let lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines.take_while(|it| !it.starts_with("Usage:") && !it.starts_with("For more"));
    let text = lines.collect::<Vec<_>>().join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

/// The begin of a text.
fn in_short(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
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
        let texts = expanded.arguments.into_iter().map(|it| it.into_string().unwrap());
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

    /// Why the whole command line is refused whose file has these bytes.
    fn refused(file: impl AsRef<[u8]>, command: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rackline.toml");
        std::fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let arguments = ["rackline", command, "--region=pool", &config, "--check"];
        let text = match crate::parsed(arguments.map(OsString::from).to_vec()) {
            Ok(crate::Command::Agent(options)) => {
                crate::in_words(&options.checked().expect_err("good settings"))
            }
            Ok(_) => panic!("good settings"),
            Err(crate::Refused::Told(text)) => text,
            Err(crate::Refused::ByClap(error)) => panic!("the file is not named: {error}"),
        };
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        text
    }

    #[test]
    fn a_value_out_of_range_is_told_with_file_and_key() {
        for (file, command, word) in [
            ("node = 1\n[agent]\ndepth = 300", "agent", "`depth`: invalid value '300'"),
            ("node = 1\n[agent]\nio = \"fast\"", "agent", "[possible values: uring, posix]"),
            ("node = 1\n[agent]\nbacklog = \"-1GiB\"", "agent", "`backlog`: invalid value"),
            ("node = 1\n[agent]\nmetrics = \"here\"", "agent", "`metrics`: invalid value 'here'"),
            ("log_format = \"xml\"\nnode = 1", "agent", "`log_format`: invalid value"),
            ("region = \"x\"", "agent", "with the flags: the following required arguments"),
            ("node = 1\n[lock_manager]\ndeclare_ms = 2", "lock-manager", "`declare_ms`: invalid"),
            (
                "node = 1\n[lock_manager]\nfence = \"command\"",
                "lock-manager",
                "with the flags: the following required arguments were not provided: --fence-command",
            ),
            (
                "node = 1\n[agent]\nhigh_percent = 80",
                "agent",
                "with the flags: --high-percent and --low-percent",
            ),
            ("node = 1\n[agent]\nmetrics = \"0.0.0.0:1\"", "agent", "with the flags: --metrics"),
        ] {
            let text = refused(file, command);
            assert!(text.contains(word), "{file}: {text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }

    #[test]
    fn what_no_path_can_be_is_refused_by_its_key() {
        let text = refused("node = 1\n[agent]\ndrive = [\"/mnt/a\\u0000b\"]", "agent");
        assert!(text.contains("`drive` has a character of number 0"), "{text}");
    }

    #[test]
    fn bytes_that_are_no_text_are_told_with_their_line() {
        let text = refused(b"node = 1\n[agent]\nio = \"\xff\"\n", "agent");
        assert!(text.contains("line 3 is not UTF-8"), "{text}");
    }

    #[test]
    fn an_error_shows_no_more_of_a_long_line_than_people_read() {
        let long = "x".repeat(100_000);
        for (file, word) in [
            (format!("node = 1\n{long} = 3"), "line 2: unknown field"),
            (format!("node = 1\n[agent]\nio = \"{long}\""), "`io`: invalid value"),
            (format!("node = 1\n# comment\nregion = {long}"), "line 3: "),
            (
                format!("node = 1\n\nregion = 1\na{} = 1\nio = 3", ".a".repeat(100)),
                "line 4: recursion",
            ),
        ] {
            let text = refused(file, "agent");
            assert!(text.contains(word) && text.len() < 2 * SHOWN_MAX, "{text}");
        }
    }

    #[test]
    fn what_has_no_end_is_read_no_further_than_settings_go() {
        let endless = ["rackline", "agent", "--config=/dev/zero"].map(OsString::from);
        let error = with_file(endless.to_vec()).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero is longer than 1 MiB: it is no file with settings");
    }
}
