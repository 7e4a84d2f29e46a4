//! A program that ships contains no test machinery, and a library that engines load no JSON.
//!
//! Cargo is asked for what it would build of each package alone, without dependencies of tests.

use std::path::Path;
use std::process::Command;

use super::violation::Violation;

/// Packages of this repository that are for its developers. All others ship.
const FOR_DEVELOPERS: &[&str] = &["rackline-tests", "rackline-benches", "rackline-compare", "tidy"];

/// Packages that are loaded into an engine's process.
const IN_ENGINES: &[&str] =
    &["cxl-shm", "cxl-shm-objects", "kv-cache", "rackline", "rackline-capi", "rackline-python"];

/// Packages that do without objects, as the cache does.
const WITHOUT_OBJECTS: &[&str] = &["cxl-shm", "kv-cache", "rackline", "rackline-python"];

/// The package that has objects.
const OBJECTS: &str = "cxl-shm-objects";

/// Features of our packages that are for tests alone.
const FEATURES_OF_TESTS: &[&str] = &["sim", "verify", "crash-points"];

/// Packages of others that are for tests alone.
const TOOLS_OF_TESTS: &[&str] = &["criterion", "generator", "loom", "proptest", "shuttle"];

/// What an engine's process is spared: what reads and writes JSON, options and configurations.
const TOOLS_OF_PROGRAMS: &[&str] = &["clap", "serde", "serde_json", "tracing-subscriber"];

/// A package that is built, with its features.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Built<'a> {
    name: &'a str,
    /// Whether it is one of this repository.
    ours: bool,
    features: Vec<&'a str>,
}

impl<'a> Built<'a> {
    /// From a line of [`built_with`].
    fn read(line: &'a str) -> Option<Self> {
        let (package, features) = line.trim_end_matches(" (*)").split_once('|')?;
        let (name, rest) = package.split_once(' ')?;
        let features = features.split(',').filter(|feature| !feature.is_empty()).collect();
        Some(Self { name, ours: rest.contains(" (/"), features })
    }
}

/// Whether `package` ships.
#[must_use]
pub fn ships(package: &str) -> bool {
    !FOR_DEVELOPERS.contains(&package)
}

/// All that Cargo builds of `package` in the workspace at `root`: a line each, which [`check`]
/// reads.
///
/// # Errors
/// When Cargo does not start, or says why not.
pub fn built_with(root: &Path, package: &str) -> Result<String, String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}|{f}", "--package", package])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What of `built`, the lines of [`built_with`], does not belong into `package`.
#[must_use]
pub fn check(package: &str, built: &str) -> Vec<Violation> {
    let mut messages = Vec::new();
    for built in built.lines().filter_map(Built::read) {
        let name = built.name;
        for feature in FEATURES_OF_TESTS.iter().filter(|it| built.features.contains(it)) {
            if built.ours {
                messages.push(format!(
                    "is built with the feature \"{feature}\" of \"{name}\": turn it on under \
                     [dev-dependencies] only"
                ));
            }
        }
        if TOOLS_OF_TESTS.contains(&name) {
            messages.push(format!(
                "is built with \"{name}\": that is for tests, make it a dependency of tests or of \
                 a feature that is off"
            ));
        }
        if WITHOUT_OBJECTS.contains(&package) && name == OBJECTS {
            messages.push(format!("is built with \"{OBJECTS}\": the cache does without objects"));
        }
        if IN_ENGINES.contains(&package) && TOOLS_OF_PROGRAMS.contains(&name) {
            messages.push(format!(
                "is built with \"{name}\", and loaded into engines: move what needs it into a \
                 program"
            ));
        }
    }
    messages.sort();
    messages.dedup();
    messages.into_iter().map(|message| Violation::of_file(package, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(package: &str, built: &str) -> Vec<String> {
        check(package, built).into_iter().map(|found| found.message).collect()
    }

    const CLEAN: &str = "\
rackline-capi v0.1.0 (/src/connector/capi)|
cxl-shm v0.1.0 (/src/cxl-shm)|
libc v0.2.191|default,std
cxl-shm v0.1.0 (/src/cxl-shm)| (*)
";

    #[test]
    fn what_is_clean_passes() {
        assert_eq!(messages("rackline-capi", CLEAN), [""; 0]);
        // The feature of another's package that happens to have the name.
        let others = format!("{CLEAN}libc v0.2.191|default,sim\n");
        assert_eq!(messages("rackline-capi", &others), [""; 0]);
    }

    #[test]
    fn features_of_tests_are_found_once() {
        for feature in FEATURES_OF_TESTS {
            let built = format!("{CLEAN}kv-cache v0.1.0 (/src/kv-cache)|default,{feature}\n");
            let twice = format!("{built}kv-cache v0.1.0 (/src/kv-cache)|default,{feature} (*)\n");
            let found = messages("rackline-cli", &twice);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(feature), "{found:?}");
        }
    }

    #[test]
    fn objects_are_found_in_the_cache() {
        let objects = format!("{CLEAN}cxl-shm-objects v0.1.0 (/src/cxl-shm/objects)|\n");
        assert_eq!(messages("rackline-capi", &objects), [""; 0]);
        for package in WITHOUT_OBJECTS {
            assert_eq!(messages(package, &objects).len(), 1, "{package}");
        }
    }

    #[test]
    fn tools_of_tests_are_found_and_json_in_engines() {
        let generator = format!("{CLEAN}generator v0.8.11|default\n");
        assert_eq!(messages("rackline-cli", &generator).len(), 1);
        let json = format!("{CLEAN}serde v1.0.229|default,std\nserde_json v1.0.154|std\n");
        assert_eq!(messages("rackline-python", &json).len(), 2);
        assert_eq!(messages("rackline-cli", &json), [""; 0]);
    }
}
