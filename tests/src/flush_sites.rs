//! Every place of the sources that flushes, refreshes or fences, whether anything reaches it or
//! not.
//!
//! The mutation suite removes what its scenarios execute. This module reads the sources, so that
//! the suite can tell what it did not execute.
//!
//! The sources are read as text, laid out by `rustfmt`. A place is a call of a function that
//! carries `#[track_caller]`, as all that flush and fence do: the rack names a flush after such a
//! call. Left out are the bodies of these functions themselves, tests, and what only the feature
//! `verify` compiles.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::mutation::SiteText;

/// What has `#[track_caller]` and neither flushes nor fences.
const OTHERS: [&str; 4] = ["store", "write_line", "write", "cached"];
/// The line below flushes one of two lines when it finds the other torn. Other types have a
/// `cached` which does not, so this one is told by the name of what it is called on.
const DOUBLE_BUFFER: &str = "double_buffer(";
/// Sources that run on no simulated rack: the memories themselves, models, and what measures
/// hardware.
const APART: [&str; 3] =
    ["cxl-shm/src/fabric/", "cxl-shm/src/node/carried.rs", "cxl-shm/src/verify/"];

/// The sources of the protocols between hosts, but for those that are apart.
const FOLDERS: [&str; 3] = ["cxl-shm/src/", "cxl-shm/objects/src/", "lock-manager/src/"];

/// Whether `file`, from the root of the workspace, is a source whose places are looked for.
#[must_use]
pub fn is_scanned(file: &str) -> bool {
    FOLDERS.iter().any(|folder| file.starts_with(folder))
        && !APART.iter().any(|apart| file.starts_with(apart))
}

/// A place in the sources.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Source file, from the root of the workspace.
    pub file: String,
    /// Line in the file, from 1.
    pub line: u32,
    /// What is called there.
    pub call: String,
}

impl Place {
    /// As a list of places names it; the file is below `root`.
    #[must_use]
    pub fn text(&self, root: &Path) -> SiteText {
        SiteText::at(root, &self.file, self.line, &self.call)
    }
}

/// All places in the sources of the workspace at `root`.
///
/// # Errors
/// When a source cannot be read.
pub fn scan(root: &Path) -> io::Result<BTreeSet<Place>> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files)?;
    }
    let mut sources = Vec::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        sources.push((name, std::fs::read_to_string(&path)?));
    }
    let tracked: BTreeSet<Tracked> =
        sources.iter().flat_map(|(_, text)| tracked_functions(text)).collect();
    let mut places = BTreeSet::new();
    for (file, text) in &sources {
        let is_test = file.contains("/tests") || file.ends_with("_tests.rs");
        if is_test || !is_scanned(file) {
            continue;
        }
        for (line, call) in calls(text, &tracked) {
            places.insert(Place { file: file.clone(), line, call });
        }
    }
    Ok(places)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// A function that flushes or fences in the name of its callers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Tracked {
    name: String,
    /// Whether it is no method.
    free: bool,
}

/// Those of `text`.
fn tracked_functions(text: &str) -> Vec<Tracked> {
    let mut names = Vec::new();
    let mut tracked = false;
    for line in text.lines() {
        if line.trim() == "#[track_caller]" {
            tracked = true;
        } else if let Some((_, name)) = line.split_once("fn ").filter(|_| tracked) {
            let name: String = name.chars().take_while(|c| is_part_of_name(*c)).collect();
            names.push(Tracked { name, free: !line.starts_with(' ') });
            tracked = false;
        }
    }
    names.retain(|tracked| !OTHERS.contains(&tracked.name.as_str()));
    names
}

