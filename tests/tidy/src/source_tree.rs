//! The files of the repository: those that git knows or would take in.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, str};

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl SourceFile {
    /// The part of the file name behind the last dot; empty when there is none.
    #[must_use]
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Whether it is Rust.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        self.extension() == "rs"
    }
}

/// All text files of the repository, in order of their paths.
#[derive(Clone, Debug, Default)]
pub struct SourceTree {
    /// The files.
    pub files: Vec<SourceFile>,
}

impl SourceTree {
    /// Reads the repository at `root`. Files that are not UTF-8 are data and left out.
    ///
    /// # Errors
    /// What reading a directory or file fails with.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => walked(root)?,
        };
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let bytes = match fs::read(root.join(&path)) {
                Ok(bytes) => bytes,
                // Removed, but not yet for git; or a link to a directory.
                Err(_) if !root.join(&path).is_file() => continue,
                Err(error) => return Err(error),
            };
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(SourceFile { path, text });
            }
        }
        Ok(Self { files })
    }

    /// The file at `path`, if there is one.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// A tree of these paths and texts, to show to a rule.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Self { files: files.iter().map(file).collect() }
    }
}

/// What git has, and what it would take in; `None` without git, or outside a repository.
fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let listed = str::from_utf8(&output.stdout).ok()?;
    // An unpacked copy may lie inside another repository that ignores it: git then lists nothing.
    if !output.status.success() || listed.is_empty() {
        return None;
    }
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    Some(paths.map(str::to_owned).collect())
}

/// All files below `root`, without what is built or hidden at the top.
fn walked(root: &Path) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root.join(&directory))? {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if !matches!(path.to_str(), Some("target" | ".git")) {
                    directories.push(path);
                }
            } else if let Some(path) = path.to_str() {
                paths.push(path.to_owned());
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn this_file_is_read_with_git_and_without() {
        let here = "tests/tidy/src/source_tree.rs";
        let tree = SourceTree::read(&repository()).unwrap();
        assert_eq!(tree.get(here).unwrap().text, include_str!("source_tree.rs"));
        assert!(tree.get("Cargo.toml").is_some() && tree.get("nothing").is_none());
        let walked = walked(&repository()).unwrap();
        assert!(walked.iter().any(|path| path == here));
        assert!(
            walked.iter().all(|path| !path.starts_with(".git/") && !path.starts_with("target/"))
        );
    }

    #[test]
    fn extensions_are_those_of_the_name() {
        let tree = SourceTree::of(&[("a.b/run", ""), ("a/lib.rs", ""), (".ci/steps/10-x", "")]);
        let extensions: Vec<_> = tree.files.iter().map(SourceFile::extension).collect();
        assert_eq!(extensions, ["", "rs", ""]);
        assert!(tree.files[1].is_rust());
    }
}
