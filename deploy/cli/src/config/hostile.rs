//! Whatever a file of settings has in it: the settings are good, or one error names the file and the
//! place in it. Nothing panics, hangs or takes much memory.
//!
//! The kept files in `corpus`, and files of a generator, which begins with good settings and damages
//! them. Each is read as `--check` reads it.
//!
//! A failing run prints its seed. `RACKLINE_SEED=<seed>` runs that seed alone, and
//! `RACKLINE_SEEDS=<count>` as many as that.

mod damage;
mod settings;

use std::ffi::OsString;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use cxl_shm::node::SUSPECT_MS;
use cxl_shm::verify::simulated::Random;
use kv_drive::volume::CAPACITY_BYTES_MIN;
use rackline_agent::Settings;

use super::{SHOWN_MAX, with_file};
use crate::{Command, Refused};
use damage::damaged;
use settings::Chosen;

/// Most bytes of an error.
const ERROR_BYTES_MAX: usize = 4 * SHOWN_MAX;

/// The two programs that read such files.
const COMMANDS: [&str; 2] = ["agent", "lock-manager"];

/// Reads files of settings, one after the other.
struct Reader {
    folder: tempfile::TempDir,
}

impl Reader {
    fn new() -> Self {
        Self { folder: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    /// The arguments with which `command` checks a file that has these bytes.
    fn arguments(&self, command: &str, bytes: &[u8]) -> Vec<OsString> {
        let path = self.folder.path().join("rackline.toml");
        fs::write(&path, bytes).unwrap();
        let config = format!("--config={}", path.display());
        ["rackline", command, &config, "--check"].map(OsString::from).to_vec()
    }

    /// Whether `command` takes a file with these bytes. Checks what it takes, and the error of what it
    /// refuses.
    fn takes(&self, command: &str, bytes: &[u8]) -> bool {
        let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(500)]).into_owned();
        let refused = match crate::parsed(self.arguments(command, bytes)) {
            Ok(Command::Agent(options)) => match options.checked() {
                Ok(settings) => {
                    check_agent(&settings);
                    return true;
                }
                Err(error) => crate::in_words(&error),
            },
            Ok(Command::LockManager(options)) => match options.checked() {
                Ok(options) => {
                    check_lock_manager(options);
                    return true;
                }
                Err(error) => crate::in_words(&error),
            },
            Ok(_) => panic!("another command: {}", shown()),
            Err(Refused::ByClap(error)) => panic!("no file is named: {error}\n{}", shown()),
            Err(Refused::Told(text)) => text,
        };
        let (folder, bytes) = (self.folder.path().display().to_string(), refused.len());
        assert!(refused.contains(&folder), "no file is named: {refused}\n{}", shown());
        assert!(bytes <= ERROR_BYTES_MAX, "an error of {bytes} bytes: {refused}");
        // A line of the file, a key, the flag of a key, or all of it.
        let marks = ["line ", "`", "--", "is longer than 1 MiB"];
        let has_place = marks.iter().any(|mark| refused.contains(mark));
        assert!(has_place, "no place is named: {refused}\n{}", shown());
        false
    }
}

/// The limits that the pages of the command tell.
fn check_agent(settings: &Settings) {
    let Settings { region, drives, restore, backup, .. } = settings;
    assert_can_be_opened(region);
    for drive in drives {
        assert_can_be_opened(&drive.path);
        assert!(drive.capacity_bytes.is_none_or(|bytes| bytes >= CAPACITY_BYTES_MIN));
    }
    let mut paths: Vec<_> = drives.iter().map(|drive| &drive.path).collect();
    paths.sort();
    assert!(paths.windows(2).all(|pair| pair[0] != pair[1]), "a folder is there twice");
    assert!((1..=256).contains(&restore.depth) && restore.depth == backup.schedule.depth);
    assert!((1..=65536).contains(&restore.queue_max));
    assert!(backup.encoding.least_saving_percent <= 99);
    assert!(backup.watermarks.is_above(101, 100), "a high watermark of more than 100 percent");
}

fn check_lock_manager(options: &lock_manager::Options) {
    assert_can_be_opened(&options.region);
    assert!(options.declare_ms >= SUSPECT_MS);
    let by_program = options.fence == lock_manager::FencingMethod::Command;
    assert!(!by_program || options.fence_command.is_some());
    options.fence_command.iter().for_each(|program| assert_can_be_opened(program));
}