/// The lines of `text`, from 1, that call one of `tracked`, and what they call.
fn calls(text: &str, tracked: &BTreeSet<Tracked>) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let mut skipping: Option<Skip> = None;
    for (line, number) in text.lines().zip(1..) {
        let code = line.split("//").next().unwrap_or_default();
        if let Some(skip) = &mut skipping {
            if skip.ends_at(line) {
                skipping = None;
            }
            continue;
        }
        if ["#[cfg(test)]", "#[cfg(feature = \"", "#[track_caller]"]
            .iter()
            .any(|start| code.trim_start().starts_with(start))
        {
            let indentation = line.len() - line.trim_start().len();
            skipping = Some(Skip { indentation, begun: false });
            continue;
        }
        let called = tracked.iter().filter(|tracked| is_called(code, tracked));
        found.extend(called.map(|tracked| (number, tracked.name.clone())));
        if code.contains(DOUBLE_BUFFER) && code.contains(".cached(") {
            found.push((number, "cached".to_owned()));
        }
    }
    found
}

/// An item that is left out, behind its attribute.
struct Skip {
    indentation: usize,
    /// Whether its first line was there.
    begun: bool,
}

impl Skip {
    fn ends_at(&mut self, line: &str) -> bool {
        let trimmed = line.trim();
        if !self.begun && (trimmed.starts_with("#[") || trimmed.starts_with("//")) {
            return false;
        }
        let first = !self.begun;
        self.begun = true;
        let indentation = line.len() - line.trim_start().len();
        let same = indentation == self.indentation;
        // An item without a body, one on one line, or the end of a body.
        same && (first
            && (trimmed.ends_with(';') || trimmed.ends_with('}') || trimmed.ends_with(','))
            || !first && trimmed.starts_with('}'))
    }
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `code` calls the tracked function or method. Modules have functions of the same names,
/// and types too, which are not `#[track_caller]`: a method of a memory or a line is called on
/// something that has a name, and not on `self`.
fn is_called(code: &str, Tracked { name, free }: &Tracked) -> bool {
    code.match_indices(name.as_str()).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let whole = !before.ends_with(is_part_of_name) && after.starts_with('(');
        let method =
            before.ends_with('.') && (!before.ends_with("self.") || name == "publish_usage");
        let declared = before.ends_with("fn ");
        whole && !declared && (*free && !before.ends_with('.') || method)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
#[track_caller]
pub(super) fn publish_in_parts<F: Fabric>(
    fabric: &F,
) {
    fabric.publish(lines);
}

fn others(fabric: &impl Fabric) {
    // fabric.publish(lines);
    fabric.publish(lines);
    line.republish(fabric, publish);
    self.publish(member);
    let marks = Marks::publish(fabric);
    publish(node_handle, fabric);
    super::flush::publish_in_parts(
        fabric,
    );
    let record = double_buffer(node).cached(fabric);
    let line = line.cached(fabric);
}

#[cfg(feature = "verify")]
use other::publish;

#[cfg(test)]
mod tests {
    fn test() {
        fabric.publish(lines);
    }
}

fn last() {
    batch.publish();
}
"#;

    #[test]
    fn calls_are_found_where_they_are_made() {
        let mut tracked: BTreeSet<Tracked> = tracked_functions(SOURCE).into_iter().collect();
        let of_its_own = Tracked { name: "publish_in_parts".to_owned(), free: true };
        assert_eq!(tracked, BTreeSet::from([of_its_own]));
        tracked.insert(Tracked { name: "publish".to_owned(), free: false });
        let found: Vec<(u32, String)> = calls(SOURCE, &tracked);
        let found: Vec<_> = found.iter().map(|(line, call)| (*line, call.as_str())).collect();
        let expected = [(11, "publish"), (16, "publish_in_parts"), (19, "cached"), (34, "publish")];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_sources_have_them_by_the_hundred() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let places = scan(root).unwrap();
        assert!(places.len() > 100, "{} places", places.len());
        let calls: BTreeSet<&str> = places.iter().map(|place| place.call.as_str()).collect();
        for call in ["publish", "fresh", "refresh", "refresh_all", "publish_all", "fence"] {
            assert!(calls.contains(call), "no {call} in {calls:?}");
        }
    }
}
