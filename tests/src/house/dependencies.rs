//! Dependencies run downward, and every package keeps the lints.

use super::manifest::Manifest;
use super::{SourceTree, Violation};

/// Each package and those of ours that it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("cxl-shm", &[]),
    ("kv-cache", &["cxl-shm"]),
    ("connector", &["cxl-shm", "kv-cache"]),
    ("rackline-capi", &["connector", "cxl-shm", "kv-cache"]),
    ("rackline-gpu-check", &["connector", "cxl-shm", "kv-cache"]),
    ("rackline-python", &["connector", "kv-cache"]),
    ("lock-manager", &["cxl-shm", "kv-cache"]),
    ("demo", &["connector", "cxl-shm", "kv-cache"]),
    ("rackline", &["connector", "cxl-shm", "demo", "kv-cache", "lock-manager"]),
    ("rackline-benches", &["connector", "cxl-shm", "kv-cache", "lock-manager"]),
    ("rackline-compare", &["connector", "cxl-shm", "kv-cache", "rackline-benches"]),
    ("rackline-tests", &["connector", "cxl-shm", "demo", "kv-cache", "lock-manager", "rackline"]),
];

/// The one package that may use the tensor library: it takes minutes to build.
const USES_TENSORS: &str = "demo";
const TENSOR_LIBRARY: &str = "candle";

/// Packages that use what is above them, are in no layer, or leave the lints out.
#[must_use]
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for manifest in Manifest::all(tree) {
        let package = manifest.package.as_str();
        let mut found = |message| violations.push(Violation::of_file(&manifest.path, message));
        if !manifest.workspace_lints {
            found("add `workspace = true` under `[lints]`".to_owned());
        }
        let Some((_, may_use)) = LAYERS.iter().find(|(name, _)| *name == package) else {
            found(format!("\"{package}\" has no layer: add it in tests/src/house/dependencies.rs"));
            continue;
        };
        for used in &manifest.dependencies {
            let ours = LAYERS.iter().any(|(name, _)| name == used);
            if ours && !may_use.contains(&used.as_str()) {
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

    fn messages(package: &str, rest: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{package}\"\n{rest}");
        let tree = SourceTree::of(&[("a/Cargo.toml", &text)]);
        check(&tree).into_iter().map(|found| found.message).collect()
    }

    const LINTS: &str = "[lints]\nworkspace = true\n";

    #[test]
    fn what_runs_downward_passes() {
        let uses = format!("{LINTS}[dependencies]\ncxl-shm.workspace = true\nserde = \"1\"\n");
        assert_eq!(messages("kv-cache", &uses), [""; 0]);
        let tensors = format!("{LINTS}[dependencies]\ncandle-core = \"0\"\n");
        assert_eq!(messages("demo", &tensors), [""; 0]);
    }

    #[test]
    fn what_runs_upward_is_found() {
        for (package, used) in [
            ("cxl-shm", "kv-cache"),
            ("kv-cache", "connector"),
            ("connector", "lock-manager"),
            ("demo", "rackline"),
            ("rackline", "candle-core"),
            ("rackline-tests", "candle-nn"),
        ] {
            for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
                let uses = format!("{LINTS}[{section}]\n{used}.workspace = true\n");
                assert_eq!(messages(package, &uses).len(), 1, "{package} {used} {section}");
            }
        }
    }

    #[test]
    fn missing_lints_and_layers_are_found() {
        assert_eq!(messages("cxl-shm", "").len(), 1);
        assert_eq!(messages("cxl-shm", "[lints]\nworkspace = false\n").len(), 1);
        assert_eq!(messages("brand-new", LINTS).len(), 1);
    }

    #[test]
    fn layers_name_only_what_is_below() {
        for (at, (package, may_use)) in LAYERS.iter().enumerate() {
            let below: Vec<_> = LAYERS[..at].iter().map(|(name, _)| name).collect();
            assert!(may_use.iter().all(|used| below.contains(&used)), "{package}");
        }
    }
}