fn assert_can_be_opened(path: &Path) {
    let name = path.as_os_str().as_encoded_bytes();
    assert!(!name.is_empty() && !name.contains(&0), "no path: {}", path.display());
}

/// Runs `one` for the first `count` seeds, or those that the environment asks for.
#[expect(clippy::print_stderr, reason = "a test that fails says for which seed")]
fn for_seeds(count: u64, one: impl Fn(u64)) {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
    };
    let seeds = match number("RACKLINE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RACKLINE_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| one(seed))) {
            eprintln!("failed with RACKLINE_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn good_settings_are_taken_with_all_their_values() {
    let reader = Reader::new();
    for_seeds(200, |seed| {
        let mut random = Random::new(seed);
        let chosen = Chosen::choose(&mut random);
        for command in COMMANDS {
            let bytes = chosen.text().into_bytes();
            let expanded = with_file(reader.arguments(command, &bytes)).unwrap();
            let flags = expanded.arguments.into_iter().map(|flag| flag.into_string().unwrap());
            let is_of_file = |flag: &String| {
                flag.starts_with("--") && flag != "--check" && !flag.starts_with("--config=")
            };
            let mut flags: Vec<_> = flags.filter(is_of_file).collect();
            let mut expected = chosen.flags(command);
            flags.sort();
            expected.sort();
            assert_eq!(flags, expected, "{}", chosen.text());
            assert!(reader.takes(command, &bytes), "{}", chosen.text());
        }
    });
}

#[test]
fn damaged_settings_are_good_ones_or_one_clear_error() {
    let reader = Reader::new();
    let taken = std::cell::Cell::new(0);
    for_seeds(3000, |seed| {
        let mut random = Random::new(seed);
        let text = Chosen::choose(&mut random).text();
        let bytes = damaged(&mut random, &text);
        let command = COMMANDS[usize::from(random.one_in(2))];
        taken.set(taken.get() + u64::from(reader.takes(command, &bytes)));
    });
    // Some of the damage harms nothing, so the limits are checked, too.
    let one = std::env::var_os("RACKLINE_SEED").is_some();
    assert!(one || taken.get() > 100, "{} were taken", taken.get());
}

/// The name of a kept file says which command refuses it.
#[test]
fn kept_settings_are_good_ones_or_one_clear_error() {
    let (reader, mut files) = (Reader::new(), 0);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/corpus");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let bytes = fs::read(&path).unwrap();
        for command in COMMANDS {
            let refused_by = [format!("bad-{command}-"), "bad-both-".to_owned()];
            let is_bad = refused_by.iter().any(|begin| name.starts_with(begin));
            assert_eq!(reader.takes(command, &bytes), !is_bad, "{name}, {command}");
        }
        files += 1;
    }
    assert!(files > 30, "{files} files");
}

/// Files as large as may be, and errors whose places lie at their ends.
#[test]
fn large_files_are_read_in_order() {
    let reader = Reader::new();
    let begin = "node = 1\nregion = \"pool\"\n";
    let many = |one: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        for number in 0.. {
            let next = one(number);
            if begin.len() + text.len() + next.len() > (1 << 20) - 100 {
                return text;
            }
            text += &next;
        }
        text
    };
    let drives = many(&|number| format!("\"/mnt/{number}\","));
    let same = many(&|_| "\"/mnt/a\",".to_owned());
    let nodes = many(&|number| format!("host{number} = 1\n"));
    let flags = many(&|number| format!("key{number} = 1\n"));
    for (text, is_good) in [
        (format!("{begin}[agent]\ndrive = [{drives}]"), true),
        (format!("{begin}[agent]\ndrive = [{same}]"), false),
        (format!("region = \"pool\"\n[nodes]\n{nodes}"), false),
        (format!("{begin}[agent]\n{flags}"), false),
        (format!("{begin}[agent]\ndrive = {}", "[".repeat(1 << 19)), false),
        (format!("{begin}a{} = 1", ".a".repeat(1 << 18)), false),
        (format!("{begin}{}", "#".repeat(1 << 19)), true),
        (format!("\u{feff}{begin}{}", "# \u{1f41f}\n".repeat(1 << 16)), true),
        (format!("{begin}{}", "\n".repeat(1 << 20)), false),
    ] {
        assert_eq!(
            reader.takes("agent", text.as_bytes()),
            is_good,
            "{}",
            text.lines().next().unwrap()
        );
    }
}
