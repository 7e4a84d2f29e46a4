//! Dependencies run downward, and every package keeps the lints.

use super::packages::Package;
use super::source_tree::SourceTree;
use super::violation::Violation;

/// Each package and those of ours that it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("cxl-shm", &[]),
    ("cxl-shm-objects", &["cxl-shm"]),
    ("kv-cache", &["cxl-shm"]),
    ("kv-drive", &["cxl-shm", "kv-cache"]),
    ("rackline", &["cxl-shm", "kv-cache"]),
    ("rackline-metrics", &[]),
    ("rackline-agent", &["rackline", "rackline-metrics", "cxl-shm", "kv-cache", "kv-drive"]),
    ("rackline-capi", &["rackline", "cxl-shm", "cxl-shm-objects", "kv-cache"]),
    ("rackline-gpu-check", &["rackline", "cxl-shm", "kv-cache"]),
    ("rackline-python", &["rackline"]),
    ("lock-manager", &["cxl-shm", "cxl-shm-objects", "kv-cache"]),
    ("rackline-qualify", &["cxl-shm"]),
    ("rackline-replay", &["kv-cache", "kv-drive"]),
    ("rackline-serving", &["rackline-replay", "kv-drive"]),
    ("rackline-simulate", &["kv-cache"]),
    ("rackline-workers", &["cxl-shm"]),
    ("demo", &["rackline", "cxl-shm", "kv-cache"]),
    (
        "rackline-cli",
        &[
            "rackline",
            "rackline-agent",
            "rackline-metrics",
            "rackline-qualify",
            "rackline-replay",
            "rackline-serving",
            "rackline-simulate",
            "rackline-workers",
            "cxl-shm",
            "demo",
            "kv-cache",
            "kv-drive",
            "lock-manager",
        ],
    ),
    (
        "rackline-benches",
        &[
            "rackline-agent",
            "rackline",
            "cxl-shm",
            "cxl-shm-objects",
            "kv-cache",
            "kv-drive",
            "lock-manager",
        ],
    ),
    ("rackline-compare", &["rackline", "cxl-shm", "rackline-benches", "rackline-workers"]),
    (
        "rackline-tests",
        &[
            "rackline",
            "rackline-agent",
            "rackline-qualify",
            "rackline-workers",
            "cxl-shm",
            "cxl-shm-objects",
            "demo",
            "kv-cache",
            "kv-drive",
            "lock-manager",
            "rackline-cli",
        ],
    ),
    ("tidy", &[]),
];

/// The one package that may use the tensor library: it takes minutes to build.
const USES_TENSORS: &str = "demo";
const TENSOR_LIBRARY: &str = "candle";

/// Packages that use what is above them, are in no layer, or leave the lints out.
#[must_use]
pub fn check(tree: &SourceTree, packages: &[Package]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for Package { name, manifest, dependencies, .. } in packages {
        let package = name.as_str();
        let mut found = |message| violations.push(Violation::of_file(manifest, message));
        // Cargo does not tell of lints.
        let text = tree.get(manifest).map_or("", |file| &file.text);
        if !text.contains("\n[lints]\nworkspace = true\n") {
            found("add `workspace = true` under `[lints]`".to_owned());
        }
        let Some((_, may_use)) = LAYERS.iter().find(|(name, _)| *name == package) else {
            found(format!("\"{package}\" has no layer: add it in tests/tidy/src/dependencies.rs"));
            continue;
        };
        for used in dependencies {
            let ours = LAYERS.iter().any(|(name, _)| name == used);
            // Itself, with features for its own tests.
            let itself = used == package;
            if ours && !itself && !may_use.contains(&used.as_str()) {
                found(format!("\"{package}\" may not use \"{used}\": dependencies run downward"));
            }
            if used.starts_with(TENSOR_LIBRARY) && package != USES_TENSORS {
                found(format!("only \"{USES_TENSORS}\" may use \"{used}\""));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(package: &str, uses: &[&str], lints: &str) -> Vec<String> {
        let tree = SourceTree::of(&[("a/Cargo.toml", lints)]);
        let package = Package {
            name: package.to_owned(),
            manifest: "a/Cargo.toml".to_owned(),
            dependencies: uses.iter().map(|used| (*used).to_owned()).collect(),
            ..Package::default()
        };
        check(&tree, &[package]).into_iter().map(|found| found.message).collect()
    }

    const LINTS: &str = "[package]\n\n[lints]\nworkspace = true\n";

    #[test]
    fn what_runs_downward_passes() {
        assert_eq!(messages("kv-cache", &["cxl-shm", "serde"], LINTS), [""; 0]);
        assert_eq!(messages("kv-cache", &["kv-cache"], LINTS), [""; 0]);
        assert_eq!(messages("demo", &["candle-core"], LINTS), [""; 0]);
    }

    #[test]
    fn what_runs_upward_is_found() {
        for (package, used) in [
            ("cxl-shm", "kv-cache"),
            ("kv-cache", "rackline"),
            ("rackline", "lock-manager"),
            ("demo", "rackline-cli"),
            ("rackline-cli", "candle-core"),
            ("rackline-tests", "candle-nn"),
        ] {
            assert_eq!(messages(package, &[used], LINTS).len(), 1, "{package} {used}");
        }
    }

    #[test]
    fn missing_lints_and_layers_are_found() {
        assert_eq!(messages("cxl-shm", &[], "").len(), 1);
        assert_eq!(messages("cxl-shm", &[], "\n[lints]\nworkspace = false\n").len(), 1);
        assert_eq!(messages("brand-new", &[], LINTS).len(), 1);
    }

    #[test]
    fn layers_name_only_what_is_below() {
        for (at, (package, may_use)) in LAYERS.iter().enumerate() {
            let below: Vec<_> = LAYERS[..at].iter().map(|(name, _)| name).collect();
            assert!(may_use.iter().all(|used| below.contains(&used)), "{package}");
        }
    }
}
